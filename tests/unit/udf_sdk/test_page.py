"""docs/udf.md and docs/connectors/udsink.md: their code blocks are files under examples/udf, and they do what the
pages say."""

from __future__ import annotations

import importlib.util
import json
import re
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import millstream_udf as udf
from millstream_udf.loading import load
from millstream_udf.testing import read_source, run, run_reduce, run_timers

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples/udf"
PAGES = "".join((ROOT / "docs" / page).read_text() for page in ("udf.md", "connectors/udsink.md"))
BLOCKS = re.findall(r"^`examples/udf/(\S+)`\n\n```python\n(.*?)```", PAGES, re.M | re.S)


def example(name: str, attribute: str = "process") -> Any:
    return load(f"{EXAMPLES / name}:{attribute}").target


def example_test(name: str) -> ModuleType:
    sys.path.insert(0, str(EXAMPLES))
    spec = importlib.util.spec_from_file_location("example_test", EXAMPLES / name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def own_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the loader does to the interpreter is undone."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in [path.stem for path in EXAMPLES.glob("*.py")]:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(("name", "code"), BLOCKS, ids=[name for name, _ in BLOCKS])
def test_every_block_is_a_file(name: str, code: str) -> None:
    assert (EXAMPLES / name).read_text() == code


def test_every_file_is_on_the_page() -> None:
    assert sorted(name for name, _ in BLOCKS) == sorted(path.name for path in EXAMPLES.glob("*.py"))


def test_shout() -> None:
    assert run(example("shout.py"), [b"hello"]).values == [b"HELLO"]


def test_script() -> None:
    assert run(example("script.py"), [b"abc"]).values == [b"cba"]


def test_records() -> None:
    given = [udf.Record(b"a", event_time=0, keys=("gold",)), udf.Record(b"b", event_time=5_000_000)]
    assert run(example("records.py"), given, watermark_us=1_000_000).values == [b"a"]


def test_outputs_and_their_test() -> None:
    example_test("test_outputs.py").test_an_order_becomes_its_lines()
    results = run(example("outputs.py"), [b'{"cancelled": false, "lines": []}'])
    assert results.values == [b"empty"]


def test_context_and_its_test() -> None:
    example_test("test_alerts.py").test_readings_above_the_threshold_are_alerts()


def test_state_and_its_test() -> None:
    example_test("test_customers.py").test_a_customer_is_remembered()
    readings = [udf.Record(f'{{"celsius": {degrees}}}'.encode(), keys=("attic",)) for degrees in (20, 21)]
    assert run(example("remembers.py"), readings).values == [b"1: from None to 20", b"2: from 20 to 21"]
    records = [udf.Record(b"", keys=(key,)) for key in "aba"]
    assert run(example("counted_batch.py"), records).values == [b"1", b"1", b"2"]


def test_timers() -> None:
    sessions = example("idle.py", "Sessions")
    visits = [udf.Record(b"page", second * 1_000_000, (user,)) for second, user in ((0, "a"), (60, "a"), (70, "b"))]
    states = run(sessions, [*visits, udf.Record(b"logout", 80_000_000, ("b",))]).states
    assert states is not None
    results = run_timers(sessions, states, watermark_us=1_860_000_000)
    assert results.objects() == [{"user": "a", "pages": 2, "until": "1970-01-01T00:31:00+00:00"}]
    assert states.timers == []


def test_outcomes() -> None:
    readings = [
        b"no json",
        b'{"sensor": "test"}',
        b'{"sensor": "a", "status": "warming up"}',
        b'{"sensor": "a", "status": "on"}',
        b'{"sensor": "a", "status": "on", "celsius": 21}',
    ]
    results = run(example("outcomes.py"), readings)
    assert results.values == [b"21"]
    assert [outcome.result for outcome in results.outcomes] == ["dead letter", "drop", "retry", "error"]


def test_lookup() -> None:
    assert run(example("lookup.py", "Lookup"), [b"AA", b"?"] * 50).values == [b"American", b"unknown"] * 50


def test_histories() -> None:
    days = {"2026-01-31": 100, "2026-02-01": 20, "2026-02-02": 3}
    payment = udf.Record({"id": "a", "day": "2026-02-02", "cents": 5}, keys=("ada",))
    for name, expected in (("Histories", {"day": 8, "month": 28}), ("AsyncHistories", {"day": 8})):
        results = run(example("histories.py", name), [payment], states={"ada": {"days": days}})
        assert results.objects(dict) == [expected]


def test_batches() -> None:
    results = run(example("batches.py"), [b"a", b"", b"ccc"])
    assert results.values == [b"  a", b"ccc"]
    assert [outcome.result for outcome in results.outcomes] == ["drop"]


def test_arrow() -> None:
    assert run(example("arrow.py"), [b"abc", b"", b"d"]).values == [b"ABC", b"D"]


def test_transform() -> None:
    (message,) = run(example("transform.py"), [b'{"carrier": "AA", "scheduled": "2013-01-01T05:00:00-05:00"}']).messages
    assert (message.keys, message.event_time_us) == (("AA",), 1_357_034_400_000_000)


def test_sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for attempt in range(2):
        assert not run(example("sink.py", "Table"), [b"a", b"b"], attempt=attempt).outcomes
    database = sqlite3.connect("orders.db")
    try:
        assert database.execute("select value from orders order by id").fetchall() == [(b"a",), (b"b",)]
    finally:
        database.close()


def test_position_sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = [b'{"customer": "ada", "item": "lamp"}', b'{"customer": "ada"}']
    (outcome,) = run(example("position_sink.py", "Orders"), given).outcomes
    assert (outcome.index, outcome.result, outcome.reason) == (1, "dead letter", "an order of nothing")
    database = sqlite3.connect("orders.db")
    try:
        assert database.execute("select customer, item from orders").fetchall() == [("ada", "lamp")]
    finally:
        database.close()


def test_source() -> None:
    counter = example("source.py", "Counter")
    first = read_source(counter, partition=1, partitions=4, records_max=3)
    rest = read_source(counter, position=first[0].position, partition=1, partitions=4, reads=1000)
    values = [int(record.value) for batch in first + rest for record in batch.records]
    assert values == list(range(1, 1000, 4))
    assert rest[-1].ended


def test_averages_and_their_tests() -> None:
    module = example_test("test_averages.py")
    module.test_one_window()
    module.test_every_hour_and_sensor()


def test_longest_gap() -> None:
    times = (10_000_000, 200_000_000, 50_000_000, 230_000_000)
    seen = [udf.Record(b"", event_time=time) for time in times]
    gap = example("longest_gap.py", "LongestGap")
    assert run_reduce(gap, seen, window=udf.Window(0, 300_000_000)).values == [b"190 s"]
    assert run_reduce(gap, seen[:1], window=udf.Window(0, 300_000_000)).values == []


def test_late_flights() -> None:
    flights = [
        b'{"origin": "%s", "delay": %d}' % (origin, delay) for origin in (b"JFK", b"LGA") for delay in (-3, 5, 7)
    ]
    rows = [json.loads(value) for value in run_reduce(example("late_flights.py"), flights).values]
    assert sorted(rows, key=lambda row: row["origin"]) == [
        {"origin": origin, "delay_count": 2, "delay_mean": 6.0, "delay_max": 7.0} for origin in ("JFK", "LGA")
    ]
