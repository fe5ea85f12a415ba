"""JSON that is passed on: taken only where the parser that builds it takes it, too."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest
from pydantic_core import from_json

from millstream.json_text import all_json, elements_of, lines_of, members_reader

GOOD = [
    b"1", b"-0", b"1e5", b"1.5E-3", b'"a"', b'"\\u00e9\\ud83d\\ude00"', b"null", b"true", b"[]", b"{}", b" [1, 2]\n",
    '{"ü": "ö", "a": {"b": [1, {"c": null}]}}'.encode(), b'{"a": 1, "a": 2}',
]  # fmt: skip
BAD = [
    b"", b" ", b"01", b"1.", b"-", b".5", b"+1", b"0x10", b"1_0", b"tru", b"NaN", b"Infinity", b"-Infinity", b'"\\x"',
    b'"\n"', b'"\x00"', b'"a', b'"\\u12g4"', b'{"a":1,}', b"[1,]", b"[1,,2]", b'{"a" 1}', b'{"a"}', b"{1:2}", b"1 2",
    b'{"a":1}{"a":2}', b'"\xff"', b'"\xed\xa0\x80"', b"\xef\xbb\xbf1", b"\x0c1", b'{"a": "\xc3"}', b"'a'",
]  # fmt: skip


def is_json(value: bytes) -> bool:
    try:
        from_json(value, allow_inf_nan=False)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("value", GOOD)
def test_json_is_taken(value: bytes) -> None:
    assert all_json([b"1", value])
    assert elements_of(b"[ 0 , " + value + b"]") == [b"0", value.strip()]


@pytest.mark.parametrize("value", BAD)
def test_what_is_not_json_is_not_taken(value: bytes) -> None:
    assert not is_json(value)
    assert not all_json([b"1", value, b"1"])
    assert elements_of(b"[0, " + value + b"]") is None


@pytest.mark.parametrize("text", [b"1\n2", b'{"a": 1}\n[2, 3]\n', b"1", '"ü"\n"界"\n'.encode()])
def test_lines_that_are_values(text: bytes) -> None:
    assert lines_of(text) == text.splitlines()


@pytest.mark.parametrize(
    "text",
    [
        b"", b"\n", b"1\n\n", b"\n1", b"1\n\n2", b"1 2\n", b"1 2\n[3,\n4]", b"[1\n,2]", b'{"a":1\n,"b":2}', b" 1\n2",
        b"1 \n2", b"1\r\n2\r\n", b"1\nx", b'"\xc3\n\xa9"', b'"\xff"\n1', b"[" * 100_000 + b"]" * 100_000,
    ],
)  # fmt: skip
def test_other_lines_are_left_to_others(text: bytes) -> None:
    assert lines_of(text) is None


def test_lines_are_those_between_line_breaks() -> None:
    rng = random.Random(7)
    found = 0
    for _ in range(20_000):
        parts = [b"1", b"[", b"]", b",", b"\n", b"\n", b'"a"', b" ", b"\r"]
        text = b"".join(rng.choice(parts) for _ in range(rng.randint(1, 7)))
        lines = text.removesuffix(b"\n").split(b"\n")
        exact = all(is_json(line) and line == line.strip() for line in lines)
        assert lines_of(text) == (lines if exact else None), text
        found += exact
    assert found > 500


def test_halves_of_a_character_do_not_make_one() -> None:
    assert not all_json([b'"\xc3', b'\xa9"'])
    assert not all_json([b'"\xc3"', b'"\xa9"'])


def test_very_deep_nesting_is_left_to_others() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    assert not all_json([deep])
    assert elements_of(deep) is None
    assert members_reader({"a": Any})([b'{"b": ' + deep + b"}"]) is None


def test_changed_texts_are_taken_only_if_they_are_json() -> None:
    rng = random.Random(3)
    taken = 0
    for _ in range(20_000):
        value = bytearray(rng.choice(GOOD))
        for _ in range(rng.randint(1, 2)):
            at = rng.randrange(len(value) + 1)
            if rng.random() < 0.5 and at < len(value):
                del value[at]
            else:
                value.insert(at, rng.choice(b'{}[]",:\\u0123456789.eE-+tfn \n\x00\x7f\xc3\xa9\xff'))
        if all_json([bytes(value)]):
            taken += 1
            assert is_json(bytes(value)), bytes(value)
    assert 500 < taken < 19_500


def test_members_are_those_of_the_whole_objects() -> None:
    rng = random.Random(5)
    read = members_reader({"a": Any, "b c": Any, "ü": Any})
    for _ in range(500):
        objects = [
            {
                name: rng.choice([None, 1, 1.5, "x\n", True, [1, {"a": 2}], 2**70])
                for name in ("a", "b c", "ü", "other")
                if rng.random() < 0.7
            }
            for _ in range(3)
        ]
        values = [json.dumps(one, ensure_ascii=rng.random() < 0.5).encode() for one in objects]
        assert read(values) == [(one.get("a"), one.get("b c"), one.get("ü")) for one in objects]


@pytest.mark.parametrize("value", [b"[1]", b"1", b"", b'{"a": 1', b'{"a": "\\ud800"}', b'{"other": "\xff"}', b"null"])
def test_what_is_no_object_has_no_members(value: bytes) -> None:
    assert members_reader({"a": Any})([b"{}", value]) is None


PIECES = [
    b'{"a": 1}', b'{"a": 1}{"a": 2}', b'{"a": 1},{"a": 2}', b'{"a": 1}\n{"a": 2}', b'{"x": [{}', b"{}]}", b'{"x": {}',
    b"{}}", b'{"x": "}', b'{"}', b'{"x": "', b'"}', b" {}", b"{} ", b"{\n}", b"", b"[1]", b"{", b"}",
    '{"a": "ü"}'.encode(),
]  # fmt: skip


def test_members_of_values_that_are_wrong_in_opposite_ways_are_not_read() -> None:
    read = members_reader({"a": Any})
    taken = 0
    for values in itertools.product(PIECES, repeat=3):
        are_objects = all(is_json(value) and value.strip()[:1] == b"{" for value in values)
        assert (read(values) is not None) == are_objects, values
        taken += are_objects
    assert taken == 5**3
