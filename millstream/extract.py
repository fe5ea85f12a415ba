"""Extracts event time and keys from a record. Pure.

Above it: the sources and the built-in functions, which pass JSON values, CSV columns, headers, or times of a server.
It owns the formats of event times, their bounds, and the syntax of a member's path; it does not depend on where a value
came from. A value that cannot be read raises `ValueError` with what was found and what was expected. No other module
converts a time that comes from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any

from millstream.clock import MICROSECONDS

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMES_KEPT = 4096
"""Parsed texts that each parser remembers: neighbouring records often have the same event time."""
_SHOWN = 60
_EXPONENT_MAX = 30
"""Of a number that is a time in any unit."""
YEAR_10000_US = 253_402_300_800 * MICROSECONDS
"""No event time is this late. Milliseconds taken for seconds are, and would make all records after them late."""
YEAR_1_US = -62_135_596_800 * MICROSECONDS
YEAR_1980_US = 315_532_800 * MICROSECONDS
YEAR_2200_US = 7_258_118_400 * MICROSECONDS

TimeParser = Callable[[object], int]
"""Converts a text or number to microseconds since the epoch."""

_UNITS = {
    "epoch": ("seconds", 1),
    "epoch_ms": ("milliseconds", 1000),
    "epoch_us": ("microseconds", MICROSECONDS),
    "epoch_ns": ("nanoseconds", 1000 * MICROSECONDS),
}
"""By format: its unit, and how many of them are a second."""
_PLAUSIBLE_US = range(YEAR_1980_US, YEAR_2200_US)
"""Event times that a number was probably meant as."""


@lru_cache(maxsize=64)
def time_parser(time_format: str) -> TimeParser:
    """The parser for a named format or a strptime pattern."""
    if time_format == "rfc3339":
        return _text_parser(datetime.fromisoformat, "a time such as 2024-01-31T08:00:00Z")
    if time_format in _UNITS:
        return _number_parser(time_format, *_UNITS[time_format])
    # `microseconds_of` takes a time without an offset as UTC.
    return _text_parser(
        lambda text: datetime.strptime(text, time_format),  # noqa: DTZ007
        f"a time of the form {time_format}",
    )


def _text_parser(parse: Callable[[str], datetime], expected: str) -> TimeParser:
    @lru_cache(maxsize=_TIMES_KEPT)
    def parse_text(text: str) -> int:
        try:
            return microseconds_of(parse(text))
        except (ValueError, OverflowError):
            raise ValueError(f"{shown(text)} is not {expected}") from None

    def parse_value(value: object) -> int:
        if not isinstance(value, str):
            raise ValueError(f"{shown(value)} is not {expected}")
        return parse_text(value)

    return parse_value


def _number_parser(name: str, unit: str, per_second: int) -> TimeParser:
    expected = f"{unit} since 1970 ({name})"

    def parse_value(value: object) -> int:
        try:
            time_us = _scaled(value, per_second)
        except (ValueError, ArithmeticError):
            raise ValueError(f"{shown(value)} is not {expected}") from None
        if not YEAR_1_US <= time_us < YEAR_10000_US:
            raise ValueError(
                f"{shown(value)} {expected} is not in the years 1 to 9999; is the unit right?{_unit_hint(value)}"
            )
        return time_us

    return parse_value


def _scaled(value: object, per_second: int) -> int:
    if isinstance(value, str):
        # Digits alone are parsed as an integer, which is exact; a fraction is rounded to microseconds.
        value = int(value) if value.isascii() and value.removeprefix("-").isdecimal() else Decimal(value)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise ValueError
    if isinstance(value, int):
        return value * MICROSECONDS // per_second
    # Exact: a float has too few digits for nanoseconds since 1970.
    exact = Decimal(value)
    if not exact.is_finite() or exact.adjusted() > _EXPONENT_MAX:
        raise ValueError
    whole = int(exact)
    return whole * MICROSECONDS // per_second + round((exact - whole) * MICROSECONDS / per_second)


def _unit_hint(value: object) -> str:
    """The unit in which a number is a time of these centuries, as the end of a message."""
    for unit, per_second in _UNITS.values():
        time_us = _scaled(value, per_second)
        if time_us in _PLAUSIBLE_US:
            moment = (_EPOCH + timedelta(microseconds=time_us)).isoformat(timespec="seconds").removesuffix("+00:00")
            return f" In {unit} it is {moment}Z."
    return ""


RFC3339 = time_parser("rfc3339")
"""The parser for RFC 3339."""
EPOCH_MS = time_parser("epoch_ms")
EPOCH_S = time_parser("epoch")
EPOCH_US = time_parser("epoch_us")
EPOCH_NS = time_parser("epoch_ns")
"""The parsers for the units in which servers give the times of their records."""


def scaled_ms(times_ms: Sequence[int]) -> list[int] | None:
    """Many times in milliseconds since the epoch, in microseconds; None if one of them is not an event time, which
    `EPOCH_MS` then explains."""
    if times_ms and not YEAR_1_US <= 1000 * min(times_ms) <= 1000 * max(times_ms) < YEAR_10000_US:
        return None
    return [1000 * time_ms for time_ms in times_ms]


def microseconds_of(moment: datetime) -> int:
    """Microseconds since the epoch; a time without an offset is UTC."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)


