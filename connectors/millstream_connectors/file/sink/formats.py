"""The form of records in files: JSON lines, CSV, and the common part of all formats. Pure.

A format converts a frame's records to rows, and returns failures for those that it cannot convert, the same ones at
every attempt. A body creates the bytes of one file from rows. Parquet is in `parquet.py`, because it needs Arrow.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from types import NoneType
from typing import Any, Generic, Protocol, TypeVar

from millstream.exact_json import double_of, number_of, parse, parse_all, text_of
from millstream.frame import Frame
from millstream.json_text import all_json, members_reader
from millstream_connectors.shared.columns import Column
from millstream_connectors.shared.converting import convert_each
from millstream_connectors.shared.json_rows import NOT_JSON, json_objects, one_line
from millstream_writer.sink import SinkFailure

NOT_A_LINE = "value has a line break"
WRONG_TYPE = "column has another type"

_RowsT = TypeVar("_RowsT")
_AddedT = TypeVar("_AddedT", contravariant=True)

Cell = str | int | float | bool | datetime | None


@dataclass(frozen=True, slots=True)
class StorableRows(Generic[_RowsT]):
    """The records of a frame that can be stored, and the others."""

    rows: Sequence[int]
    """Their indexes in the frame, ascending."""
    content: _RowsT
    """One item or row for each of `rows`."""
    size: int
    """Approximate uncompressed size in bytes."""
    failures: Sequence[SinkFailure] = ()
    """Failures of the other records."""


class Body(Protocol[_AddedT]):
    """The content of one file, as it grows."""

    def add(self, content: _AddedT, start: int, stop: int) -> bytes:
        """Add rows `start` to `stop` of a `StorableRows.content`. Returns bytes to append, perhaps none yet."""

    def finish(self) -> bytes:
        """The last bytes."""


class FileFormat(Protocol[_RowsT]):
    """One format with its columns."""

    @property
    def extension(self) -> str:
        """Of the names of files."""

    def convert(self, frame: Frame) -> StorableRows[_RowsT]:
        """The rows of a frame's records."""

    def begin(self) -> Body[_RowsT]:
        """The content of a new file."""


class CaughtBytes(io.BytesIO):
    """A file object for a library that writes a whole file; its content is taken as it grows."""

    def take(self) -> bytes:
        """What was written since the last call."""
        data = self.getvalue()
        self.seek(0)
        self.truncate()
        return data


class TextBody:
    """Lines, after an optional header."""

    def __init__(self, heading: bytes) -> None:
        self._heading = heading

    def add(self, content: Sequence[bytes], start: int, stop: int) -> bytes:
        data = self._heading + b"".join(content[start:stop])
        self._heading = b""
        return data

    def finish(self) -> bytes:
        return b""


class _TextLines:
    """The common part of formats with a line for each record."""

    heading = b""

    def begin(self) -> TextBody:
        return TextBody(self.heading)


def _line_rows(
    lines: Sequence[bytes], rows: Sequence[int] | None = None, failures: Sequence[SinkFailure] = ()
) -> StorableRows[Sequence[bytes]]:
    """`rows`: the indexes of their records; None if all have one."""
    return StorableRows(range(len(lines)) if rows is None else rows, lines, sum(map(len, lines)), failures)


class JsonLines(_TextLines):
    """Each record's JSON value unchanged, on its own line."""

    extension = "jsonl"

    def convert(self, frame: Frame) -> StorableRows[Sequence[bytes]]:
        values = frame.values()
        if not all_json(values) and parse_all(values) is None:
            # To find those that are not JSON.
            found = convert_each(zip(values, strict=True), _parsed_line, misfit=NOT_JSON)
            return _line_rows(found.made, found.rows, found.failures)
        joined = b"".join(values)
        on_lines = b"\n" not in joined and b"\r" not in joined
        return _line_rows([value + b"\n" for value in (values if on_lines else map(one_line, values))])


def _parsed_line(value: bytes) -> bytes:
    parse(value)
    return one_line(value) + b"\n"


class Lines(_TextLines):
    """Each record's bytes unchanged, on its own line, as `lines` of a file source reads them."""

    extension = "txt"

    def convert(self, frame: Frame) -> StorableRows[Sequence[bytes]]:
        lines: list[bytes] = []
        rows: list[int] = []
        failures: list[SinkFailure] = []
        for row, value in enumerate(frame.values()):
            # The source drops a carriage return before the end of a line.
            if b"\n" in value or value.endswith(b"\r"):
                failures.append(SinkFailure(row, NOT_A_LINE, retryable=False))
                continue
            lines.append(value + b"\n")
            rows.append(row)
        return _line_rows(lines, rows, failures)


class Csv(_TextLines):
    """Members of a JSON object as columns, after a line with their names. An absent or null member is an empty field,
    an empty text is `""`."""

    extension = "csv"

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self.heading = ",".join(_csv_text(column.name) for column in columns).encode() + b"\n"
        self._members = members_reader({column.name: Any for column in columns}, number_of)

    def convert(self, frame: Frame) -> StorableRows[Sequence[bytes]]:
        values = frame.values()
        lines = self._lines(values)
        if lines is not None:
            return _line_rows(lines)
        cells, rows, failures = convert_cells(values, self._columns)
        lines = [",".join(map(_csv_field, row_cells)).encode() + b"\n" for row_cells in cells]
        return _line_rows(lines, rows, failures)

    def _lines(self, values: Sequence[bytes]) -> list[bytes] | None:
        """A line for each record, built column by column; None if one of them may not fit."""
        read = self._members(values) if self._columns else None
        if not read:
            return None
        try:
            fields = [
                _csv_column(list(members), column.type)
                for members, column in zip(zip(*read, strict=True), self._columns, strict=True)
            ]
            return [",".join(row).encode() + b"\n" for row in zip(*fields, strict=True)]
        except (ValueError, OverflowError):
            return None


