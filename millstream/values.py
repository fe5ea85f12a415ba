"""The values of a frame's records, in one of two forms. Encoding, splitting and joining; no I/O.

    bytes   any contents, one after the other, with offsets
    Arrow   columns of JSON objects, from a function that returns Arrow to one that takes it

Above it: frames. Below it: the column codecs of the SDK, and pyarrow where there are Arrow columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from types import ModuleType

from millstream import codes
from millstream.errors import UdfError, UserError
from millstream_udf import columns


@dataclass(frozen=True, slots=True)
class Values:
    """One of the two forms; the other field is empty. Methods get the number of `records`, which is not in the bytes.

    They raise `UdfError` for Arrow columns that break the protocol of functions, and `UserError` without pyarrow.
    """

    column: bytes = b""
    """A column of bytes."""
    arrow: bytes = b""
    """An Arrow IPC stream: see `millstream_udf.arrow_values`."""

    @classmethod
    def of(cls, values: Sequence[bytes]) -> Values:
        """Values as bytes."""
        return cls(columns.pack_bytes(values))

    @property
    def size(self) -> int:
        """In bytes."""
        return len(self.column) + len(self.arrow)

    @property
    def form(self) -> bytes:
        """What values that are joined as they are have in common: the names and types of their Arrow columns; empty for
        bytes. Values of different forms are joined as bytes."""
        # An Arrow IPC stream begins with the schema: a mark, its length, and as many bytes.
        return self.arrow[: 8 + int.from_bytes(self.arrow[4:8], "little")]

    def check(self, records: int) -> None:
        """Raises `ValueError` unless all of them can be read."""
        if not self.arrow:
            columns.check_bytes(self.column, records)
        elif self.column:
            raise ValueError("it has Arrow columns besides values")
        else:
            _arrow_values().unpacked(self.arrow, records)

    def check_arrow(self, records: int) -> None:
        """Raises `UdfError` unless Arrow columns, if it has any, can be read, and stand for JSON."""
        if self.arrow:
            with _checked_arrow() as arrow_values:
                arrow_values.check(self.arrow, records)

    def as_bytes(self, records: int) -> Values:
        """The same values as bytes: JSON in place of Arrow columns."""
        if not self.arrow:
            return self
        with _checked_arrow() as arrow_values:
            return Values.of(arrow_values.as_json(self.arrow, records))

    def split(self, records: int, groups: columns.Groups) -> list[Values]:
        """For each group, the values at its indexes, in that order."""
        if not self.arrow:
            return list(map(Values, columns.split_bytes(self.column, groups)))
        with _checked_arrow() as arrow_values:
            return [Values(arrow=part) for part in arrow_values.parts(self.arrow, records, groups)]

    def slice(self, records: int, start: int, stop: int) -> Values:
        """The values from `start` up to but not including `stop`."""
        if not self.arrow:
            return Values(columns.slice_bytes(self.column, start, stop))
        with _checked_arrow() as arrow_values:
            return Values(arrow=arrow_values.part(self.arrow, records, start, stop))


def join_values(parts: Sequence[Values], counts: Sequence[int]) -> Values:
    """All of them, in order. `counts`: the records of each part."""
    if all(part.arrow for part in parts):
        with _checked_arrow() as arrow_values:
            if arrow := arrow_values.joined([part.arrow for part in parts], counts):
                return Values(arrow=arrow)
    as_bytes = [part.as_bytes(records) for part, records in zip(parts, counts, strict=True)]
    return Values(columns.join_bytes([part.column for part in as_bytes]))


@contextmanager
def _checked_arrow() -> Iterator[ModuleType]:
    """What reads Arrow columns. Raises `UdfError` where it raises `ValueError`."""
    try:
        yield _arrow_values()
    except ValueError as error:
        raise UdfError(
            codes.FUNCTION_PROTOCOL, f"a function breaks its protocol: its answer does not fit: {error}"
        ) from error


def reads_arrow() -> bool:
    """Whether this process could read Arrow columns."""
    return find_spec("pyarrow") is not None


def _arrow_values() -> ModuleType:
    if not reads_arrow():
        raise UserError(
            codes.EXTRA_NEEDED,
            "frames whose values are Arrow columns need the package pyarrow, which is not installed here: "
            "`pip install 'millstream[arrow]'`",
        )
    # Only a few processes ever need it.
    from millstream_udf import arrow_values

    return arrow_values
