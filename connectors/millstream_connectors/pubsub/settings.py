"""How pipeline files name a Google Cloud project and its topics and subscriptions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

from millstream import codes
from millstream.spec.problems import Path
from millstream.spec.references import Secret
from millstream.spec.rules import After
from millstream.spec.values import PositiveDuration, ShapeProblem, SpecModel, Text, field, problem
from millstream_connectors.shared.google_cloud.endpoints import credential_problems, endpoint_check, endpoint_notes

SERVICE = "https://pubsub.googleapis.com"

_NAME = re.compile(r"(?!goog)[A-Za-z][A-Za-z0-9._~+%-]{2,254}")
_PROJECT = re.compile(r"([a-z0-9.-]+:)?[a-z0-9-]+")


def _checked_name(written: str) -> str:
    if _NAME.fullmatch(written) is None:
        what = f"{written!r} is not a name in Pub/Sub"
        raise problem(codes.VALUE_MALFORMED, what, "the last part of `projects/PROJECT/topics/NAME`")
    return written


def _checked_project(written: str) -> str:
    if _PROJECT.fullmatch(written) is None:
        what = f"{written!r} is not the id of a project"
        raise problem(codes.VALUE_MALFORMED, what, "an id such as my-project")
    return written


ResourceName = Annotated[Text, After(_checked_name)]
"""The name of a topic or a subscription, without its project."""


class PubsubProject(SpecModel):
    """A project, and the credentials for it."""

    noun = "a pubsub project"

    project: Annotated[Text, After(_checked_project)]
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


def project_notes(settings: PubsubProject, path: Path) -> Iterator[tuple[Path, str]]:
    """Notes about the connection to a project."""
    yield from endpoint_notes(settings.endpoint, path)
