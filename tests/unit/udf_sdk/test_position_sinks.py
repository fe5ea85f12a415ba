"""Sinks that keep positions, without a pipeline: what the test kit finds, and what the SDK says of mistakes."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import millstream_udf as udf
from millstream_udf.defining import define
from millstream_udf.definition import with_concurrency
from millstream_udf.testing import OpenSink, check_sink, run
from tests.unit.udf_sdk import position_orders as orders

INPUTS = [b"a", b"b", b"c"]


@pytest.fixture
def count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    file = tmp_path / "orders.db"
    monkeypatch.setenv(orders.FILE, str(file))

    def count() -> int:
        with closing(sqlite3.connect(file)) as database:
            number: int = database.execute("SELECT COUNT(*) FROM orders").fetchone()[0]
            return number

    return count


@pytest.mark.process
@pytest.mark.parametrize("sink", [orders.Orders, orders.Batches])
def test_a_sink_that_is_right_passes(sink: type, count: Callable[[], int]) -> None:
    check_sink(sink, INPUTS, count)


@pytest.mark.process
@pytest.mark.parametrize(
    ("sink", "what"),
    [
        (orders.CommitsInWrite, r"after a write without a flush: .* has 6 records instead of 3"),
        (orders.ForgetsToCommit, "after a flush: the target has 0 records instead of 3"),
        (orders.ForgetsThePosition, "after a flush: open returned b'' instead of b'first'"),
        (orders.CommitsInClose, r"after a write without a flush: discard it in close"),
        (orders.NeverFences, "an owner wrote after a newer one had opened the lane"),
        (orders.OnePositionForAll, "open returned the position of another lane"),
    ],
)
def test_a_mistake_is_found(sink: type, what: str, count: Callable[[], int]) -> None:
    with pytest.raises(AssertionError, match=what):
        check_sink(sink, INPUTS, count)


def test_one_call_checks_writes_and_flushes(count: Callable[[], int]) -> None:
    class Checking(orders.Orders):
        def check(self, value: bytes) -> None:
            if value == b"b":
                raise udf.Drop("not b")

    results = run(Checking, INPUTS)
    assert [(outcome.index, outcome.result, outcome.reason) for outcome in results.outcomes] == [(1, "drop", "not b")]
    assert count() == 2


def test_a_typed_value_that_does_not_fit_is_refused_before_anything_is_written(count: Callable[[], int]) -> None:
    @dataclass
    class Order:
        item: str

    class Typed(orders.Orders):
        def check(self, record: udf.Record[Order]) -> None:
            if not record.value.item:
                raise udf.DeadLetter("an order of nothing")

        def write(self, record: udf.Record[Order]) -> None:  # type: ignore[override]  # as the SDK allows
            super().write(record.value.item.encode())

    Typed.write.__annotations__["record"] = Typed.check.__annotations__["record"] = udf.Record[Order]
    results = run(udf.sink(Typed), [{"item": "lamp"}, {"item": ""}, {"thing": "lamp"}])
    assert [(outcome.index, outcome.code) for outcome in results.outcomes] == [(1, ""), (2, "MS-3005")]
    assert count() == 1


def test_what_a_write_raises_discards_the_transaction(count: Callable[[], int]) -> None:
    class Failing(orders.Orders):
        def write(self, value: bytes) -> None:
            super().write(value)
            if value == b"c":
                raise udf.DeadLetter("no c")

    with OpenSink(Failing) as opened:
        with pytest.raises(RuntimeError, match=r"write raised DeadLetter: no c. Raise DeadLetter in check"):
            opened.write(INPUTS)
        with pytest.raises(RuntimeError, match="the lane is not open"):
            opened.flush(b"1")
    assert count() == 0


def test_positions_are_bytes_or_text() -> None:
    class Wrong:
        def open(self, lane: udf.SinkLane) -> int:
            return 7

        def write(self, record: udf.Record) -> None: ...

        def flush(self, position: bytes) -> None: ...

    class WrongToo(Wrong):
        def open(self, lane: udf.SinkLane) -> int:
            raise udf.Fenced(position=7)  # type: ignore[arg-type]  # that is what is wrong

    for wrong in (Wrong, WrongToo):
        with pytest.raises(RuntimeError, match="as bytes or str, or None if it has none, not int"):
            OpenSink(udf.sink(wrong))


class _Whole:
    def open(self, lane: udf.SinkLane) -> None: ...
    def write(self, record: udf.Record) -> None: ...
    def flush(self, position: bytes) -> None: ...


def _without(name: str) -> type:
    return type("Part", (), {key: value for key, value in vars(_Whole).items() if key != name})


@pytest.mark.parametrize(
    ("target", "what"),
    [
        (_without("flush"), r"needs a method flush\(self, position\)"),
        (_without("open"), r"needs a method open\(self, lane\)"),
        (_without("write"), r"needs a method write\(self, record\)"),
        (type("P", (_Whole,), {"write": lambda self, record, more: None}), "takes 2 arguments beside self"),
        (type("P", (_Whole,), {"flush": staticmethod(lambda position: None)}), "flush must be an ordinary method"),
        (type("P", (_Whole,), {"check": lambda self, value: None}), "check must take what P.write takes"),
    ],
)
def test_a_class_that_cannot_keep_positions_is_refused(target: Any, what: str) -> None:
    with pytest.raises(TypeError, match=what):
        define(udf.sink(target), target.__name__)


def test_records_are_written_one_after_another() -> None:
    with pytest.raises(TypeError, match="writes one record after another"):
        define(udf.sink(threads=4)(type("P", (_Whole,), {})), "P")
    kept = define(udf.sink(type("P", (_Whole,), {})), "P")
    assert kept.keeps_positions
    assert not kept.checks
    assert with_concurrency(kept, "1") is kept
    with pytest.raises(TypeError, match="give its vertex `concurrency: 1`"):
        with_concurrency(kept, "8")


def test_a_connection_that_commits_by_itself_is_refused(tmp_path: Path) -> None:
    lane = udf.SinkLane("a", 1, udf.Context())
    with (
        closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as database,
        pytest.raises(RuntimeError, match="open it without autocommit"),
    ):
        udf.PositionTable(database).open(lane)
    with pytest.raises(TypeError, match="PositionTable cannot use a object"):
        udf.PositionTable(object())
    with (
        closing(sqlite3.connect(tmp_path / "a.db")) as database,
        pytest.raises(ValueError, match="is not the name of a table"),
    ):
        udf.PositionTable(database, "a; drop table b")
