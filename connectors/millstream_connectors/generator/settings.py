"""The settings of the `generator` source, as pipeline files have them. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from millstream import codes
from millstream.clock import MICROSECONDS
from millstream.limits import RECORD_BYTES_MAX
from millstream.spec.problems import Path
from millstream.spec.values import (
    After,
    Count,
    Duration,
    PositiveDuration,
    ShapeProblem,
    Share,
    SpecModel,
    Strict,
    at_most_one,
    field,
    problem,
)


def _checked_base64(written: str) -> str:
    try:
        base64.b64decode(written, validate=True)
    except binascii.Error:
        raise problem(codes.VALUE_MALFORMED, "the text is not base64", "bytes in standard base64") from None
    return written


def _checked_start(written: str) -> str:
    try:
        datetime.fromisoformat(written)
    except ValueError:
        raise problem(
            codes.VALUE_MALFORMED, f"{written!r} is not a time", "an RFC 3339 time such as 2024-01-01T00:00:00Z"
        ) from None
    return written


class GeneratorSource(SpecModel):
    """Generates records; the same settings and `seed` give the same records."""

    noun = "a generator"

    rpu: Count = 5
    """Records per `duration` over all lanes of the vertex; 0 means as fast as possible."""
    duration_s: PositiveDuration = field(default=1.0, alias="duration")
    """The time unit of `rpu`. Duration, default 1s."""
    records: Count | None = None
    """Number of records, over all lanes of the vertex. Default: without end."""
    msg_size: Annotated[int, Strict(ge=1, le=RECORD_BYTES_MAX)] = 8
    """Bytes of each record's value, a JSON object with the record's `lane` and `number`. Shorter ones are padded with
    spaces. At most 7 MiB. Not used with `valueBlob`."""
    key_count: Count = 0
    """Number of different keys, assigned in turn; 0 means records without a key."""
    value: Annotated[int, Strict(ge=0, lt=1 << 64)] | None = None
    """A number that every record carries as `value`, beside its own `number` within the vertex."""
    value_blob: Annotated[str, After(_checked_base64)] | None = None
    """Base64 of the bytes that are the value of every record."""
    jitter_s: Duration = field(default=0.0, alias="jitter")
    """Each record's event time is moved back by a random time up to this. Duration, default 0s."""
    out_of_order_share: Share = 0.0
    """Share of the records whose event time is moved back by `outOfOrderBy`. Default 0."""
    out_of_order_by_s: Duration = field(default=0.0, alias="outOfOrderBy")
    """How far back the event time of out-of-order records is moved. Keep `watermark.maxDelay` at least this long if
    they must not be late. Duration, default 0s."""
    late_share: Share = 0.0
    """Share of the records whose event time is moved back by `lateBy`. Default 0."""
    late_by_s: Duration = field(default=0.0, alias="lateBy")
    """How far back the event time of late records is moved. They are late if it is longer than `watermark.maxDelay`.
    Duration, default 0s."""
    start: Annotated[str, After(_checked_start)] | None = None
    """Event time of the first record (RFC 3339; without an offset, UTC). Default: the time at which the source was
    first opened."""
    event_time_step_s: PositiveDuration | None = field(default=None, alias="eventTimeStep")
    """Event time between one record of the vertex and the next. Default: event time is the time at which the record is
    generated; with `start`, `duration` / `rpu`."""
    seed: Count = 0
    """Seed of all random values in this source."""

    @property
    def records_per_s(self) -> float:
        """Rate over all lanes; 0 means as fast as possible."""
        return self.rpu / self.duration_s

    @property
    def step_us(self) -> float | None:
        """Event time between consecutive numbers; None to use the time at which a record is due."""
        step_s = self.event_time_step_s
        if step_s is None and self.start is not None and self.rpu:
            step_s = self.duration_s / self.rpu
        return step_s * MICROSECONDS if step_s is not None else None

    @property
    def start_us(self) -> int | None:
        """Event time of number 0, with `step_us`; None to use the time at which the lane was first opened."""
        if self.start is None:
            return None
        start = datetime.fromisoformat(self.start)
        return round((start if start.tzinfo is not None else start.replace(tzinfo=UTC)).timestamp() * MICROSECONDS)

    @classmethod
    def shape_problems(cls, data: Mapping[str, Any]) -> Iterator[ShapeProblem]:
        """Allows one kind of value, and shares only together with their durations."""
        yield from at_most_one(data, ("value", "valueBlob"), cls.noun)
        for share, by in (("lateShare", "lateBy"), ("outOfOrderShare", "outOfOrderBy")):
            if bool(data.get(share)) != bool(data.get(by)):
                given, absent = (share, by) if data.get(share) else (by, share)
                what = f"`{given}` has no effect without `{absent}`"
                yield ShapeProblem(codes.FIELDS_CONFLICT, (given,), what, f"`{share}` and `{by}` together")

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """With a start but no rate, event time needs a step."""
        if self.start is not None and self.rpu == 0 and self.event_time_step_s is None:
            what = "with `rpu: 0`, `start` needs a step of event time"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("start",), what, "`eventTimeStep` as well")

    def notes(self, path: Path) -> Iterator[tuple[Path, str]]:
        if "msg_size" in self.model_fields_set and self.value_blob is not None:
            yield (*path, "msgSize"), "`msgSize` has no effect with `valueBlob`"
