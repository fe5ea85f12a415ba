"""The parser of JSON has one limit of depth, whatever calls it."""

from __future__ import annotations

import inspect
import json
import sys
import time
from collections.abc import Callable

import pytest

from millstream.json_parser import parse_json
from millstream.limits import JSON_NESTED_MAX


@pytest.mark.slow
@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"[[": "]}\\"", "b":'])
def test_texts_up_to_the_limit_are_parsed_and_deeper_ones_named(opening: str) -> None:
    closing = {"[": "]", "{": "}"}
    levels = sum(char in closing for char in opening.replace('"[[": "]}\\""', ""))
    ends = "".join(closing[char] for char in reversed(opening.replace('"[[": "]}\\""', "")) if char in closing)
    times = JSON_NESTED_MAX // levels
    text = f"{opening * times}1{ends * times}"
    assert parse_json(text) == parse_json(text.encode()) == json.loads(text)
    for more in (times + 1, 1000, 100_000):
        for whole in (f"{opening * more}1{ends * more}", opening * more):
            with pytest.raises(ValueError, match="nested"):
                parse_json(whole)


def test_wide_texts_are_not_deep() -> None:
    text = json.dumps([{"a": ["]", '"', "\\"]} for _ in range(1000)])
    assert parse_json(text) == json.loads(text)


def test_it_is_the_same_in_a_deep_stack() -> None:
    def deeper(calls: int, run: Callable[[], object]) -> object:
        return deeper(calls - 1, run) if calls else run()

    text = "[" * JSON_NESTED_MAX + "]" * JSON_NESTED_MAX
    with pytest.raises(ValueError, match="nested too deep"):
        deeper(sys.getrecursionlimit() - len(inspect.stack(0)) - 40, lambda: parse_json(text))


def test_a_text_without_an_end_takes_no_longer() -> None:
    text = "[" * 300 + '"\\"' * 200_000
    begun_s = time.process_time()
    with pytest.raises(ValueError, match="nested"):
        parse_json(text)
    assert time.process_time() - begun_s < 5


@pytest.mark.parametrize("text", [b"\xff", b"", b"[1] 2", b"9" * 5000, b"nul"])
def test_what_is_not_json_is_named(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


def test_constants_are_accepted() -> None:
    assert parse_json("Infinity") == float("inf")
