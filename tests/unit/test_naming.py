"""How messages name a record, and what of a stack trace becomes the reason."""

from __future__ import annotations

import pytest

from millstream.frame import frame_of_records
from millstream.naming import NO_ORIGIN, Naming, Origin, reason_and_detail, shown_value
from millstream.record import Record

GO = "panic: assignment to entry in nil map\n\ngoroutine 7 [running]:\nmain.shout(...)\n\t/app/main.go:12 +0x1d\n"
PYDANTIC = """\
1 validation error for Order
pieces
  Input should be a valid integer [type=int_parsing, input_value='x', input_type=str]
    For further information visit https://errors.pydantic.dev/2.11/v/int_parsing
"""
TRACEBACK = """\
Traceback (most recent call last):
  File "/app/f.py", line 1, in f
    g()
KeyError: 'a'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/app/f.py", line 3, in f
    raise ValueError(1)
pydantic_core._pydantic_core.ValidationError: 1 validation error for Order
pieces
  Input should be a valid integer
"""


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("one line", "one line"),
        ("", ""),
        ("\n\n  spaced  \n", "spaced"),
        (GO, "panic: assignment to entry in nil map"),
        (PYDANTIC, "1 validation error for Order"),
        (f"ValueError: no\n{TRACEBACK}", "ValueError: no"),
        (TRACEBACK, "pydantic_core._pydantic_core.ValidationError: 1 validation error for Order"),
        ("Traceback (most recent call last):\n  cut", "cut"),
    ],
)
def test_the_reason_is_what_went_wrong_and_not_where_the_stack_ends(said: str, reason: str) -> None:
    found, detail = reason_and_detail(said)
    assert found == reason
    assert detail == (said.strip() if said.strip() != reason else "")


def test_a_stack_beside_the_reason_is_kept_once() -> None:
    assert reason_and_detail("panic: a\nstack", "panic: a\nstack\nmore") == ("panic: a", "panic: a\nstack\nmore")
    assert reason_and_detail("panic: a\nstack", "more") == ("panic: a", "panic: a\nstack\nmore")
    assert reason_and_detail("panic: a", "stack") == ("panic: a", "stack")


def test_a_record_is_named_by_all_that_helps_to_find_it() -> None:
    frame = frame_of_records([Record(b"x", 0), Record(b"not json", 1_000_000, ("ada",))], ingest_time_us=0)
    origin = Origin("price/read-price/0/345/", 12)
    assert Naming().of(frame, 1, origin) == (
        "record price/read-price/0/345/13 (sequence 345, index 13, keys ['ada'], "
        "event time 1970-01-01T00:00:01.000000Z, value 'not json')"
    )
    assert Naming(values=False).of(frame, 1, origin).endswith("value of 8 bytes)")
    own = frame_of_records([Record(b"x", 0, id="web-7")], ingest_time_us=0)
    assert Naming().of(own, 0, origin).startswith("record web-7 (sequence 345, index 12, event time")
    read = Origin(source_position='{"file":"a"}')
    assert Naming().of(frame, 0, read).startswith('record (read before source position {"file":"a"}, event time')
    # In a chain behind a source its position tells little, and the number says which one it is.
    passed_on = Origin("price/read-price/0/", 12, '{"file":"a"}')
    assert Naming().of(frame, 0, passed_on).startswith("record price/read-price/0/12 (number 13 from the source, event")
    assert Naming().of(frame, 0, NO_ORIGIN).startswith("record (event time")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"a\nb", r"'a\nb'"),
        (b"\xff\x00", r"b'\xff\x00'"),
        (b"a" * 200, f"'{'a' * 120}'... (200 bytes)"),
        (b"a" + "ü".encode() * 100, f"'a{'ü' * 59}'... (201 bytes)"),
    ],
)
def test_only_the_beginning_of_a_value_is_shown(value: bytes, text: str) -> None:
    assert shown_value(value) == text
