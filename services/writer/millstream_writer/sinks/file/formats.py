"""What records look like in a file: JSON lines and CSV, and what every format has in common. Pure.

A format converts a frame's records to rows, and tells which of them it cannot convert; the same records at every
attempt. A body makes the bytes of one file out of rows. Parquet is in `file_parquet.py`, because it needs Arrow.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, NoReturn, Protocol, TypeVar

from millstream.frame import Frame
from millstream.spec.columns import Column
from millstream_writer.sink import SinkFailure

NOT_JSON = "value is not JSON"
NOT_A_LINE = "value has a line break"
NOT_AN_OBJECT = "value is not a JSON object"
WRONG_TYPE = "column has another type"

_RowsT = TypeVar("_RowsT")
_AddedT = TypeVar("_AddedT", contravariant=True)

Cell = str | int | float | bool | datetime | None


@dataclass(frozen=True, slots=True)
class Converted(Generic[_RowsT]):
    """The records of a frame that can be stored."""

    rows: Sequence[int]
    """Which they are, rising."""
    content: _RowsT
    """One item or row for each of `rows`."""
    size: int
    """About how many bytes they take, uncompressed."""
    failures: Sequence[SinkFailure] = ()
    """The others."""


class Body(Protocol[_AddedT]):
    """The content of one file, as it grows."""

    def add(self, content: _AddedT, start: int, stop: int) -> bytes:
        """Take rows `start` to `stop` of some `Converted.content`. Returns bytes to append, maybe none yet."""

    def finish(self) -> bytes:
        """The last bytes."""


class FileFormat(Protocol[_RowsT]):
    """One format with its columns."""

    @property
    def extension(self) -> str: ...

    def convert(self, frame: Frame) -> Converted[_RowsT]: ...

    def begin(self) -> Body[_RowsT]: ...


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


_decode = json.JSONDecoder(parse_constant=_refuse_constant).raw_decode
_SPACE = " \t\n\r"


def parse_json(value: bytes) -> object:
    """The JSON value of a record. Raises `ValueError` for anything else, NaN and Infinity included."""
    text = value.decode().strip(_SPACE)
    try:
        parsed, end = _decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if end != len(text):
        raise ValueError(f"more text after the JSON, at character {end}")
    return parsed


def one_line(json_value: bytes) -> bytes:
    """The same JSON without line breaks.

    They can only stand between its parts, where a space means the same. Encoding again would change numbers.
    """
    return json_value.replace(b"\r", b" ").replace(b"\n", b" ")


class TextBody:
    """Lines one after another, below a heading."""

    def __init__(self, heading: bytes) -> None:
        self._heading = heading

    def add(self, content: Sequence[bytes], start: int, stop: int) -> bytes:
        data = self._heading + b"".join(content[start:stop])
        self._heading = b""
        return data

    def finish(self) -> bytes:
        return b""


class JsonLines:
    """Each record's value as it is, on a line of its own."""

    extension = "jsonl"

    def convert(self, frame: Frame) -> Converted[Sequence[bytes]]:
        lines: list[bytes] = []
        rows: list[int] = []
        failures: list[SinkFailure] = []
        for row, value in enumerate(frame.values()):
            try:
                parse_json(value)
            except ValueError as error:
                failures.append(SinkFailure(row, NOT_JSON, retryable=False, detail=str(error)))
                continue
            lines.append((one_line(value) if b"\n" in value or b"\r" in value else value) + b"\n")
            rows.append(row)
        return Converted(rows, lines, sum(map(len, lines)), failures)

    def begin(self) -> TextBody:
        return TextBody(b"")


class Lines:
    """Each record's bytes as they are, on a line of its own: what the `lines` of a file source reads back."""

    extension = "txt"

    def convert(self, frame: Frame) -> Converted[Sequence[bytes]]:
        lines: list[bytes] = []
        rows: list[int] = []
        failures: list[SinkFailure] = []
        for row, value in enumerate(frame.values()):
            # The source leaves a carriage return before the end of a line out.
            if b"\n" in value or value.endswith(b"\r"):
                failures.append(SinkFailure(row, NOT_A_LINE, retryable=False))
                continue
            lines.append(value + b"\n")
            rows.append(row)
        return Converted(rows, lines, sum(map(len, lines)), failures)

    def begin(self) -> TextBody:
        return TextBody(b"")


class Csv:
    """Members of a JSON object as columns, below a line of names. An absent or null member is an empty field, an empty
    text is `""`."""

    extension = "csv"

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._heading = ",".join(_csv_text(column.name) for column in columns).encode() + b"\n"

    def convert(self, frame: Frame) -> Converted[Sequence[bytes]]:
        cells, rows, failures = convert_cells(frame.values(), self._columns)
        lines = [",".join(map(_csv_field, row_cells)).encode() + b"\n" for row_cells in cells]
        return Converted(rows, lines, sum(map(len, lines)), failures)

    def begin(self) -> TextBody:
        return TextBody(self._heading)


def convert_cells(
    values: Sequence[bytes], columns: Sequence[Column]
) -> tuple[list[list[Cell]], list[int], list[SinkFailure]]:
    """The declared columns of each JSON object, which records they are of, and those that do not fit."""
    parts = [(column.name, _CONVERTERS[column.type]) for column in columns]
    cells: list[list[Cell]] = []
    rows: list[int] = []
    failures: list[SinkFailure] = []
    for row, value in enumerate(values):
        try:
            parsed = parse_json(value)
        except ValueError as error:
            failures.append(SinkFailure(row, NOT_JSON, retryable=False, detail=str(error)))
            continue
        if not isinstance(parsed, dict):
            failures.append(SinkFailure(row, NOT_AN_OBJECT, retryable=False))
            continue
        try:
            cells.append(_cells_of(parsed, parts))
            rows.append(row)
        except ValueError as error:
            failures.append(SinkFailure(row, WRONG_TYPE, retryable=False, detail=str(error), shows_value=True))
    return cells, rows, failures


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
        raise ValueError(f"{_shown(member)} is not a text")
    try:
        member.encode()
    except UnicodeEncodeError:
        raise ValueError("half a surrogate pair cannot be stored as text") from None
    return member


def _int(member: object) -> Cell:
    if isinstance(member, bool) or not isinstance(member, int) or not -(2**63) <= member < 2**63:
        raise ValueError(f"{_shown(member)} is not a whole number of 64 bits")
    return member


def _float(member: object) -> Cell:
    if isinstance(member, bool) or not isinstance(member, int | float) or not math.isfinite(float(member)):
        raise ValueError(f"{_shown(member)} is not a number of 64 bits")
    return float(member)


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


def _csv_text(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if _CSV_QUOTED.search(text) else text


def _csv_field(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, str):
        return _csv_text(cell)
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, datetime):
        return cell.isoformat().replace("+00:00", "Z")
    return repr(cell)


def _shown(member: object) -> str:
    text = json.dumps(member)
    return text if len(text) <= 60 else text[:57] + "..."
