"""From lines of a CSV file to records: each row becomes a JSON object with a member per column. Pure.

Like `parsing`, but a row spans several lines if a quoted field contains newlines. Python's csv module splits the rows,
in its strict mode. The JSON is then written column by column, which is several times faster than row by row. A row that
cannot be read is reported by its first line, and reading continues at the next line.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import StringIO
from itertools import islice
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, NamedTuple

from millstream import codes
from millstream.errors import UserError
from millstream.extract import Extraction, shown
from millstream_connectors.file.source.csv_members import ENCODERS, Encoder, float_member, int_member
from millstream_connectors.shared.parsing import InvalidLine, ParsedLines, decoded, normal_encoding

if TYPE_CHECKING:
    from millstream_connectors.file.source.csv_arrow import ArrowRows

# The module's own limit is 128 KiB per field, for the whole process. Here, the amount that is parsed at once is the
# limit.
csv.field_size_limit(2**31 - 1)


_TO_ESCAPE = re.compile(r'[\x00-\x09\x0b-\x1f"\\]')
"""Characters that JSON text must escape, and CSV quotes. Without quotes, newlines separate rows."""


class CsvFormat(NamedTuple):
    """The CSV dialect of one source."""

    delimiter: str = ","
    has_header: bool = True
    types: tuple[tuple[str, str], ...] = ()
    """Name and type of columns, in order; unlisted ones are strings. All columns if there is no header."""


class Header(NamedTuple):
    """The names of the columns, and the number of lines of the header."""

    names: list[str]
    lines: int


@dataclass(slots=True)
class _Rows:
    """Split rows, and their places."""

    fields: list[list[str]]
    lines: int
    """Number of lines consumed."""
    places: list[range] | None = None
    """The lines of each row; None if every row has one line and none is omitted."""

    def place(self, index: int) -> range:
        return self.places[index] if self.places is not None else range(index, index + 1)

    def without(self, misfits: list[int]) -> _Rows:
        """A copy without these rows."""
        left_out = set(misfits)
        kept = [index for index in range(len(self.fields)) if index not in left_out]
        return _Rows([self.fields[index] for index in kept], self.lines, [self.place(index) for index in kept])


def read_header(lines: Sequence[bytes], encoding: str, csv_format: CsvFormat, *, final: bool) -> Header | None:
    """The row that names the columns; None if it does not end within `lines`.

    Errors: `ValueError` when it cannot be read or names no columns.
    """
    texts = (decoded(line, normal_encoding(encoding)) + "\n" for line in lines)
    reader = csv.reader(texts, delimiter=csv_format.delimiter, strict=True)
    try:
        fields = next(reader, None)
    except csv.Error as error:
        if not final and reader.line_num >= len(lines):
            return None
        raise ValueError(f"the header is not a CSV row: {error}") from None
    if not fields:
        raise ValueError("the first line is empty; it must name the columns")
    if repeated := {name for name in fields if fields.count(name) > 1}:
        raise ValueError(f"the header names the column `{min(repeated)}` twice")
    return Header(fields, reader.line_num)


def check_columns(names: Sequence[str], csv_format: CsvFormat, extraction: Extraction, where: str) -> None:
    """Check that every column in the spec exists. Errors: `UserError`."""
    wanted = [(name, "csv.columns") for name, _ in csv_format.types]
    wanted += [(name, "keys") for name in extraction.key_fields]
    if extraction.time_field is not None:
        wanted.append((extraction.time_field, "eventTime.field"))
    for name, spec_field in wanted:
        if name not in names:
            listed = ", ".join(f"`{known}`" for known in names)
            raise UserError(
                codes.SOURCE_COLUMNS,
                f"{where}: there is no column `{name}`, which `{spec_field}` names; the columns are {listed}. "
                "Correct the spec or the file",
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
        self._types = [types.get(name, "string") for name in names]
        self._encoders = [ENCODERS[name] for name in self._types]
        self._template = self._object_of(["%s"] * len(names))
        # Text without anything to escape is quoted unchanged.
        self._plain_template = self._object_of(
            ['"%s"' if encode is encode_basestring else "%s" for encode in self._encoders]
        )
        self._typed = [
            (index, encode) for index, encode in enumerate(self._encoders) if encode is not encode_basestring
        ]
        self._arrow: ArrowRows | None = None
        self._time_index = names.index(extraction.time_field) if extraction.time_field is not None else -1
        self._key_indexes = [names.index(name) for name in extraction.key_fields]

    def _object_of(self, members: list[str]) -> str:
        names = [encode_basestring(name).replace("%", "%%") for name in self._names]
        return "{" + ",".join(f"{name}:{member}" for name, member in zip(names, members, strict=True)) + "}"

    def use_arrow(self) -> None:
        """Blocks. Arrow parses lines without quotes from now on, if it is installed and supports the delimiter. The
        records are the same."""
        if self._arrow is not None or not self._delimiter.isascii():
            return
        try:
            from millstream_connectors.file.source.csv_arrow import ArrowRows
        except ImportError:
            return
        self._arrow = ArrowRows(
            self._names,
            self._types,
            encoding=self._encoding,
            delimiter=self._delimiter,
            extraction=self._extraction,
        )

    def parse(self, lines: Sequence[bytes], records_max: int, *, final: bool) -> ParsedLines:
        if self._arrow is not None and 0 < len(lines) <= records_max:
            parsed = self._arrow.parse(lines)
            if parsed is not None:
                return parsed
        text = b"\n".join(lines).decode(self._encoding, "surrogateescape")
        invalid: list[InvalidLine] = []
        rows = self._rows(text, lines, invalid, records_max, final=final)
        misfits = [index for index, fields in enumerate(rows.fields) if len(fields) != len(self._names)]
        if misfits:
            self._report(rows, misfits, lines, invalid)
            rows = rows.without(misfits)
        parsed = ParsedLines(rows.lines, invalid=invalid)
        if rows.fields:
            try:
                self._encode_all(rows.fields, parsed, plain=_TO_ESCAPE.search(text) is None)
            except ValueError:
                self._encode_each(rows, lines, parsed)
        invalid.sort(key=lambda item: item.line)
        return parsed

    def _rows(
        self, text: str, lines: Sequence[bytes], invalid: list[InvalidLine], records_max: int, *, final: bool
    ) -> _Rows:
        if len(lines) <= records_max:
            reader = csv.reader(StringIO(text), delimiter=self._delimiter, strict=True)
            with suppress(csv.Error):
                fields = list(reader)
                # An empty last line is not a line to the reader.
                if len(fields) == reader.line_num:
                    return _Rows(fields, len(lines))
        return self._rows_one_by_one(text, lines, invalid, records_max, final=final)

    def _rows_one_by_one(
        self, text: str, lines: Sequence[bytes], invalid: list[InvalidLine], records_max: int, *, final: bool
    ) -> _Rows:
        texts = [line + "\n" for line in text.split("\n")]
        rows: list[list[str]] = []
        places: list[range] = []
        base = 0
        reader = csv.reader(texts, delimiter=self._delimiter, strict=True)
        while True:
            first = base + reader.line_num
            if len(rows) + len(invalid) >= records_max:
                return _Rows(rows, first, places)
            try:
                fields = next(reader, None)
            except csv.Error as error:
                # 1. A quoted field is open at the end of the lines: more lines may close it.
                if base + reader.line_num >= len(texts) and str(error) == "unexpected end of data" and not final:
                    return _Rows(rows, first, places)
                # 2. The row is invalid. Its end is not known, so reading continues at the next line.
                invalid.append(InvalidLine(first, lines[first], f"not a CSV row: {error}"))
                base = first + 1
                reader = csv.reader(islice(texts, base, None), delimiter=self._delimiter, strict=True)
                continue
            if fields is None:
                return _Rows(rows, len(lines), places)
            rows.append(fields)
            places.append(range(first, base + reader.line_num))

    def _report(self, rows: _Rows, misfits: list[int], lines: Sequence[bytes], invalid: list[InvalidLine]) -> None:
        for index in misfits:
            count = len(rows.fields[index])
            # An empty line is not a row.
            if count:
                reason = f"the row has {count} fields, but there are {len(self._names)} columns"
                invalid.append(InvalidLine(rows.place(index).start, _raw(rows.place(index), lines), reason))

    def _encode_all(self, rows: list[list[str]], parsed: ParsedLines, *, plain: bool) -> None:
        """Encodes all rows at once. Raises `ValueError` if one is invalid. `plain`: no text has anything to escape."""
        if self._time_index >= 0:
            parsed.event_times_us = [self._extraction.parse_time(row[self._time_index]) for row in rows]
        if self._key_indexes:
            parsed.keys = [tuple([row[index].encode() for index in self._key_indexes]) for row in rows]
        if plain:
            template, members = self._plain_template, self._typed
        else:
            template, members = self._template, list(enumerate(self._encoders))
        if members:
            columns: list[Sequence[object]] = list(zip(*rows, strict=True))
            for index, encode in members:
                columns[index] = _encode_column(encode, [row[index] for row in rows])
            texts = [template % row for row in zip(*columns, strict=True)]
        else:
            texts = [template % tuple(row) for row in rows]
        # JSON text has no raw newline, so all rows can be encoded together.
        parsed.values = "\n".join(texts).encode().split(b"\n")

    def _encode_each(self, rows: _Rows, lines: Sequence[bytes], parsed: ParsedLines) -> None:
        """Row by row, to find the invalid ones."""
        values: list[bytes] = []
        times: list[int] = []
        keys: list[tuple[bytes, ...]] = []
        for index, fields in enumerate(rows.fields):
            try:
                value = self._encode(fields)
                time_us = self._event_time_us(fields) if self._time_index >= 0 else 0
            except ValueError as error:
                place = rows.place(index)
                parsed.invalid.append(InvalidLine(place.start, _raw(place, lines), str(error)))
                continue
            values.append(value)
            times.append(time_us)
            keys.append(tuple(fields[index].encode() for index in self._key_indexes))
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


def _encode_column(encode: Encoder, texts: list[str]) -> Sequence[object]:
    """The members of a column. The template converts plain numbers to text."""
    if encode in (int_member, float_member) and "" not in texts and "_" not in "".join(texts):
        if encode is int_member:
            return list(map(int, texts))
        numbers = list(map(float, texts))
        if all(map(math.isfinite, numbers)):
            return numbers
    return list(map(encode, texts))


def _raw(place: range, lines: Sequence[bytes]) -> bytes:
    return b"\n".join(lines[place.start : place.stop])
