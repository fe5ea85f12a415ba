"""Reduce functions: every shape they may have, what they may give, and what goes wrong."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import millstream_udf as udf
from millstream_udf.defining import define
from millstream_udf.definition import REDUCE
from millstream_udf.testing import run, run_reduce, run_windows

RECORDS = [udf.Record(b"%d" % n, event_time=n * 1_000_000, headers={"n": b"3"} if n == 3 else {}) for n in range(5)]
JSON = [b'{"n": %d, "name": "a%d", "other": [1]}' % (n, n) for n in range(5)]
FIELDS: dict[str, pa.DataType] = {"n": pa.int64(), "name": pa.string(), "missing": pa.float64()}
SCHEMA = pa.schema(FIELDS)


def by_place(a: Any, b: Any, c: Any) -> str:
    return f"{a} {[record.value for record in b]} {c.end_us}"


def by_name(window: udf.Window, records: Iterable[udf.Record], keys: tuple[str, ...]) -> str:
    return by_place(keys, records, window)


def by_annotation(w: udf.Window, some: Iterable[udf.Record], keys: tuple[str, ...]) -> str:
    return by_place(keys, some, w)


def with_values(keys: tuple[str, ...], values: Iterable[bytes], window: udf.Window) -> str:
    return f"{keys} {list(values)} {window.end_us}"


def with_bytes(keys: tuple[str, ...], some: Iterable[bytes], window: udf.Window) -> str:
    return with_values(keys, some, window)


def yielding(keys: tuple[str, ...], records: Iterable[udf.Record], window: udf.Window) -> Iterator[str]:
    yield by_place(keys, records, window)


@udf.reduce
async def waiting(keys: tuple[str, ...], records: AsyncIterator[udf.Record], window: udf.Window) -> str:
    some = []
    async for record in records:
        await asyncio.sleep(0)
        some.append(record)
    return by_place(keys, some, window)


@udf.reduce
async def waiting_and_yielding(
    keys: tuple[str, ...], records: Iterable[udf.Record], window: udf.Window
) -> AsyncIterator[str]:
    await asyncio.sleep(0)
    yield by_place(keys, records, window)


@udf.reduce
class OnePerProcess:
    async def setup(self, context: udf.Context) -> None:
        self.vertex = context.vertex

    def process(self, keys: tuple[str, ...], records: Iterable[udf.Record], window: udf.Window) -> str:
        assert self.vertex
        return by_place(keys, records, window)

    def close(self) -> None:
        del self.vertex


class OnePerGroup:
    def __init__(self, window: udf.Window, keys: tuple[str, ...]) -> None:
        self.given = keys, window
        self.records: list[udf.Record] = []

    def add(self, record: udf.Record) -> None:
        self.records.append(record)

    def result(self) -> str:
        keys, window = self.given
        return by_place(keys, self.records, window)


class OnePerGroupOfValues:
    def __init__(self) -> None:
        self.some: list[bytes] = []

    def add(self, value: bytes) -> None:
        self.some.append(value)

    def result(self) -> Iterator[str]:
        yield f"('k', 'l') {self.some} 10000000"


@udf.reduce
class OnePerGroupWaiting(OnePerGroup):
    async def add(self, record: udf.Record) -> None:  # type: ignore[override]  # the shape decides
        await asyncio.sleep(0)
        super().add(record)

    async def result(self) -> str:  # type: ignore[override]  # as above
        return super().result()


@udf.reduce(arrow=True)
def with_table(keys: tuple[str, ...], table: pa.Table, window: udf.Window) -> str:
    return f"{keys} {table['value'].to_pylist()} {window.end_us}"


@udf.reduce(arrow=True)
class OfBatches:
    def __init__(self) -> None:
        self.some: list[Any] = []

    def add(self, batch: pa.RecordBatch) -> None:
        assert batch.num_rows in (1, 2, 5)
        self.some += batch["value"].to_pylist()

    def result(self) -> str:
        return f"('k', 'l') {self.some} 10000000"


@udf.reduce(pandas=True)
def with_frame(keys: tuple[str, ...], frame: Any, window: udf.Window) -> str:
    return f"{keys} {frame.value.to_list()} {window.end_us}"


@pytest.mark.parametrize(
    "function",
    [
        by_place,
        udf.reduce(by_name),
        udf.reduce(by_annotation),
        with_values,
        with_bytes,
        yielding,
        waiting,
        waiting_and_yielding,
        OnePerProcess,
        OnePerGroup,
        OnePerGroupOfValues,
        OnePerGroupWaiting,
        with_table,
        OfBatches,
        with_frame,
    ],
)
@pytest.mark.parametrize("frame_records", [2, 1000])
def test_every_shape_sees_the_same(function: Any, frame_records: int) -> None:
    reduced = run_reduce(
        function, RECORDS, keys=("k", "l"), window=udf.Window(0, 10_000_000), frame_records=frame_records
    )
    assert reduced.values == [b"('k', 'l') [b'0', b'1', b'2', b'3', b'4'] 10000000"]
    (message,) = reduced.messages
    assert (message.keys, message.tags, message.headers, message.event_time_us) == (("k", "l"), (), {}, 9_999_999)


def test_what_a_record_says() -> None:
    seen: list[udf.Record] = []

    def look(keys: Any, records: Any, window: Any) -> None:
        seen.extend(records)

    run_reduce(look, RECORDS, keys=("k",))
    assert [record.event_time_us for record in seen] == [0, 1_000_000, 2_000_000, 3_000_000, 4_000_000]
    assert [dict(record.headers) for record in seen] == [{}, {}, {}, {"n": b"3"}, {}]
    assert {record.keys for record in seen} == {("k",)}
    # Without a key of the window, each has its own.
    seen.clear()
    run_reduce(look, [udf.Record(b"a", keys=("x", "y")), udf.Record(b"b")])
    assert [record.keys for record in seen] == [("x", "y"), ()]


def test_a_window_says_when() -> None:
    window = udf.Window(-1_000_000, 1_356_998_400_000_000, 2)
    assert window.start == datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)
    assert window.end == datetime(2013, 1, 1, tzinfo=UTC)
    assert str(window) == "[1969-12-31T23:59:59Z, 2013-01-01T00:00:00Z, early 2)"
    eternity = udf.Window(-(2**63), 2**63 - 1)
    assert (eternity.start.year, eternity.end.year) == (1, 9999)


@pytest.mark.parametrize(
    ("given", "values"),
    [
        (None, []),
        ([], []),
        (b"a", [b"a"]),
        ("é", ["é".encode()]),
        (bytearray(b"a"), [b"a"]),
        (udf.Message("a"), [b"a"]),
        ([b"a", "b", udf.Message(b"c")], [b"a", b"b", b"c"]),
        ((value for value in ("a", "b")), [b"a", b"b"]),
        (pa.table({"value": ["a", "b"]}), [b"a", b"b"]),
        (pa.table({"value": pa.array([b"a"], pa.large_binary())}), [b"a"]),
        (pa.record_batch({"value": [b"a"]}), [b"a"]),
        (pa.table({"n": [1, None], "at": [datetime(2013, 1, 1, tzinfo=UTC)] * 2}), None),
    ],
)
def test_what_a_function_may_give(given: Any, values: list[bytes] | None) -> None:
    got = run_reduce(lambda keys, records, window: given, [b"1"]).values
    if values is None:
        assert [json.loads(value) for value in got] == [
            {"n": 1, "at": "2013-01-01T00:00:00.000000Z"},
            {"n": None, "at": "2013-01-01T00:00:00.000000Z"},
        ]
    else:
        assert got == values


def test_a_table_with_keys_tags_and_headers() -> None:
    table = pa.table(
        {
            "value": ["1", "2"],
            "keys": pa.array([["x", "y"], None], pa.list_(pa.string())),
            "tags": ["late", None],
            "headers": pa.array([[("h", b"1")], None], pa.map_(pa.string(), pa.binary())),
        }
    )
    reduced = run_reduce(lambda keys, records, window: table, [b"1"], keys=("k",))
    assert [(m.value, m.keys, m.tags, m.headers) for m in reduced.messages] == [
        (b"1", ("x", "y"), ("late",), {"h": b"1"}),
        (b"2", ("k",), (), {}),
    ]


def test_rows_are_written_as_those_of_a_query() -> None:
    table = pa.table(
        {
            "key": ["x"],
            "price": pa.array([Decimal("1.50")], pa.decimal128(5, 2)),
            "share": [math.nan],
            "raw": [b"\xff"],
            "day": [date(2013, 1, 1)],
            "legs": [[{"to": "JFK", "at": datetime(2013, 1, 1, 5, 0, 0, 7, tzinfo=UTC)}]],
            "tags": ["late"],
        }
    )
    (message,) = run_reduce(lambda keys, records, window: table, [b"1"]).messages
    assert (message.keys, message.tags) == (("x",), ("late",))
    assert json.loads(message.value) == {
        "key": "x",
        "price": 1.5,
        "share": None,
        "raw": "/w==",
        "day": "2013-01-01",
        "legs": [{"to": "JFK", "at": "2013-01-01T05:00:00.000007Z"}],
    }


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"n": object}, "a dict cannot be written as JSON: JSON has no type"),
        (7, "not int 7; for JSON return json.dumps"),
        ([b"a", 7], "not int 7"),
        (udf.Message("a", event_time=1), "a result cannot set its event time"),
        (udf.Message("a", keys=["\ud800"]), "keys of a message must be texts"),
        (b"x" * (8 << 20), "a result has 8,388,608 bytes; the maximum is 7,340,032"),
        (pa.table({"value": ["a"], "n": [1]}), "a table of results has a column value, and optionally"),
        (pa.table({"value": [1]}), "the column value must be binary or string, not int64"),
        (pa.table({"value": [None, "a"]}), "the column value has nulls"),
        (pa.table({"n": [timedelta(1)]}), "become JSON, which has no timedelta: add a column value"),
    ],
)
def test_what_a_function_may_not_give(given: Any, reason: str) -> None:
    with pytest.raises(RuntimeError, match=reason):
        run_reduce(lambda keys, records, window: given, [b"1"])


def test_an_exception_has_the_users_traceback() -> None:
    def fails(keys: Any, records: Any, window: Any) -> Iterator[bytes]:
        yield b"a"
        for record in records:
            raise KeyError(record.value)

    with pytest.raises(RuntimeError) as caught:
        run_reduce(fails, [b"x"], keys=("k",))
    text = str(caught.value)
    assert text.startswith("[1970-01-01T00:00:00Z, 1970-01-01T00:01:00Z) k: KeyError: b'x'\nTraceback")
    assert "raise KeyError(record.value)" in text
    assert "millstream_udf" not in text


@pytest.mark.parametrize("error", [udf.Drop("why"), udf.DeadLetter("why"), udf.Retry(1.0, "why"), udf.Fallback("why")])
def test_outcomes_are_for_single_records(error: Exception) -> None:
    def fails(keys: Any, records: Any, window: Any) -> None:
        raise error

    with pytest.raises(RuntimeError, match=rf"{type(error).__name__} is for one record.*\(why\)"):
        run_reduce(fails, [b"x"])


def test_records_are_read_once() -> None:
    def twice(keys: Any, records: Any, window: Any) -> bytes:
        return b"%d" % (len(list(records)) + len(list(records)))

    with pytest.raises(RuntimeError, match=r"can be read only once, .* records = list\(records\)"):
        run_reduce(twice, [b"x"])


def test_windows_and_keys_are_cut() -> None:
    records = [udf.Record(b"%d" % n, event_time=n * 30_000_000, keys=("ab"[n % 2],)) for n in range(6)]
    reduced = run_windows(with_values, records, timedelta(minutes=1))
    assert [(one.window.start_us // 60_000_000, one.keys) for one in reduced] == [
        (minute, (key,)) for minute in range(3) for key in "ab"
    ]
    assert reduced[3].values == [b"('b',) [b'3'] 120000000"]
    whole = run_windows(with_values, records, timedelta(minutes=2), keyed=False)
    assert [one.values for one in whole] == [
        [b"() [b'0', b'1', b'2', b'3'] 120000000"],
        [b"() [b'4', b'5'] 240000000"],
    ]


def test_a_schema_decodes() -> None:
    seen: list[pa.Table] = []

    @udf.reduce(arrow=True, schema=SCHEMA)
    def look(keys: Any, table: pa.Table, window: Any) -> pa.Table:
        seen.append(table)
        return pa.table({"sum": [pc.sum(table["n"])]})

    assert run_reduce(look, JSON, frame_records=2).values == [b'{"sum":10}']
    (table,) = seen
    assert table.schema.names == ["n", "name", "missing", "event_time", "keys", "headers"]
    assert table["name"].to_pylist() == ["a0", "a1", "a2", "a3", "a4"]
    assert table["missing"].null_count == 5
    assert run_reduce(look, []).values == [b'{"sum":null}']


def test_pandas_with_a_schema() -> None:
    @udf.reduce(pandas=True, schema=SCHEMA)
    def mean(keys: Any, frame: Any, window: Any) -> Any:
        return frame.groupby("name", as_index=False).n.mean().head(2)

    assert run_reduce(mean, JSON).values == [b'{"name":"a0","n":0.0}', b'{"name":"a1","n":1.0}']


# What is not a reduce function


def _twice(records: Any, records_too: Any, more: Any, again: Any) -> None: ...
def _keyword(keys: Any, records: Any, window: Any, *, factor: int) -> None: ...
def _nothing() -> None: ...


class _NoResult:
    def add(self, record: udf.Record) -> None: ...


class _Needs:
    def __init__(self, factor: int) -> None: ...
    def add(self, record: udf.Record) -> None: ...
    def result(self) -> None: ...


class _AddsTwo:
    def add(self, record: udf.Record, other: int) -> None: ...
    def result(self) -> None: ...


class _Mixed:
    async def add(self, record: udf.Record) -> None: ...
    def result(self) -> None: ...


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (_twice, r"takes \(records, records_too, more, again\); a reduce function takes the records"),
        (_keyword, "a keyword-only argument factor"),
        (_nothing, r"takes \(\); a reduce function takes the records"),
        (_NoResult, r"needs the methods add\(self, record\) and result\(self\)"),
        (_Needs, r"__init__ takes \(factor\)"),
        (_AddsTwo, r"add takes \(record, other\)"),
        (_Mixed, "add is async, so result must be"),
    ],
)
def test_what_is_no_reduce_function(target: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        define(udf.reduce(target), target.__name__)


def test_options_that_do_not_fit() -> None:
    with pytest.raises(TypeError, match="arrow or pandas, not both"):
        udf.reduce(arrow=True, pandas=True)(by_place)
    with pytest.raises(TypeError, match="schema is for functions with arrow=True or pandas=True"):
        udf.reduce(schema=SCHEMA)(lambda keys, records, window: None)
    with pytest.raises(TypeError, match="event_time in the schema would hide"):
        define(udf.reduce(arrow=True, schema=pa.schema([("event_time", pa.int64())]))(lambda table: None), "f")
    with pytest.raises(TypeError, match="is not async: concurrency=n"):
        define(udf.reduce(concurrency=5)(lambda keys, records, window: None), "f")


def test_a_map_is_no_reduce_and_the_other_way_round() -> None:
    with pytest.raises(TypeError, match=r"is not a reduce function; decorate it with @udf\.reduce"):
        run_reduce(udf.map(lambda value: value), [b"a"])
    with pytest.raises(TypeError, match="use run_reduce or run_windows"):
        run(by_place, [b"a"])
    assert define(by_place, "f").kinds == (REDUCE,)
    assert define(OnePerGroup, "f").kinds == (REDUCE,)
