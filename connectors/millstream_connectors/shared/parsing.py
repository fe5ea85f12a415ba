"""Converts lines of a file to records: plain lines and JSON lines. Pure.

Above it: `text_file`, which splits a file into lines. A parser takes some of the lines and returns the number it has
consumed; it does not know files or offsets. CSV, where a row may have several lines, is in `csv_parsing`.
"""

from __future__ import annotations

import codecs
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from millstream.exact_json import parse, parse_all
from millstream.extract import Extraction, shown
from millstream.json_text import all_json
from millstream.values import Values

UTF_8 = "utf-8"


class InvalidLine(NamedTuple):
    """Input that is not a record, with the index of its first line in the parser's input."""

    line: int
    raw: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class SealedRecords:
    """Records that are already in the columns of a frame."""

    records: int
    size: int
    """Bytes of all values."""
    values: Values
    event_times_us: array[int] | None
    """As in `ParsedLines`."""
    keys_column: bytes


@dataclass(slots=True)
class ParsedLines:
    """The result of parsing some lines."""

    lines: int
    """Number of consumed lines. The rest has to be passed again, followed by more."""
    values: list[bytes] = field(default_factory=list)
    event_times_us: list[int] | None = None
    """Event times; None if the source does not configure them."""
    keys: list[tuple[bytes, ...]] | None = None
    """Keys; None if the source does not configure them."""
    invalid: list[InvalidLine] = field(default_factory=list)
    sealed: SealedRecords | None = None
    """The complete columns, instead of values, times and keys."""

    @property
    def records(self) -> int:
        return self.sealed.records if self.sealed is not None else len(self.values)

    @property
    def size(self) -> int:
        """Bytes of all values."""
        return self.sealed.size if self.sealed is not None else sum(map(len, self.values))


class Parser(Protocol):
    """One format, set up for one file."""

    def parse(self, lines: Sequence[bytes], records_max: int, *, final: bool) -> ParsedLines:
        """At most `records_max` records of `lines` (without their newlines).

        `final`: no lines follow, so a row that does not end here never will.
        """


class LineParser:
    """A record per line: its text, or a JSON value that is checked."""

    def __init__(self, *, encoding: str, json_lines: bool, extraction: Extraction) -> None:
        self._encoding = normal_encoding(encoding)
        self._json_lines = json_lines
        self._reads_json = json_lines or extraction.reads_value
        self._extraction = extraction

    def parse(self, lines: Sequence[bytes], records_max: int, *, final: bool) -> ParsedLines:
        lines = lines[:records_max]
        parsed = ParsedLines(len(lines))
        if any(line.endswith(b"\r") for line in lines):
            lines = [line.removesuffix(b"\r") for line in lines]
        try:
            self._parse_all(lines, parsed)
        except ValueError:
            self._parse_each(lines, parsed)
        return parsed

    def _parse_all(self, lines: Sequence[bytes], parsed: ParsedLines) -> None:
        """Parses all lines at once. Raises `ValueError` if one of them is invalid."""
        extraction = self._extraction
        if self._encoding != UTF_8:
            values = "\n".join([line.decode(self._encoding) for line in lines]).encode().split(b"\n") if lines else []
        else:
            values = list(lines)
            if not self._reads_json:
                b"\n".join(lines).decode()
        if self._json_lines:
            values = [value for value in values if value and not value.isspace()]
        if self._reads_json and (extraction.reads_value or not all_json(values)):
            objects = parse_all(values)
            if objects is None:
                raise ValueError
            if extraction.time_field is not None:
                parsed.event_times_us = [extraction.event_time_us(item) for item in objects]
            if extraction.key_fields:
                parsed.keys = [extraction.keys(item) for item in objects]
        parsed.values = values

    def _parse_each(self, lines: Sequence[bytes], parsed: ParsedLines) -> None:
        """Line by line, to find the invalid ones."""
        extraction = self._extraction
        times: list[int] = []
        keys: list[tuple[bytes, ...]] = []
        for index, line in enumerate(lines):
            if self._json_lines and not line.strip():
                continue
            try:
                value = decoded(line, self._encoding).encode()
                item = checked_json(value) if self._reads_json else None
                time_us = extraction.event_time_us(item) if extraction.time_field is not None else 0
                parts = extraction.keys(item)
            except ValueError as error:
                parsed.invalid.append(InvalidLine(index, line, str(error)))
                continue
            parsed.values.append(value)
            times.append(time_us)
            keys.append(parts)
        parsed.event_times_us = times if extraction.time_field is not None else None
        parsed.keys = keys if extraction.key_fields else None


def normal_encoding(encoding: str) -> str:
    """The codec's canonical name. A byte order mark is handled at the beginning of a file, so it needs no special
    codec."""
    name = codecs.lookup(encoding).name
    return UTF_8 if name == "utf-8-sig" else name


def decoded(line: bytes, encoding: str) -> str:
    """The text of a line. Errors: `ValueError` with the place that is not in the encoding."""
    try:
        return line.decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(f"byte 0x{line[error.start]:02x} in column {error.start + 1} is not {encoding} text") from None


def checked_json(value: bytes) -> Any:
    """A JSON value. Errors: `ValueError` that shows it."""
    try:
        return parse(value)
    except ValueError as error:
        raise ValueError(f"{shown(value.decode('utf-8', 'replace'))} is not a JSON value: {error}") from None
