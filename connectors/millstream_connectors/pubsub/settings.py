"""The settings of the `pubsub` source and sink, as pipeline files have them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from millstream.spec.connectors import RemembersIds
from millstream.spec.problems import Path
from millstream.spec.references import Secret
from millstream.spec.values import After, PositiveDuration, ShapeProblem, SpecModel, Strict, Text, field, text_check
from millstream_connectors.shared.google_cloud.endpoints import credential_problems, endpoint_check, endpoint_notes

SERVICE = "https://pubsub.googleapis.com"

_NAME = re.compile(r"(?!goog)[A-Za-z][A-Za-z0-9._~+%-]{2,254}")
_PROJECT = re.compile(r"([a-z0-9.-]+:)?[a-z0-9-]+")

ResourceName = Annotated[
    Text, text_check(_NAME.fullmatch, "is not a name in Pub/Sub", "the last part of `projects/PROJECT/topics/NAME`")
]
"""The name of a topic or a subscription, without its project."""


class PubsubProject(SpecModel):
    """A project, and the credentials for it."""

    noun = "a pubsub project"

    project: Annotated[Text, text_check(_PROJECT.fullmatch, "is not the id of a project", "an id such as my-project")]
    """Id of the Google Cloud project."""
    credentials: Secret | None = None
    """The key of a service account, as the JSON that Google issues: `{file: PATH}`, `{env: NAME}`, or a key of a
    Kubernetes Secret. Default: the credentials of the environment or of the machine, which other clients of Google
    Cloud use, too. With an `http://` endpoint, no credentials are sent."""
    endpoint: Annotated[Text, After(endpoint_check("the address of a Pub/Sub service"))] = SERVICE
    """Address of the service: `https://` with the host of a region, such as
    `https://europe-west1-pubsub.googleapis.com`, or `http://host:port` for an emulator, without encryption or
    credentials. Default: the global address."""
    timeout_s: PositiveDuration = field(default=10.0, alias="timeout")
    """How long to wait for an answer, with retries. Duration, default 10s."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Rejects credentials that would be sent unencrypted."""
        yield from credential_problems(self.credentials, self.endpoint)

    def notes(self, path: Path) -> Iterator[tuple[Path, str]]:
        yield from endpoint_notes(self.endpoint, path)


class PubsubSource(RemembersIds, PubsubProject):
    """Takes messages from a subscription of Google Cloud Pub/Sub, and acknowledges them once they are committed."""

    noun = "a pubsub source"

    subscription: ResourceName
    """Name of a pull subscription in the project."""
    ack_deadline_s: Annotated[PositiveDuration, Strict(ge=3, le=600)] = field(default=60.0, alias="ackDeadline")
    """How long the service waits for the acknowledgement of a message before it delivers it again. The source
    extends this time while it holds the message. Duration of 3s to 10m, in whole seconds, default 60s."""
    prefetch: Annotated[int, Strict(ge=10, le=20_000)] = 1000
    """Approximate maximum number of messages that are held without an acknowledgement."""
    id_attribute: Text | None = None
    """Attribute with a unique id that the publisher gave the message, such as `Millstream-Id`. A message that was
    published twice then counts once. Default: the id that the service gave the message; it is also used if a message
    lacks the attribute."""

    @property
    def path(self) -> str:
        """The subscription's full name, with its project."""
        return f"projects/{self.project}/subscriptions/{self.subscription}"


class PubsubSink(PubsubProject):
    """Publishes records to a topic of Google Cloud Pub/Sub."""

    noun = "a pubsub sink"

    topic: ResourceName
    """Name of a topic in the project."""
    ordering_key_source: Literal["none", "key"] = "none"
    """Source of a message's ordering key: none, or the record's keys. With `key`, messages with the same keys stay in
    order, and each request has only messages with the same keys. A record without keys gets no ordering key."""

    @property
    def path(self) -> str:
        """The topic's full name, with its project."""
        return f"projects/{self.project}/topics/{self.topic}"
