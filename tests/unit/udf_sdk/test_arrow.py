"""Functions that take and give Arrow batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import millstream_udf as udf
from millstream_udf.arrow_json import fitting
from millstream_udf.testing import Results, run

GIVEN = [
    udf.Record(b"a", event_time=1_000_000, keys=("k", "l"), headers={"h": b"1"}),
    udf.Record(b"", event_time=2_000_000),
    udf.Record(b"ccc", event_time=3_000_000, keys=("m",), headers={"h": b"2", "i": b""}),
]


def through(function: Callable[[Any], Any], *, transform: bool = False) -> Results:
    return run((udf.source_transform if transform else udf.map)(arrow=True)(function), GIVEN)


def test_what_comes_in() -> None:
    seen: list[pa.RecordBatch] = []

    def look(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(batch)
        return batch

    through(look)
    (batch,) = seen
    rows = batch.to_pylist()
    assert [row["value"] for row in rows] == [b"a", b"", b"ccc"]
    assert [row["keys"] for row in rows] == [["k", "l"], [], ["m"]]
    assert [row["headers"] for row in rows] == [[("h", b"1")], [], [("h", b"2"), ("i", b"")]]
    assert [row["event_time"].timestamp() for row in rows] == [1, 2, 3]
    assert [row["parent"] for row in rows] == [0, 1, 2]


@pytest.mark.parametrize("count", [3, 1200, 5000])
def test_the_offsets_of_values_are_aligned(count: int) -> None:
    addresses: list[int] = []

    def look(batch: pa.RecordBatch) -> pa.RecordBatch:
        offsets = batch["value"].buffers()[1]
        assert offsets is not None
        addresses.append(offsets.address)
        return batch

    results = run(udf.map(arrow=True)(look), [b"%d" % number for number in range(count)])
    assert len(results.values) == count
    assert [address % 4 for address in addresses] == [0]


def test_handing_on_changes_nothing() -> None:
    messages = through(lambda batch: batch).messages
    assert [(m.value, m.keys, m.headers, m.event_time_us) for m in messages] == [
        (r.value, r.keys, r.headers, r.event_time_us) for r in GIVEN
    ]


def test_rows_can_be_left_out_and_repeated() -> None:
    results = through(
        lambda batch: batch.filter(pc.greater(pc.binary_length(batch["value"]), pa.scalar(0, pa.int32())))
    )
    assert results.values == [b"a", b"ccc"]
    assert list(results.parents) == [0, 2]
    results = through(lambda batch: batch.take(pa.array([0, 0, 2])))
    assert results.values == [b"a", b"a", b"ccc"]
    assert [message.keys for message in results.messages] == [("k", "l"), ("k", "l"), ("m",)]
    assert through(lambda batch: batch.slice(0, 0)).values == []


def test_a_slice_keeps_its_bytes() -> None:
    assert through(lambda batch: batch.slice(2)).values == [b"ccc"]


def test_columns_that_are_made() -> None:
    def process(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            [
                pa.array(["x", "y", "z"]),
                pa.array(["one", None, "three"]),
                pa.array([["t"], [], ["u", "v"]]),
            ],
            names=["value", "keys", "tags"],
        )

    messages = through(process).messages
    assert [m.value for m in messages] == [b"x", b"y", b"z"]
    assert [m.keys for m in messages] == [("one",), (), ("three",)]
    assert [m.tags for m in messages] == [("t",), (), ("u", "v")]
    assert messages[0].headers == {"h": b"1"}


def test_a_table_will_do() -> None:
    assert through(lambda batch: pa.Table.from_batches([batch, batch]).slice(0, 3)).values == [b"a", b"", b"ccc"]


def test_event_times_are_for_source_transforms() -> None:
    def later(batch: pa.RecordBatch) -> pa.RecordBatch:
        times = pc.add(batch["event_time"].cast(pa.int64()), 5).cast(pa.timestamp("us", tz="UTC"))
        return batch.set_column(1, "event_time", times)

    results = through(later, transform=True)
    assert [message.event_time_us for message in results.messages] == [1_000_005, 2_000_005, 3_000_005]
    with pytest.raises(RuntimeError, match="only a source transform can set event times"):
        through(later)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([b"a"], "returns a pyarrow.RecordBatch, not list"),
        (pa.record_batch({"keys": ["a"]}), "has a column value, or your own columns.*This one has keys"),
        (pa.record_batch({"value": [b"a"], "other": [1]}), "This one has value, other"),
        (pa.record_batch({"value": [b"a"]}), "3 records came in and 1 went out: keep the column parent"),
        (pa.record_batch({"value": [1, 2, 3]}), "value must be binary or string, not int64"),
        (pa.record_batch({"value": [b"a", None, b"c"]}), "the column value has nulls"),
        (pa.record_batch({"value": [b"a"], "parent": [3]}), r"indexes of input records \(0 to 2\)"),
        (pa.record_batch({"value": [b"a", b"b"], "parent": [1, 0]}), "in ascending order: 0"),
        (pa.record_batch({"value": [b"a"], "parent": pa.array([None], pa.int8())}), "in ascending order: None"),
        (pa.record_batch({"value": [b"a"] * 3, "keys": [1, 2, 3]}), "keys must be string or list<string>, not int64"),
    ],
)
def test_what_does_not_fit(given: Any, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        through(lambda batch: given)


@pytest.mark.parametrize(
    "changes", [lambda batch: batch, lambda batch: batch.slice(1, 2), lambda batch: batch.take(pa.array([0, 2]))]
)
@pytest.mark.parametrize("given", [GIVEN, [udf.Record(b"1"), udf.Record(b"2", event_time=9), udf.Record(b"3")]])
def test_columns_that_are_left_alone_are_inherited(changes: Callable[[Any], Any], given: list[udf.Record]) -> None:
    """With and without keys and headers."""
    kept = [int(parent) for parent in changes(pa.record_batch({"parent": pa.array(range(3))}))["parent"].to_pylist()]
    messages = run(udf.map(arrow=True)(changes), given).messages
    assert [(m.value, m.keys, m.headers, m.event_time_us) for m in messages] == [
        (r.value, r.keys, r.headers, r.event_time_us) for r in (given[at] for at in kept)
    ]


@pytest.mark.parametrize("rest", [b'{"x": 1, "y":', b'{"x": 1, "y": ['])
def test_objects_that_are_not_in_records_of_their_own_do_not_fit(rest: bytes) -> None:
    """There are as many objects as records."""
    values = [b'{"x": 1}{"x": 2}', rest, b'{"z": 3}}' if rest.endswith(b":") else b'{"z": 3}]}', b' {"x": 4}\n']
    schema = pa.schema([pa.field("x", pa.int64(), nullable=False)])
    whole, misfits = fitting(pa.record_batch({"value": pa.array(values, pa.binary())}), schema)
    assert whole.to_pylist() == [{"x": 4}]
    assert list(misfits) == [0, 1, 2]
