"""Any records, in any calls: what a function remembers is what a dictionary for each key would have."""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream_udf as udf
from millstream_udf.testing import KeptStates, run

ITEMS_MAX = 3


class _Doing:
    """Does to its states what a record says."""

    number = udf.value(int, default=7)
    tags = udf.value(dict[str, list[int]], default={})
    seen = udf.map_state(str, list[int])
    last = udf.list_state(dict[str, int], max_items=ITEMS_MAX)
    clicks = udf.counter()

    def do(self, steps: list[list[Any]]) -> None:
        for name, *arguments in steps:
            getattr(self, name)(*arguments)

    def set_number(self, value: int) -> None:
        self.number = value

    def add_number(self, value: int) -> None:
        self.number += value

    def del_number(self) -> None:
        del self.number

    def tag(self, tag: str, value: int) -> None:
        self.tags.setdefault(tag, []).append(value)

    def set_tags(self, tag: str, value: int) -> None:
        self.tags = {tag: [value]}

    def del_tags(self) -> None:
        del self.tags

    def see(self, item: str, value: int) -> None:
        self.seen.setdefault(item, []).append(value)

    def set_seen(self, item: str, value: int) -> None:
        self.seen[item] = [value]

    def unsee(self, item: str) -> None:
        self.seen.pop(item, None)

    def discard(self, item: str) -> None:
        self.seen.pop(item, None)

    def grow(self, prefix: str, value: int) -> None:
        for item, values in self.seen.items():
            if item.startswith(prefix):
                values.append(value)

    def clear_seen(self) -> None:
        self.seen.clear()

    def append(self, value: int) -> None:
        self.last.append({"value": value})

    def change(self, index: int) -> None:
        if index < len(self.last):
            self.last[index]["value"] += 1

    def pop(self, index: int) -> None:
        if index < len(self.last):
            self.last.pop(index)

    def clear_last(self) -> None:
        self.last.clear()

    def click(self, n: int) -> None:
        self.clicks.add(n)

    def unclick(self) -> None:
        del self.clicks


@udf.map(decode=json.loads)
class Plain(_Doing):
    def process(self, record: udf.Record[Any]) -> str:
        self.do(record.value["steps"])
        _end(record.value["end"])
        return _shown(self.number, self.tags, self.seen, self.last, self.clicks.value)


@udf.map(decode=json.loads)
class Async(_Doing):
    async def process(self, record: udf.Record[Any]) -> str:
        for step in record.value["steps"]:
            self.do([step])
            await asyncio.sleep(0)
        _end(record.value["end"])
        return _shown(self.number, self.tags, self.seen, self.last, self.clicks.value)


@udf.map(decode=json.loads)
class Lazy(_Doing):
    """Its map stays in the pipeline."""

    seen: Any = udf.map_state(str, list[int], lazy=True)

    def discard(self, item: str) -> None:
        self.seen.discard(item)

    def grow(self, prefix: str, value: int) -> None:
        for values in self.seen.values(prefix=prefix):
            values.append(value)

    def process(self, record: udf.Record[Any]) -> str:
        self.do(record.value["steps"])
        _end(record.value["end"])
        return _shown(self.number, self.tags, dict(self.seen.items()), self.last, self.clicks.value)


@udf.map(decode=json.loads)
class LazyAsync(Lazy):
    async def see(self, item: str, value: int) -> None:  # type: ignore[override]  # awaited by `process`
        values = await self.seen.aget(item)
        if values is None:
            self.seen[item] = values = []
        values.append(value)

    async def unsee(self, item: str) -> None:  # type: ignore[override]  # awaited by `process`
        await self.seen.apop(item, None)

    async def grow(self, prefix: str, value: int) -> None:  # type: ignore[override]  # awaited by `process`
        async for item, values in self.seen.aitems(prefix=prefix):
            values.append(value)
            assert await self.seen.ahas(item)

    async def clear_seen(self) -> None:  # type: ignore[override]  # awaited by `process`
        await self.seen.aclear()

    async def process(self, record: udf.Record[Any]) -> str:  # type: ignore[override]  # as above
        for name, *arguments in record.value["steps"]:
            done = getattr(self, name)(*arguments)
            if inspect.isawaitable(done):
                await done
        _end(record.value["end"])
        seen = {item: values async for item, values in self.seen.aitems()}
        return _shown(self.number, self.tags, seen, self.last, self.clicks.value)


