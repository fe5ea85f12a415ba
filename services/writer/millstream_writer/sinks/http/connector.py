"""The `http` sink, as pipeline files name it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import urlsplit

from millstream import codes
from millstream.spec.connectors import Guarantee, GuaranteeId, Place
from millstream.spec.problems import Finding, Path
from millstream.spec.references import Reference, TextOrReference
from millstream.spec.rules import After
from millstream.spec.tls import stays_on_this_machine
from millstream.spec.values import PositiveCount, PositiveDuration, Quantity, SpecModel, Text, field, problem
from millstream_writer.connector import SinkConnector, SinkOwner

if TYPE_CHECKING:
    from millstream_writer.sink import SinkLane

_SECRET_HEADER = re.compile(r"(?i)authorization|cookie|.*(token|secret|password|api-?key).*")


def is_http_url(text: str) -> bool:
    """Whether records can be sent there."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def _checked_url(written: str | Reference) -> str | Reference:
    if isinstance(written, str) and not is_http_url(written):
        raise problem(
            codes.VALUE_MALFORMED, f"{written!r} is not a URL to send to", "http://host:port/path or https://..."
        )
    return written


class HttpBatch(SpecModel):
    """How many records go into one request."""

    noun = "a batch"

    max_records: PositiveCount = 1
    """Records in one request. 1 sends the value as the body; more send one value per line."""
    max_bytes: Quantity = 1 << 20
    """Bytes of one request's body; a larger record goes alone. Default 1 MiB."""


class HttpSink(SpecModel):
    """Sends records by HTTP, with a key that is the same on every retry."""

    noun = "an http sink"

    url: Annotated[TextOrReference, After(_checked_url)]
    """Where to send, or where that stands: `{env: NAME}` or `{file: PATH}`."""
    method: Literal["POST", "PUT", "PATCH"] = "POST"
    """HTTP method."""
    headers: dict[str, TextOrReference] = field(default_factory=dict)
    """Headers of every request; a token as `{env: NAME, prefix: "Bearer "}` or `{file: PATH}`."""
    batch: HttpBatch = HttpBatch()
    """How many records go into one request."""
    idempotency_header: Text = "Idempotency-Key"
    """Header that carries the key."""
    timeout_s: PositiveDuration = field(default=30.0, alias="timeout")
    """Longest time for one request. Duration, default 30s."""


class _Http(SinkConnector[HttpSink]):
    model = HttpSink
    meaning = "By HTTP."
    promise = Guarantee(
        GuaranteeId.IDEMPOTENT,
        "exactly once if the receiver honours the key that each request has, the same on every retry; at "
        "least once otherwise",
    )

    def guarantee(self, settings: HttpSink, *, fallback: bool) -> Guarantee:
        what = (
            f"exactly once if the receiver keeps to the `{settings.idempotency_header}` header: the key of a request "
            "is the same on every retry"
        )
        return Guarantee(GuaranteeId.IDEMPOTENT, what)

    async def online_findings(self, settings: HttpSink, place: Place) -> Sequence[Finding]:
        from millstream_writer.sinks.http.reach import unreachable

        found = await unreachable(settings, place.base_dir)
        return (Finding(found[0], (*place.path, "url"), *found[1:]),) if found is not None else ()

    def notes(self, settings: HttpSink, path: Path) -> Iterator[tuple[Path, str]]:
        """Headers that look like secrets: those in the file, and those that go over the network in the clear."""
        for name, value in settings.headers.items():
            if isinstance(value, str) and _SECRET_HEADER.fullmatch(name):
                what = f"`{name}` stands in the file; `{{env: NAME}}` or `{{file: PATH}}` keeps it out"
                yield (*path, "headers", name), what
        if not isinstance(settings.url, str):
            return
        parts = urlsplit(settings.url)
        secret = any(_SECRET_HEADER.fullmatch(name) for name in settings.headers)
        if secret and parts.scheme == "http" and not stays_on_this_machine(parts.hostname or ""):
            what = f"a secret of `headers` goes to {parts.hostname} in the clear; `https://` encrypts it"
            yield (*path, "url"), what

    def open(self, settings: HttpSink, owner: SinkOwner) -> AbstractAsyncContextManager[SinkLane]:
        from millstream_writer.sinks.http.lane import open_http_sink

        return open_http_sink(settings, owner.base_dir, owner.where, envelope=owner.envelope)


HTTP = _Http()
