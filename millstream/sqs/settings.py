"""How pipeline files name a queue of SQS."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated
from urllib.parse import urlsplit

from millstream import codes
from millstream.spec.addresses import SERVER_CHECK, address_check
from millstream.spec.problems import Path
from millstream.spec.references import TextOrReference
from millstream.spec.rules import After
from millstream.spec.tls import stays_on_this_machine
from millstream.spec.values import PositiveDuration, ShapeProblem, SpecModel, Text, field

_REGION = re.compile(r"sqs\.([a-z0-9-]+)\.amazonaws\.com(\.cn)?")


_checked_url = address_check(
    "the URL of a queue",
    ("http", "https"),
    "such as https://sqs.eu-west-1.amazonaws.com/123456789012/orders",
    path=lambda path: path.strip("/") != "",
)


class SqsQueue(SpecModel):
    """A queue, and who uses it."""

    noun = "an sqs queue"

    queue_url: Annotated[Text, After(_checked_url)]
    """URL of the queue, such as `https://sqs.eu-west-1.amazonaws.com/123456789012/orders`. The name of a FIFO queue
    ends with `.fifo`."""
    endpoint: Annotated[Text, After(SERVER_CHECK)] | None = None
    """Address that requests go to, `https://host:port`. Default: that of `queueUrl`."""
    region: Text | None = None
    """Default: that in `queueUrl`, else us-east-1."""
    access_key: TextOrReference | None = None
    """Id of the access key. Default: the credentials of the environment or of the machine, as other clients of AWS
    find them."""
    secret_key: TextOrReference | None = None
    """Secret of the access key, as `{env: NAME}` or `{file: PATH}`."""
    session_token: TextOrReference | None = None
    """Token of temporary credentials."""
    timeout_s: PositiveDuration = field(default=10.0, alias="timeout")
    """How long an answer is waited for; then it is tried again. Duration, default 10s."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Halves of credentials, and addresses."""
        if (self.access_key is None) != (self.secret_key is None):
            absent = "accessKey" if self.access_key is None else "secretKey"
            what = "`accessKey` and `secretKey` belong together"
            yield ShapeProblem(codes.FIELD_MISSING, (absent,), what, "both, or none for those of the environment")

    @property
    def fifo(self) -> bool:
        """Whether the queue keeps an order."""
        return self.queue_url.endswith(".fifo")

    @property
    def address(self) -> str:
        """Where requests go."""
        parts = urlsplit(self.queue_url)
        return self.endpoint or f"{parts.scheme}://{parts.netloc}"

    @property
    def region_name(self) -> str:
        """With its default."""
        found = _REGION.fullmatch(urlsplit(self.queue_url).hostname or "")
        return self.region or (found[1] if found is not None else "us-east-1")


def queue_notes(settings: SqsQueue, path: Path) -> Iterator[tuple[Path, str]]:
    """What to know about the way to a queue."""
    for name, value in (("secretKey", settings.secret_key), ("sessionToken", settings.session_token)):
        if isinstance(value, str):
            yield (*path, name), f"`{name}` stands in the file; `{{env: NAME}}` or `{{file: PATH}}` keeps it out"
    parts = urlsplit(settings.address)
    if parts.scheme == "http" and not stays_on_this_machine((parts.hostname or "").lower()):
        yield (*path, "queueUrl"), f"the records go to {parts.hostname} in the clear; https:// encrypts them"