def _end(how: str) -> None:
    match how:
        case "drop":
            raise udf.Drop("unwanted")
        case "dead":
            raise udf.DeadLetter("poison")
        case "retry":
            raise udf.Retry
        case "error":
            raise OSError("away")


def _shown(number: int, tags: Any, seen: Any, last: Any, clicks: int) -> str:
    return json.dumps([number, tags, dict(sorted(seen.items())), list(last), clicks])


class _Model(_Doing):
    """The same with the objects of Python."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {"number": 7, "tags": {}, "seen": {}, "last": [], "clicks": 0}

    def __getattribute__(self, name: str) -> Any:
        if name in ("number", "tags", "seen", "last"):
            return self.kept[name]
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "kept":
            super().__setattr__(name, value)
        else:
            self.kept[name] = value

    def __delattr__(self, name: str) -> None:
        self.kept[name] = {"number": 7, "tags": {}, "clicks": 0}[name]

    def append(self, value: int) -> None:
        self.kept["last"] = [*self.kept["last"], {"value": value}][-ITEMS_MAX:]

    def click(self, n: int) -> None:
        self.kept["clicks"] += n

    def process(self, order: Any) -> str:
        before = copy.deepcopy(self.kept)
        try:
            self.do(order["steps"])
            _end(order["end"])
        except Exception:
            self.kept = before
            raise
        return _shown(**self.kept)


NAMES, NUMBERS = st.sampled_from(["x", "xx", 'y"é']), st.integers(-3, 3)
STEPS = st.one_of(
    st.tuples(st.sampled_from(["set_number", "add_number", "append", "click"]), NUMBERS),
    st.tuples(st.sampled_from(["tag", "set_tags", "see", "set_seen", "grow"]), NAMES, NUMBERS),
    st.tuples(st.sampled_from(["unsee", "discard"]), NAMES),
    st.tuples(st.sampled_from(["change", "pop"]), st.integers(0, ITEMS_MAX)),
    st.tuples(st.sampled_from(["del_number", "del_tags", "clear_seen", "clear_last", "unclick"])),
)
RECORDS = st.tuples(
    st.sampled_from("ab"),
    st.fixed_dictionaries(
        {"steps": st.lists(STEPS, max_size=5), "end": st.sampled_from(["ok"] * 6 + ["drop", "dead", "retry", "error"])}
    ),
)
CALLS = st.lists(st.lists(RECORDS, min_size=1, max_size=6), min_size=1, max_size=3)


@pytest.mark.slow
@given(st.sampled_from([Plain, Async, Lazy, LazyAsync]), CALLS)
def test_as_a_dictionary_for_each_key(function: Any, calls: list[list[tuple[str, Any]]]) -> None:
    kept = KeptStates(function)
    models = {key: _Model() for key in "ab"}
    for call in calls:
        expected: list[bytes] = []
        outcomes: list[tuple[int, str]] = []
        held: set[str] = set()
        for index, (key, order) in enumerate(call):
            if key in held:
                outcomes.append((index, "held up"))
                continue
            try:
                expected.append(models[key].process(order).encode())
            except (udf.Drop, udf.DeadLetter, udf.Retry, OSError):
                outcomes.append((index, {"dead": "dead letter"}.get(order["end"], order["end"])))
                if order["end"] in ("retry", "error"):
                    held.add(key)
        records = [udf.Record(json.dumps(order).encode(), keys=(key,)) for key, order in call]
        results = run(function, records, states=kept)
        assert [(one.index, one.result) for one in results.outcomes] == outcomes
        if expected:
            assert results.values == expected
        for key, model in models.items():
            assert {name: kept[key][name] for name in model.kept} == model.kept
