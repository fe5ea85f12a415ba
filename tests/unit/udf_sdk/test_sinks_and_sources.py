"""Sinks and sources through the test kit."""

from __future__ import annotations

from typing import Any

import pytest

import millstream_udf as udf
from millstream_udf.testing import read_source, run


def test_a_sink_sees_ids_that_stay_the_same() -> None:
    ids: list[str | None] = []

    @udf.sink
    def write(record: udf.Record) -> None:
        ids.append(record.id)

    assert not run(write, [b"a", b"b"]).outcomes
    run(write, [b"a", b"b"], attempt=1)
    assert ids == ["test/in-test/0/1/0", "test/in-test/0/1/1"] * 2


def test_a_sink_sees_the_sources_own_ids() -> None:
    ids: list[str | None] = []

    @udf.sink
    def write(record: udf.Record) -> None:
        ids.append(record.id)

    run(write, [udf.Record(b"a", id="own-1"), udf.Record(b"b", id="own-2")])
    assert ids == ["own-1", "own-2"]


def test_outcomes_of_a_sink() -> None:
    outcomes = {
        b"retry": udf.Retry(1),
        b"back": udf.Fallback("full"),
        b"drop": udf.Drop("old"),
        b"bad": ValueError("x"),
    }

    @udf.sink
    def write(record: udf.Record) -> None:
        if record.value in outcomes:
            raise outcomes[record.value]

    results = run(write, [b"a", *outcomes])
    assert [(outcome.index, outcome.result) for outcome in results.outcomes] == [
        (1, "retry"),
        (2, "fallback"),
        (3, "drop"),
        (4, "error"),
    ]
    assert results.outcomes[1].reason == "full"


def test_a_sink_returns_nothing() -> None:
    (outcome,) = run(lambda value: False, [b"a"], kind="sink").outcomes
    assert outcome.reason == "a sink's function returns nothing, not bool False; raise an exception to fail"


@pytest.mark.parametrize("given", [None, [None, ValueError("x")]])
def test_a_batch_sink(given: Any) -> None:
    results = run(udf.sink(batch=True)(lambda records: given), [b"a", b"b"])
    assert [outcome.index for outcome in results.outcomes] == ([] if given is None else [1])


@udf.source
class Numbers:
    """Counts; remembers what was committed."""

    committed_positions: list[bytes] = []  # noqa: RUF012 - shared on purpose, so that the test sees it

    async def open(self, position: bytes, partition: int, partitions: int) -> None:
        self.next = int(position or b"0")

    async def read(self, context: udf.Context, records_max: int, timeout: float) -> udf.Batch:
        numbers = range(self.next, min(self.next + records_max, 7))
        self.next = numbers.stop
        records = [udf.Record(b"%d" % n, event_time=n, keys=("odd",) if n % 2 else (), id=f"n{n}") for n in numbers]
        return udf.Batch(records, position=b"%d" % self.next, ended=self.next == 7, pending=7 - self.next)

    async def committed(self, position: bytes) -> None:
        self.committed_positions.append(position)


def test_a_source_goes_on_where_it_stood() -> None:
    first = read_source(Numbers, records_max=3)
    rest = read_source(Numbers, position=first[-1].position, records_max=3, reads=10)
    assert [record.value for batch in first + rest for record in batch.records] == [b"%d" % n for n in range(7)]
    assert [batch.ended for batch in rest] == [False, True]
    assert first[0].pending == 4
    assert first[0].records[1] == udf.Record(b"1", event_time=1, keys=("odd",), id="n1")
    assert Numbers.committed_positions == [b"3", b"6", b"7"]


def one(value: Any = b"", **fields: Any) -> udf.Batch:
    """A batch whose second record is not what a record is."""
    given = {"id": "b", **fields}
    return udf.Batch([udf.Record(b"a", id="a"), udf.Record(value, **given)], position=b"")


def test_a_source_may_give_text_as_a_map_may() -> None:
    @udf.source
    class Texts:
        async def read(self, context: udf.Context, records_max: int, timeout: float) -> udf.Batch:
            return udf.Batch([udf.Record("grüße"), udf.Record(b"a")], position=b"", ended=True)

    (batch,) = read_source(Texts)
    assert [record.value for record in batch.records] == ["grüße".encode(), b"a"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "read must return a Batch, not list"),
        (udf.Batch([b"a"], position=b""), "a Batch contains Records, not bytes"),  # type: ignore[list-item]
        (udf.Batch([udf.Record(b"")] * 9, position=b""), "read returned 9 records, but at most 5 were requested"),
        (
            udf.Batch([udf.Record(b"", id="a"), udf.Record(b"")], position=b""),
            "all records of a batch have an id or none",
        ),
        (udf.Batch(position=7), "a position must be bytes, not int"),  # type: ignore[arg-type]
        (one(value={"n": object}), r"a dict cannot be written as JSON: JSON has no type \(field `n`\)"),
        (one(value=None), "record 1 of the batch: its value must be bytes, str, a dict, .* or a model, not None"),
        (one(keys="ab"), "record 1 of the batch: its keys must be a tuple of texts, not str"),
        (one(keys=(1,)), "record 1 of the batch: its keys must be a tuple of texts, not"),
        (one(headers={"h": "text"}), "record 1 of the batch: its headers must be a mapping of texts to bytes"),
        (one(event_time=2**63), "record 1 of the batch: its event_time_us must be in the years 1 to 9999"),
        (one(value="\ud800"), "record 1 of the batch"),
        (one(id=7), "record 1 of the batch: its id must be a text or None, not int"),
    ],
)
def test_what_a_source_may_not_give(given: Any, message: str) -> None:
    @udf.source
    class Wrong:
        async def read(self, context: udf.Context, records_max: int, timeout: float) -> Any:
            return given

    with pytest.raises(RuntimeError, match=message):
        read_source(Wrong, records_max=5)


def test_a_source_is_a_class_with_async_methods() -> None:
    class Blocking:
        def read(self, context: udf.Context, records_max: int, timeout: float) -> udf.Batch:
            raise AssertionError

    with pytest.raises(TypeError, match="a source takes no inputs"):
        run(Numbers, [b"a"])
    with pytest.raises(TypeError, match=r"Blocking\.read must be async"):
        run(udf.source(Blocking), [b"a"])
