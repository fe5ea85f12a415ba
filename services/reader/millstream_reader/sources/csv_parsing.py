"""From lines of a CSV file to records: each row becomes a JSON object with a member per column. Pure.

As `parsing`, but a row goes over several lines when a quoted field has newlines in it. Rows are taken apart by
Python's csv module, in its strict mode; the JSON is then written column by column, which is several times faster than
row by row. A row that cannot be read is reported by its first line, and reading goes on at the next line.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from io import StringIO
from itertools import islice
from json.encoder import encode_basestring
from typing import NamedTuple

from millstream.errors import UserError
from millstream.limits import RECORD_BYTES_MAX
from millstream_reader.sources.extract import Extraction, shown, time_parser
from millstream_reader.sources.parsing import InvalidLine, Parsed, normal_encoding

# The module's own limit of 128 KiB a field is the process's; a record of ours may be one field.
csv.field_size_limit(RECORD_BYTES_MAX)

_BOOLEANS = {"true": "true", "false": "false", "t": "true", "f": "false", "1": "true", "0": "false"}
_rfc3339 = time_parser("rfc3339")


class CsvFormat(NamedTuple):
    """How the CSV text of one source is written."""

    delimiter: str = ","
    has_header: bool = True
    types: tuple[tuple[str, str], ...] = ()
    """Name and type of columns, in order; those not named are strings. All of them when there is no header."""


class Row(NamedTuple):
    """One row and the lines it stands on."""

    fields: list[str]
    first_line: int
    lines: int


def read_header(lines: Sequence[bytes], encoding: str, csv_format: CsvFormat, *, final: bool) -> Row | None:
    """The row that names the columns; None when it has not ended within `lines`.

    Errors: `ValueError` when it cannot be read or names no columns.
    """
    text = b"\n".join(lines).decode(normal_encoding(encoding))
    reader = csv.reader(StringIO(text), delimiter=csv_format.delimiter, strict=True)
    try:
        fields = next(reader, None)
    except csv.Error as error:
        if not final and reader.line_num >= len(lines):
            return None
        raise ValueError(f"the header is not a CSV row: {error}") from None
    if not fields:
        raise ValueError("the first line is empty, and should name the columns")
    if repeated := {name for name in fields if fields.count(name) > 1}:
        raise ValueError(f"the header names the column `{min(repeated)}` twice")
    return Row(fields, 0, reader.line_num)


def check_columns(names: Sequence[str], csv_format: CsvFormat, extraction: Extraction, where: str) -> None:
    """Every column that the spec speaks of is there. Errors: `UserError`."""
    wanted = [(name, "csv.columns") for name, _ in csv_format.types]
    wanted += [(name, "keys") for name in extraction.key_fields]
    if extraction.time_field is not None:
        wanted.append((extraction.time_field, "eventTime.field"))
    for name, spec_field in wanted:
        if name not in names:
            listed = ", ".join(f"`{known}`" for known in names)
            raise UserError(
                f"{where}: there is no column `{name}`, which `{spec_field}` names; the columns are {listed}. "
                "Correct the spec or the file"
            )


class CsvParser:
    """Rows under one header."""

    def __init__(self, names: Sequence[str], *, encoding: str, csv_format: CsvFormat, extraction: Extraction) -> None:
        """`names` have been checked by `check_columns`."""
        self._encoding = normal_encoding(encoding)
        self._names = list(names)
        self._delimiter = csv_format.delimiter
        self._extraction = extraction
        types = dict(csv_format.types)
        self._encoders = [_ENCODERS[types.get(name, "string")] for name in names]
        members = ",".join(encode_basestring(name).replace("%", "%%") + ":%s" for name in names)
        self._template = "{" + members + "}"
        self._time_index = names.index(extraction.time_field) if extraction.time_field is not None else -1
        self._key_indexes = [names.index(name) for name in extraction.key_fields]

    def parse(self, lines: Sequence[bytes], records_max: int, *, final: bool) -> Parsed:
        text = b"\n".join(lines).decode(self._encoding, "surrogateescape")
        invalid: list[InvalidLine] = []
        rows, used = self._rows(text, lines, invalid, records_max, final=final)
        parsed = Parsed(used, invalid=invalid)
        fitting = [row for row in rows if len(row.fields) == len(self._names)]
        if len(fitting) != len(rows):
            self._report_misfits(rows, lines, invalid)
        try:
            self._encode_all(fitting, parsed)
        except ValueError:
            self._encode_each(fitting, lines, parsed)
        invalid.sort(key=lambda item: item.line)
        return parsed

    def _rows(
        self, text: str, lines: Sequence[bytes], invalid: list[InvalidLine], records_max: int, *, final: bool
    ) -> tuple[list[Row], int]:
        """Rows of the lines, and how many lines they use up."""
        if len(lines) > records_max:
            return self._rows_one_by_one(text, lines, invalid, records_max, final=final)
        reader = csv.reader(StringIO(text), delimiter=self._delimiter, strict=True)
        try:
            fields = list(reader)
        except csv.Error:
            return self._rows_one_by_one(text, lines, invalid, records_max, final=final)
        # An empty last line is no line to the reader.
        if len(fields) == reader.line_num:
            return [Row(row, index, 1) for index, row in enumerate(fields)], len(lines)
        return self._rows_one_by_one(text, lines, invalid, records_max, final=final)

    def _rows_one_by_one(
        self, text: str, lines: Sequence[bytes], invalid: list[InvalidLine], records_max: int, *, final: bool
    ) -> tuple[list[Row], int]:
        texts = [line + "\n" for line in text.split("\n")]
        rows: list[Row] = []
        base = 0
        reader = csv.reader(texts, delimiter=self._delimiter, strict=True)
        while True:
            first = base + reader.line_num
            if len(rows) + len(invalid) >= records_max:
                return rows, first
            try:
                fields = next(reader, None)
            except csv.Error as error:
                # 1. A quoted field is open where the lines end: more lines may close it.
                if base + reader.line_num >= len(texts) and str(error) == "unexpected end of data" and not final:
                    return rows, first
                # 2. The row is wrong. Its end is not known, so reading goes on at the next line.
                invalid.append(InvalidLine(first, lines[first], f"not a CSV row: {error}"))
                base = first + 1
                reader = csv.reader(islice(texts, base, None), delimiter=self._delimiter, strict=True)
                continue
            if fields is None:
                return rows, len(lines)
            rows.append(Row(fields, first, base + reader.line_num - first))

    def _report_misfits(self, rows: list[Row], lines: Sequence[bytes], invalid: list[InvalidLine]) -> None:
        for row in rows:
            # A line without anything on it is no row.
            if row.fields and len(row.fields) != len(self._names):
                reason = f"the row has {len(row.fields)} fields, and there are {len(self._names)} columns"
                invalid.append(InvalidLine(row.first_line, _raw(row, lines), reason))

    def _encode_all(self, rows: list[Row], parsed: Parsed) -> None:
        """All rows at once, by columns; `ValueError` when one of them is invalid."""
        if not rows:
            return
        columns = list(zip(*[row.fields for row in rows], strict=True))
        encoded = [list(map(encode, column)) for encode, column in zip(self._encoders, columns, strict=True)]
        template = self._template
        texts = [template % members for members in zip(*encoded, strict=True)]
        # JSON text has no raw newline, so this is one encoding instead of one per row.
        parsed.values = "\n".join(texts).encode().split(b"\n")
        if self._time_index >= 0:
            parsed.event_times_us = list(map(self._extraction.parse_time, columns[self._time_index]))
        if self._key_indexes:
            parts = [[text.encode() for text in columns[index]] for index in self._key_indexes]
            parsed.keys = list(zip(*parts, strict=True))

    def _encode_each(self, rows: list[Row], lines: Sequence[bytes], parsed: Parsed) -> None:
        """Row by row, to find the invalid ones."""
        values: list[bytes] = []
        times: list[int] = []
        keys: list[tuple[bytes, ...]] = []
        for row in rows:
            try:
                value = self._encode(row.fields)
                time_us = self._event_time_us(row.fields) if self._time_index >= 0 else 0
            except ValueError as error:
                parsed.invalid.append(InvalidLine(row.first_line, _raw(row, lines), str(error)))
                continue
            values.append(value)
            times.append(time_us)
            keys.append(tuple(row.fields[index].encode() for index in self._key_indexes))
        parsed.values = values
        parsed.event_times_us = times if self._time_index >= 0 else None
        parsed.keys = keys if self._key_indexes else None

    def _encode(self, fields: list[str]) -> bytes:
        members = []
        for name, encode, text in zip(self._names, self._encoders, fields, strict=True):
            try:
                text.encode()
                members.append(encode(text))
            except UnicodeEncodeError:
                raise ValueError(f"column `{name}`: {shown(text)} is not {self._encoding} text") from None
            except ValueError as error:
                raise ValueError(f"column `{name}`: {error}") from None
        return (self._template % tuple(members)).encode()

    def _event_time_us(self, fields: list[str]) -> int:
        try:
            return self._extraction.parse_time(fields[self._time_index])
        except ValueError as error:
            raise ValueError(f"event time `{self._extraction.time_field}`: {error}") from None


def _raw(row: Row, lines: Sequence[bytes]) -> bytes:
    return b"\n".join(lines[row.first_line : row.first_line + row.lines])


def _int_member(text: str) -> str:
    if not text:
        return "null"
    try:
        if "_" not in text:
            return str(int(text))
    except ValueError:
        pass
    raise ValueError(f"{shown(text)} is not a whole number")


def _float_member(text: str) -> str:
    if not text:
        return "null"
    try:
        number = float(text)
        if math.isfinite(number) and "_" not in text:
            return repr(number)
    except ValueError:
        pass
    raise ValueError(f"{shown(text)} is not a number")


def _bool_member(text: str) -> str:
    if not text:
        return "null"
    member = _BOOLEANS.get(text.lower())
    if member is None:
        raise ValueError(f"{shown(text)} is not true or false")
    return member


def _timestamp_member(text: str) -> str:
    if not text:
        return "null"
    _rfc3339(text)
    return encode_basestring(text)


_ENCODERS: dict[str, Callable[[str], str]] = {
    "string": encode_basestring,
    "int": _int_member,
    "float": _float_member,
    "bool": _bool_member,
    "timestamp": _timestamp_member,
}
