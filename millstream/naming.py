"""How messages name a record, and how they say what went wrong with it. Pure.

Values may be private, so the code that writes a message decides whether it shows the beginning of the value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from millstream.dead_letter import time_text
from millstream.frame import Frame

MISFIT = "does not fit the function's type"
"""The reason under which a record is counted if its value does not have the type that the function takes (MS-3005)."""
_VALUE_BYTES = 120
"""Bytes of a value that a message shows."""
_ID_CHARACTERS = 200
_TRACEBACK = "Traceback (most recent call last)"


class Origin(NamedTuple):
    """Where the records of a frame come from."""

    id_prefix: str = ""
    """"<vertex>/<edge>/<partition>/<sequence>/" of the stored frame; empty if there is none, as in a source."""
    first_index: int = 0
    """Index of the first record in the stored frame."""
    source_position: str = ""
    """In a source: how far it had read with these records."""
    run: str = ""
    """The run of the ledger that the sequence refers to."""
    names: Sequence[str] = ()
    """The rest of each record's position after the prefix, if they are not consecutive records of a stored frame."""

    def position(self, index: int) -> str:
        """The position of the record at an index in the frame; the same at every attempt."""
        return next(self.positions((index,))) if self.names or self.id_prefix else self.source_position

    def positions(self, indexes: Sequence[int]) -> Iterator[str]:
        """The positions of records of a stored frame."""
        names = map(self.names.__getitem__, indexes) if self.names else (str(self.first_index + at) for at in indexes)
        return map(self.id_prefix.__add__, names)


NO_ORIGIN = Origin()


@dataclass(frozen=True, slots=True)
class Naming:
    """How the records of a lane are named in its messages."""

    values: bool = True
    """Whether the beginning of the value is shown."""

    def of(self, frame: Frame, index: int, origin: Origin) -> str:
        """Names one record of a frame: its id, position, keys, event time and the beginning of its value."""
        ids = frame.ids()
        record_id = ids[index] if ids is not None else origin.position(index) if origin.id_prefix else ""
        parts = []
        if origin.source_position and not origin.id_prefix:
            parts.append(f"read before source position {origin.source_position}")
        elif origin.source_position and not origin.names:
            parts.append(f"number {origin.first_index + index + 1:,} from the source")
        elif origin.id_prefix and not origin.names:
            sequence = origin.id_prefix.rstrip("/").rpartition("/")[2]
            parts.append(f"sequence {sequence}, index {origin.first_index + index}")
        keys = [part.decode(errors="replace") for part in frame.keys()[index]]
        if keys:
            parts.append(f"keys {str(keys)[:_ID_CHARACTERS]}")
        parts.append(f"event time {time_text(frame.event_times_us()[index])}")
        value = frame.values()[index]
        parts.append(f"value {shown_value(value)}" if self.values else f"value of {len(value)} bytes")
        name = f"record {record_id[:_ID_CHARACTERS]}" if record_id else "record"
        return f"{name} ({', '.join(parts)})"


WITH_VALUES = Naming()


def shown_value(value: bytes) -> str:
    """The beginning of a value, as text if it is text."""
    beginning = value[:_VALUE_BYTES]
    more = f"... ({len(value):,} bytes)" if len(value) > _VALUE_BYTES else ""
    try:
        text = beginning.decode(errors="ignore" if more else "strict")
    except UnicodeDecodeError:
        return f"{beginning!r}{more}"
    return f"{text!r}{more}"


def failure_kind(reason: str, *, misfit: bool = False) -> str:
    """The kind of a failure: the first failure of each kind is logged. It is not the whole reason, which may quote the
    record. For a value that does not fit, the kind is the field."""
    return reason.partition("\n")[0].partition(" is " if misfit else ":")[0]


def reason_and_detail(reason: str, detail: str = "") -> tuple[str, str]:
    """What went wrong, on one line, and all the details.

    A function may give a stack trace as its reason. Other languages begin with the message (`panic: ...`, then the
    goroutines); a bare Python traceback has it after the stack, in the first line that is not indented.
    """
    lines = [line.rstrip() for line in reason.splitlines() if line.strip()]
    if len(lines) <= 1:
        return reason.strip(), detail
    whole = detail if reason.strip() in detail else f"{reason}\n{detail}".strip()
    if not lines[0].startswith(_TRACEBACK):
        return lines[0].strip(), whole
    last = max(number for number, line in enumerate(lines) if line.startswith(_TRACEBACK))
    following = (line for line in lines[last + 1 :] if not line[0].isspace())
    return next(following, lines[-1].strip()), whole
