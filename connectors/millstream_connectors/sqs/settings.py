"""The settings of the `sqs` source and sink, as pipeline files have them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated
from urllib.parse import urlsplit

from millstream.spec.addresses import SERVER_CHECK, address_check
from millstream.spec.connectors import RemembersIds
from millstream.spec.problems import Path
from millstream.spec.references import TextOrReference, secret_in_file
from millstream.spec.tls import is_open
from millstream.spec.values import After, PositiveDuration, ShapeProblem, SpecModel, Strict, Text, field
from millstream_connectors.shared.aws.settings import access_key_problems

_REGION = re.compile(r"sqs\.([a-z0-9-]+)\.amazonaws\.com(\.cn)?")


_checked_url = address_check(
    "the URL of a queue",
    ("http", "https"),
    "such as https://sqs.eu-west-1.amazonaws.com/123456789012/orders",
    path=lambda path: path.strip("/") != "",
)


class SqsQueue(SpecModel):
    """A queue, and the credentials for it."""

    noun = "an sqs queue"

    queue_url: Annotated[Text, After(_checked_url)]
    """URL of the queue, such as `https://sqs.eu-west-1.amazonaws.com/123456789012/orders`. The name of a FIFO queue
    ends with `.fifo`."""
    endpoint: Annotated[Text, After(SERVER_CHECK)] | None = None
    """Address to send requests to, `https://host:port`. Default: that of `queueUrl`."""
    region: Text | None = None
    """Region of the queue. Default: that in `queueUrl`, else us-east-1."""
    access_key: TextOrReference | None = None
    """Id of the access key. Default: the credentials of the environment or of the machine, which are looked up as in
    other AWS clients."""
    secret_key: TextOrReference | None = None
    """Secret of the access key, as `{env: NAME}` or `{file: PATH}`."""
    session_token: TextOrReference | None = None
    """Token of temporary credentials."""
    timeout_s: PositiveDuration = field(default=10.0, alias="timeout")
    """Longest time to wait for an answer. After it, the request is repeated. Duration, default 10s."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Rejects incomplete credentials."""
        yield from access_key_problems(self.access_key, self.secret_key, self.session_token)

    @property
    def fifo(self) -> bool:
        """Whether the queue is a FIFO queue."""
        return self.queue_url.endswith(".fifo")

    @property
    def address(self) -> str:
        """The address to send requests to."""
        parts = urlsplit(self.queue_url)
        return self.endpoint or f"{parts.scheme}://{parts.netloc}"

    @property
    def region_name(self) -> str:
        """The region, or its default."""
        found = _REGION.fullmatch(urlsplit(self.queue_url).hostname or "")
        return self.region or (found[1] if found is not None else "us-east-1")

    def notes(self, path: Path) -> Iterator[tuple[Path, str]]:
        """Notes on secrets in the pipeline file, and on an unencrypted connection."""
        for name, value in (("secretKey", self.secret_key), ("sessionToken", self.session_token)):
            if isinstance(value, str):
                yield (*path, name), secret_in_file(name)
        if is_open(self.address):
            host = urlsplit(self.address).hostname
            yield (*path, "queueUrl"), f"the records are sent to {host} unencrypted; https:// encrypts them"


class SqsSource(RemembersIds, SqsQueue):
    """Receives messages from an Amazon SQS queue, and deletes them once they are committed."""

    noun = "an sqs source"

    visibility_timeout_s: Annotated[PositiveDuration, Strict(ge=3, le=12 * 3600)] = field(
        default=60.0, alias="visibilityTimeout"
    )
    """How long the queue hides a delivered message. It is extended as long as the source holds the message; after a
    crash the message is delivered again when the time is over. Duration of 3s to 12h, in whole seconds, default 60s."""
    prefetch: Annotated[int, Strict(ge=10, le=20_000)] = 1000
    """Approximate maximum number of messages that are held without being deleted."""


class SqsSink(SqsQueue):
    """Sends records to an Amazon SQS queue. In a FIFO queue, records with the same keys stay in order."""

    noun = "an sqs sink"
