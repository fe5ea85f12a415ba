"""Where records go: the sink of a vertex and its options."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from millstream.dead_letter import MEMBERS
from millstream.retry import ASKED_MAX
from millstream.spec.programs import Backoff, Program
from millstream.spec.references import Reference, TextOrReference
from millstream.spec.sources import Column, repeated_columns
from millstream.spec.values import (
    Flag,
    PositiveCount,
    PositiveDuration,
    Quantity,
    ShapeFault,
    SpecModel,
    Text,
    exactly_one,
    fault,
)

OnSinkFailure = Literal["retry", "fallback", "drop", "stop"]
"""What becomes of a record that a sink still refuses after its last attempt."""

SinkKind = Literal["log", "blackhole", "file", "http", "udsink"]


def is_http_url(text: str) -> bool:
    """Whether records can be sent there."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def _checked_url(written: str | Reference) -> str | Reference:
    if isinstance(written, str) and not is_http_url(written):
        raise fault(f"{written!r} is not a URL to send to", "http://host:port/path or https://...")
    return written


class LogSink(SpecModel):
    """Writes each record as a line to the vertex's log."""


class BlackholeSink(SpecModel):
    """Counts records and forgets them."""


class Rolling(SpecModel):
    """When a file is finished and the next one begun: at whichever limit comes first."""

    noun = "rolling"

    max_bytes: Quantity = 64 << 20
    """Bytes of records in a file. Default 64 MiB."""
    max_records: PositiveCount | None = None
    """Records in a file. Records of an unfinished file stay in the buffer, so this is at most the
    number at which the buffer's writers wait. Default: half of that number."""
    max_age_s: PositiveDuration = Field(default=10.0, alias="maxAge")
    """Age of a file since its first record; also the longest time until a record can be seen.
    Duration, default 10s."""


class FileSink(SpecModel):
    """Writes finished files into a directory; a file that can be seen is whole and final."""

    noun = "a file sink"

    path: Text
    """Directory, relative to the pipeline file; made if absent."""
    format: Literal["jsonl", "lines", "csv", "parquet"] = "jsonl"
    """`jsonl` (the record's JSON value per line), `lines` (the record's bytes per line; a value with a line break is
    refused), `csv` or `parquet`."""
    columns: tuple[Column, ...] = ()
    """Columns taken from the record's JSON value. CSV needs them; Parquet without them has one
    binary column `value`."""
    rolling: Rolling = Rolling()
    """When a file is finished."""

    def relation_faults(self) -> Iterator[ShapeFault]:
        """Columns where they have a meaning."""
        yield from repeated_columns(self.columns)
        if self.format == "csv" and not self.columns:
            yield ShapeFault((), "a CSV file needs columns", "`columns: [{name, type}]`")
        if self.format in ("jsonl", "lines") and self.columns:
            what = f"`columns` has no effect with `format: {self.format}`"
            yield ShapeFault(("columns",), what, "`format: csv` or `parquet`, or no `columns`")


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

    url: Annotated[TextOrReference, AfterValidator(_checked_url)]
    """Where to send, or where that stands: `{env: NAME}` or `{file: PATH}`."""
    method: Literal["POST", "PUT", "PATCH"] = "POST"
    """HTTP method."""
    headers: dict[str, TextOrReference] = Field(default_factory=dict)
    """Headers of every request; a token as `{env: NAME, prefix: "Bearer "}` or `{file: PATH}`."""
    batch: HttpBatch = HttpBatch()
    """How many records go into one request."""
    idempotency_header: Text = "Idempotency-Key"
    """Header that carries the key."""
    timeout_s: PositiveDuration = Field(default=30.0, alias="timeout")
    """Longest time for one request. Duration, default 30s."""


class UserSink(Program):
    """A sink that the user wrote."""

    noun = "a udsink"


class SinkRetryStrategy(SpecModel):
    """What happens when a sink refuses a record."""

    noun = "a retry strategy"

    backoff: Backoff = Backoff()
    """Pauses and number of attempts."""
    max_retries: PositiveCount = ASKED_MAX
    """How often a `udsink` may ask by `Retry` to see a record again before `onFailure` decides. Not used by `onFailure:
    retry`."""
    on_failure: OnSinkFailure = "retry"
    """After the last attempt: `retry` for ever (the default), to the `fallback` sink, `drop`
    (counted) or `stop` the lane."""


class FallbackSink(SpecModel):
    """The kinds of sink: exactly one of them. A fallback is tried for ever."""

    noun = "a sink"
    kinds: ClassVar[tuple[str, ...]] = ("log", "blackhole", "file", "http", "udsink")

    log: LogSink | None = None
    """To the vertex's log."""
    blackhole: BlackholeSink | None = None
    """Nowhere."""
    file: FileSink | None = None
    """To files."""
    http: HttpSink | None = None
    """By HTTP."""
    udsink: UserSink | None = None
    """To a program of the user's."""
    envelope: Flag | None = None
    """Whether each record is written as an envelope: a JSON object that holds any record with its id, event time, keys,
    headers and value, and for a dead letter the reason, the vertex and the position. Default: for records that come
    over a dead-letter edge. A `log` always writes it."""

    @classmethod
    def shape_faults(cls, data: Mapping[str, Any]) -> Iterator[ShapeFault]:
        """One kind of sink."""
        yield from exactly_one(data, cls.kinds, cls.noun)

    @property
    def kind(self) -> SinkKind:
        """Which of the five it is."""
        if self.log is not None:
            return "log"
        if self.blackhole is not None:
            return "blackhole"
        if self.file is not None:
            return "file"
        return "http" if self.http is not None else "udsink"


class Sink(FallbackSink):
    """Where the records of a sink vertex go."""

    fallback: FallbackSink | None = None
    """Where records go that the sink refused, with `onFailure: fallback` or when a `udsink` says
    so."""
    retry_strategy: SinkRetryStrategy = SinkRetryStrategy()
    """What happens when the sink refuses a record."""

    def relation_faults(self) -> Iterator[ShapeFault]:
        """A fallback that is named must exist, and one that exists must be reachable."""
        asked = self.retry_strategy.on_failure == "fallback"
        if asked and self.fallback is None:
            loc = ("retryStrategy", "onFailure")
            yield ShapeFault(loc, "there is no fallback sink", "`fallback` with a sink")
        if self.fallback is not None and not asked and self.udsink is None:
            what = "`fallback` is never used"
            yield ShapeFault(("fallback",), what, "`retryStrategy.onFailure: fallback`")


def envelope_faults(sink: Sink, loc: tuple[str | int, ...], *, by_default: bool) -> Iterator[ShapeFault]:
    """Columns of a sink that an envelope does not have. `by_default`: a dead-letter edge leads to the sink."""
    for place, one in (((), sink), (("fallback",), sink.fallback)):
        if one is None or one.file is None or not (by_default if one.envelope is None else one.envelope):
            continue
        for index, column in enumerate(one.file.columns):
            if column.name not in MEMBERS:
                what = f"the envelope of a record has no `{column.name}`"
                expected = f"one of {', '.join(MEMBERS)}, or `envelope: false` for columns of the record's own value"
                yield ShapeFault((*loc, *place, "file", "columns", index, "name"), what, expected)
