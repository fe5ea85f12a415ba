"""Durations, sizes and names as they are written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from millstream.spec.programs import EventTime
from millstream.spec.validation import translated
from millstream.spec.values import EdgeName, Name, is_name, parse_duration, parse_quantity


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("0", 0), ("0s", 0), ("1s", 1), ("100ms", 0.1), ("1h30m", 5400), ("1.5h", 5400), (".5s", 0.5), ("1.s", 1),
        ("+2s", 2), ("3us", 3e-6), ("3µs", 3e-6), ("7ns", 7e-9), ("1m1ms", 60.001), (2, 2), (0.25, 0.25), (" 1s ", 1),
    ],
)  # fmt: skip
def test_durations(written: object, seconds: float) -> None:
    assert parse_duration(written) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    "written",
    [
        "",
        "s",
        "1",
        "1 s",
        "1d",
        "1s1",
        "1h-2m",
        "-1s",
        "1e3s",
        -1,
        True,
        None,
        [],
        float("nan"),
        float("inf"),
        "99999999h",
    ],
)
def test_what_is_no_duration(written: object) -> None:
    with pytest.raises(PydanticCustomError):
        parse_duration(written)


@given(st.integers(0, 10**6), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999))
def test_a_duration_is_the_sum_of_its_parts(hours: int, minutes: int, seconds: int, millis: int) -> None:
    hours %= 80_000
    written = f"{hours}h{minutes}m{seconds}s{millis}ms"
    assert parse_duration(written) == pytest.approx(hours * 3600 + minutes * 60 + seconds + millis / 1000)


@pytest.mark.parametrize(
    ("written", "size"),
    [
        (7, 7), ("7", 7), ("7B", 7), ("1k", 1000), ("1K", 1000), ("1KB", 1000), ("1Ki", 1024), ("512Mi", 512 << 20),
        ("1MiB", 1 << 20), ("64M", 64 * 10**6), ("1.5Gi", 3 << 29), ("2Ti", 2 << 40), ("0", 0),
    ],
)  # fmt: skip
def test_sizes(written: object, size: int) -> None:
    assert parse_quantity(written) == size


@pytest.mark.parametrize(
    "written", ["", "i", "1i", "1iB", "-1", "1.5", "1Mib", "1 M B", "1X", -1, 1.0, True, None, "2000P"]
)
def test_what_is_no_size(written: object) -> None:
    with pytest.raises(PydanticCustomError):
        parse_quantity(written)


@pytest.mark.parametrize(
    ("name", "valid"),
    [
        ("a", True), ("0", True), ("a-b9", True), ("a" * 63, True), ("a" * 64, False), ("", False), ("-a", False),
        ("a-", False), ("A", False), ("a_b", False), ("a.b", False), ("a b", False), ("ä", False), ("a\n", False),
    ],
)  # fmt: skip
def test_names_are_dns_labels(name: str, valid: bool) -> None:
    assert is_name(name) is valid
    adapter: TypeAdapter[str] = TypeAdapter(translated(Name))
    if valid:
        assert adapter.validate_python(name) == name
    else:
        with pytest.raises(ValidationError):
            adapter.validate_python(name)


def test_an_edge_name_holds_two_vertex_names_and_is_not_that_of_a_sources_input() -> None:
    adapter: TypeAdapter[str] = TypeAdapter(translated(EdgeName))
    longest = f"{'a' * 63}-{'b' * 63}-dead-letter"
    assert adapter.validate_python(longest) == longest
    for refused in (longest + "r", "source", "a.b"):
        with pytest.raises(ValidationError):
            adapter.validate_python(refused)


@pytest.mark.parametrize(
    ("written", "sound"), [("%Y-%m-%d", True), ("at %H:%M%%", True), ("%Q", False), ("%Y%", False), ("plain", False)]
)
def test_patterns_of_event_times(written: str, sound: bool) -> None:
    if sound:
        assert EventTime.model_validate({"field": "t", "format": written}).format == written
    else:
        with pytest.raises(ValidationError, match="is not an event time format"):
            EventTime.model_validate({"field": "t", "format": written})
