"""A batch of a source that is being built, record by record. Pure.

Above it: lanes that read records one by one. Below it: frames.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field

from millstream.frame import Frame, build_frame
from millstream.limits import RECORD_BYTES_MAX
from millstream_connectors.shared.messages import too_large
from millstream_reader.source import InvalidRecord

_NO_HEADERS: Mapping[str, bytes] = {}


@dataclass(slots=True)
class RecordBatch:
    """Records, and what cannot become one."""

    noun: str
    """What a record is at its source, for messages: `the message`."""
    values: list[bytes] = field(default_factory=list)
    times: array[int] = field(default_factory=lambda: array("q"))
    keys: list[tuple[bytes, ...]] = field(default_factory=list)
    headers: list[Mapping[str, bytes]] = field(default_factory=list)
    """Of each record, where the source has headers; otherwise all are empty, and there may be fewer of them."""
    invalid: list[InvalidRecord] = field(default_factory=list)
    size: int = 0

    def fits(self, size: int, bytes_max: int) -> bool:
        """Whether there is space for a record of `size` bytes; always true for the first one."""
        return not self.values or self.size + size <= bytes_max

    def add(
        self,
        value: bytes,
        time_us: int,
        place: str,
        *,
        size: int,
        keys: tuple[bytes, ...] = (),
        headers: Mapping[str, bytes] = _NO_HEADERS,
        fault: str = "",
    ) -> None:
        """Add a record, or an invalid one if it is too large or has a `fault`. `place` describes its origin."""
        if size > RECORD_BYTES_MAX:
            self.invalid.append(too_large(value, size, place, self.noun))
        elif fault:
            self.refuse(value, fault, place)
        else:
            self.size += size
            self.values.append(value)
            self.times.append(time_us)
            self.keys.append(keys)
            self.headers.append(headers)

    def refuse(self, value: bytes, fault: str, place: str) -> None:
        """Add what cannot become a record."""
        self.invalid.append(InvalidRecord(value, f"{place}: {fault}", place))

    def frame(self, now_us: int) -> Frame | None:
        """The frame of the records; None if there are none."""
        if not self.values:
            return None
        return build_frame(
            self.values,
            self.times,
            ingest_time_us=now_us,
            keys=self.keys if any(self.keys) else None,
            headers=self.headers if any(self.headers) else None,
        )