def convert_cells(
    values: Sequence[bytes], columns: Sequence[Column]
) -> tuple[Sequence[list[Cell]], Sequence[int], list[SinkFailure]]:
    """The declared columns of each JSON object, the indexes of these records, and the failures of those that do not
    fit."""
    parts = [(column.name, _CONVERTERS[column.type]) for column in columns]
    objects, failures = json_objects(values)
    records = ((parsed, parts) for parsed in objects.values())
    found = convert_each(records, _cells_of, misfit=WRONG_TYPE, shows_value=True, indexes=objects)
    return found.made, found.rows, sorted([*failures, *found.failures], key=lambda failure: failure.index)


def _cells_of(parsed: Mapping[str, object], parts: Sequence[tuple[str, Callable[[object], Cell]]]) -> list[Cell]:
    cells: list[Cell] = []
    for name, converter in parts:
        member = parsed.get(name)
        try:
            cells.append(None if member is None else converter(member))
        except (ValueError, OverflowError) as error:
            raise ValueError(f"column {name}: {error}") from None
    return cells


def _string(member: object) -> Cell:
    if not isinstance(member, str):
        raise ValueError(f"{_shown(member)} is not a string")
    try:
        member.encode()
    except UnicodeEncodeError:
        raise ValueError("an unpaired surrogate cannot be stored as text") from None
    return member


def _int(member: object) -> Cell:
    if isinstance(member, bool) or not isinstance(member, int) or not -(2**63) <= member < 2**63:
        raise ValueError(f"{_shown(member)} is not a 64-bit integer")
    return member


def _float(member: object) -> Cell:
    if isinstance(member, bool) or not isinstance(member, int | Decimal):
        raise ValueError(f"{_shown(member)} is not a 64-bit number")
    return double_of(member)


def _bool(member: object) -> Cell:
    if not isinstance(member, bool):
        raise ValueError(f"{_shown(member)} is neither true nor false")
    return member


def _timestamp(member: object) -> Cell:
    if not isinstance(member, str):
        raise ValueError(f"{_shown(member)} is not a time")
    try:
        moment = datetime.fromisoformat(member)
    except ValueError:
        raise ValueError(f"{_shown(member)} is not an RFC 3339 time") from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


_CONVERTERS: Mapping[str, Callable[[object], Cell]] = {
    "string": _string,
    "int": _int,
    "float": _float,
    "bool": _bool,
    "timestamp": _timestamp,
}

_CSV_QUOTED = re.compile(r'[",\r\n]|^\s|\s$|^$')
_CSV_QUOTED_LINES = re.compile(r'[",\r]|^\s|\s$|^$', re.MULTILINE)
"""The same for texts with newlines between them."""


def _csv_text(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if _CSV_QUOTED.search(text) else text


_CSV_FIELDS: Mapping[type, Callable[[Any], str]] = {
    NoneType: lambda _: "",
    str: _csv_text,
    bool: lambda cell: "true" if cell else "false",
    int: repr,
    float: repr,
    datetime: lambda cell: cell.isoformat().replace("+00:00", "Z"),
}


def _csv_field(cell: Cell) -> str:
    return _CSV_FIELDS[type(cell)](cell)


_KINDS: Mapping[str, frozenset[type]] = {
    "string": frozenset((str, NoneType)),
    "int": frozenset((int, NoneType)),
    "float": frozenset((int, Decimal, NoneType)),
    "bool": frozenset((bool, NoneType)),
    "timestamp": frozenset((str, NoneType)),
}
"""The Python types that a column's converter accepts. True and 1 are equal, so types are checked before values."""


def _csv_column(members: list[Any], type_name: str) -> Sequence[str]:
    """The field of each value, with the same result as the column's converter and `_csv_field`. Errors: `ValueError`,
    `OverflowError`."""
    kinds = frozenset(map(type, members))
    if not kinds <= _KINDS[type_name]:
        raise ValueError
    if type_name == "float":
        return ["" if member is None else repr(double_of(member)) for member in members]
    if NoneType not in kinds:
        if type_name == "int" and min(members) >= -(2**63) and max(members) < 2**63:
            return list(map(str, members))
        if type_name == "string" and _is_plain(members):
            return members
    # Each distinct value once: columns of these types contain repeated values.
    convert = _CONVERTERS[type_name]
    fields = {member: _csv_field(None if member is None else convert(member)) for member in set(members)}
    return [fields[member] for member in members]


def _is_plain(texts: list[str]) -> bool:
    """Whether none of them needs quotes."""
    joined = "\n".join(texts)
    return joined.count("\n") == len(texts) - 1 and _CSV_QUOTED_LINES.search(joined) is None


def _shown(member: object) -> str:
    text = text_of(member)
    return text if len(text) <= 60 else text[:57] + "..."