def key_text(value: object) -> str:
    """The key part for a member of a JSON value."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Decimal):
        # Partitions and windows depend on the text: 1.50 and 1.5 are one key, as they are one float.
        number = float(value)
        return repr(number) if Decimal(repr(number)) == value else str(value)
    raise ValueError(f"{shown(value)} is not a text, a number, true or false")


def member(value: object, path: str) -> object:
    """The member of a JSON value at a dotted path. A member whose own name contains the dots takes precedence."""
    found = value
    if isinstance(value, dict) and path in value:
        return value[path]
    for name in path.split("."):
        if not isinstance(found, dict):
            raise ValueError(f"there is no `{path}`: {shown(found)} is not an object")
        if name not in found:
            raise ValueError(f"there is no `{path}` in the record")
        found = found[name]
    return found


def shown(value: object) -> str:
    """A value for a message, shortened if it is long."""
    text = str(value) if isinstance(value, Decimal) else repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


@dataclass(frozen=True, slots=True)
class Extraction:
    """What is extracted from each record of a source."""

    time_field: str | None = None
    """Dotted path of the event time in the JSON value."""
    time_header: str | None = None
    """Header that has the event time."""
    parse_time: TimeParser = RFC3339
    key_fields: tuple[str, ...] = ()
    """Dotted paths of the key parts, in order."""

    @property
    def reads_value(self) -> bool:
        """Whether the value has to be parsed."""
        return self.time_field is not None or bool(self.key_fields)

    @property
    def reads_anything(self) -> bool:
        return self.reads_value or self.time_header is not None

    def event_time_us(self, value: Any) -> int:
        """The event time of a parsed JSON value, by `time_field`."""
        assert self.time_field is not None
        # The common case first, without splitting the path.
        found = value.get(self.time_field) if type(value) is dict else None
        return self._time(self.time_field, member(value, self.time_field) if found is None else found)

    def header_time_us(self, headers: Mapping[str, bytes]) -> int:
        """The event time in a record's headers, by `time_header`."""
        assert self.time_header is not None
        written = headers.get(self.time_header)
        if written is None:
            raise ValueError(f"there is no header `{self.time_header}`, which has the event time")
        return self._time(self.time_header, written.decode("utf-8", "replace"))

    def keys(self, value: Any) -> tuple[bytes, ...]:
        """The key parts of a parsed JSON value."""
        parts = []
        for path in self.key_fields:
            found = value.get(path) if type(value) is dict else None
            try:
                parts.append(key_text(member(value, path) if found is None else found).encode())
            except ValueError as error:
                raise ValueError(f"key `{path}`: {error}") from None
        return tuple(parts)

    def _time(self, name: str, written: object) -> int:
        try:
            return self.parse_time(written)
        except ValueError as error:
            raise ValueError(f"event time `{name}`: {error}") from None
