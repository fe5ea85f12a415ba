"""Event times and keys, read off values."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.extract import (
    YEAR_1_US,
    YEAR_10000_US,
    Extraction,
    key_text,
    member,
    microseconds_of,
    time_parser,
)

MOMENTS = st.integers(YEAR_1_US + 10**12, YEAR_10000_US - 10**12).map(
    lambda time_us: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)
)
ZONES = st.sampled_from([UTC, timezone(timedelta(hours=-5, minutes=30))])


@given(MOMENTS, ZONES)
def test_rfc3339_gives_back_what_was_written(moment: datetime, zone: timezone) -> None:
    time_us = time_parser("rfc3339")(moment.astimezone(zone).isoformat())
    assert datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us) == moment
    assert time_us == microseconds_of(moment)


@given(st.integers(YEAR_1_US, YEAR_10000_US - 1))
def test_epoch_formats_are_exact(time_us: int) -> None:
    assert time_parser("epoch_us")(time_us) == time_parser("epoch_us")(str(time_us)) == time_us
    assert time_parser("epoch_ms")(time_us // 1000) == time_us // 1000 * 1000
    assert time_parser("epoch")(str(time_us // 1_000_000)) == time_us // 1_000_000 * 1_000_000


@given(st.integers(-4_000_000_000_000_000, 4_000_000_000_000_000))
def test_fractions_of_seconds_are_right_to_the_microsecond(time_us: int) -> None:
    assert time_parser("epoch")(time_us / 1_000_000) == pytest.approx(time_us, abs=1)


@pytest.mark.parametrize(
    ("time_format", "written", "wanted"),
    [
        ("rfc3339", "1970-01-01T00:00:01Z", 1_000_000),
        ("rfc3339", "1970-01-01 01:00:01.5+01:00", 1_500_000),
        ("rfc3339", "1970-01-01", 0),
        ("epoch", 1.25, 1_250_000),
        ("epoch", "-1", -1_000_000),
        ("epoch_ms", "1700000000123", 1_700_000_000_123_000),
        ("epoch_ms", 0.5, 500),
        ("epoch_ns", Decimal("1700000000123456789.5"), 1_700_000_000_123_456),
        ("epoch_ns", "1700000000123456999.0", 1_700_000_000_123_456),
        ("epoch_us", Decimal("1.700000000123457E+15"), 1_700_000_000_123_457),
        ("epoch_us", Decimal("9007199254740993.0"), 9_007_199_254_740_993),
        ("epoch_ms", "-0.0005", 0),
        ("%d.%m.%Y %H:%M", "01.01.1970 00:01", 60_000_000),
        ("%Y-%m-%dT%H:%M:%S%z", "1970-01-01T02:00:00+0200", 0),
    ],
)
def test_formats(time_format: str, written: object, wanted: int) -> None:
    assert time_parser(time_format)(written) == wanted


@pytest.mark.parametrize(
    ("time_format", "written", "reason"),
    [
        ("rfc3339", "yesterday", "'yesterday' is not a time such as 2024"),
        ("rfc3339", 17, "17 is not a time such as"),
        ("rfc3339", None, "None is not a time such as"),
        ("epoch", "x" * 99, r"x\.\.\. is not seconds since 1970 \(epoch\)"),
        ("epoch", True, "True is not seconds"),
        ("epoch", "nan", "'nan' is not seconds"),
        ("epoch", float("inf"), "inf is not seconds"),
        ("epoch", Decimal("1e999999999"), "1E[+]999999999 is not seconds"),
        ("epoch", 1_700_000_000_123, "is the unit right"),
        ("epoch_us", [1], r"\[1\] is not microseconds"),
        ("%H:%M", "25:00", "'25:00' is not a time of the form %H:%M"),
    ],
)
def test_what_is_no_time_is_told_with_what_was_expected(time_format: str, written: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        time_parser(time_format)(written)


def test_members_by_dotted_paths() -> None:
    value = {"a": {"b": 1, "c.d": 2}, "a.b": 3, "n": None}
    assert member(value, "a.b") == 3
    assert member({"a": {"b": 1}}, "a.b") == 1
    assert member(value, "n") is None
    for path, reason in (("a.x", "no `a.x` in the record"), ("n.x", "None is not an object")):
        with pytest.raises(ValueError, match=reason):
            member(value, path)
    with pytest.raises(ValueError, match="is not an object"):
        member([1], "a")


def test_key_parts() -> None:
    assert [key_text(item) for item in ("ä", "", 7, 1.5, True, False)] == ["ä", "", "7", "1.5", "true", "false"]
    for item in (None, [1], {"a": 1}):
        with pytest.raises(ValueError, match="is not a text, a number"):
            key_text(item)
    extraction = Extraction(key_fields=("a", "b.c"))
    assert extraction.keys({"a": 1, "b": {"c": "x"}}) == (b"1", b"x")
    with pytest.raises(ValueError, match=r"key `b\.c`: there is no"):
        extraction.keys({"a": 1, "b": {}})
    with pytest.raises(ValueError, match="key `a`"):
        extraction.keys({"a": "\ud800"})
