"""Tables in functions: how they are declared and read, in each form of a function, and what is refused, with advice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from google.protobuf.struct_pb2 import Struct

import millstream_udf as udf
from millstream_udf import columns
from millstream_udf.defining import define
from millstream_udf.streaming import refuses_streaming
from millstream_udf.tables import LaneTables, tables_of
from millstream_udf.testing import run, run_timers
from millstream_udf.wire.udf.v1 import udf_pb2

WRONG: Any = udf
"""For uses that type checkers refuse."""
RATES = {"rates": {"EUR": {"rate": 1.1}, ("GBP", "2024"): {"rate": 1.3}}}


@dataclass
class Rate:
    rate: float


@udf.map
class Typed:
    rates = udf.table(Rate)

    def process(self, record: udf.Record) -> dict[str, Any]:
        eur = self.rates["EUR"]
        first = eur.rate
        # Changing it changes nothing.
        eur.rate = 0.0
        found = [first, self.rates["EUR"].rate, "GBP" in self.rates, ("GBP", "2024") in self.rates, len(self.rates)]
        return {"found": found}


def test_a_class_reads_objects_of_a_type() -> None:
    assert run(Typed, ["x"], tables=RATES).objects() == [{"found": [1.1, 1.1, False, True, 2]}]


def test_a_table_is_a_mapping_that_cannot_be_changed() -> None:
    @udf.map
    class Looking:
        rates = udf.table(dict)

        def process(self, value: bytes) -> dict[str, Any]:
            assert self.rates.get("USD") is None
            assert self.rates.get("USD", 7) == 7
            assert WRONG not in self.rates
            with pytest.raises(KeyError):
                self.rates["USD"]
            with pytest.raises(AttributeError, match="its records do that, which come by its edge"):
                self.rates = WRONG
            with pytest.raises(TypeError):
                self.rates["USD"] = {}  # type: ignore[index]
            return {"keys": list(self.rates), "values": list(self.rates.values())}

    (found,) = run(Looking, ["x"], tables=RATES).objects()
    assert found == {"keys": ["EUR", ["GBP", "2024"]], "values": [{"rate": 1.1}, {"rate": 1.3}]}


def test_other_functions_read_tables_by_the_context() -> None:
    def plain(value: bytes, context: udf.Context) -> str:
        return str(context.tables["rates"]["EUR"]["rate"])

    @udf.map(batch=True)
    def batch(values: list[bytes], context: udf.Context) -> list[str]:
        return [str(context.tables["rates"]["EUR"]["rate"])] * len(values)

    @udf.map(threads=2)
    def threads(value: bytes, context: udf.Context) -> str:
        return str(context.tables["rates"]["EUR"]["rate"])

    @udf.map
    async def concurrent(value: bytes, context: udf.Context) -> str:
        return str(context.tables["rates"]["EUR"]["rate"])

    for function in (plain, batch, threads, concurrent):
        assert run(function, ["x", "y"], tables=RATES).values == [b"1.1", b"1.1"]


def test_a_timer_sees_the_tables() -> None:
    @udf.map
    class Late:
        rates = udf.table(Rate)

        def process(self, record: udf.Record) -> None:
            udf.timer("later", at=5)

        def on_timer(self, timer: udf.Timer) -> str:
            return str(self.rates["EUR"].rate)

    states = run(Late, [udf.Record(b"x", 0, ("a",))]).states
    assert run_timers(Late, states, watermark_us=10, tables=RATES).values == [b"1.1"]


def test_a_missing_table_is_named() -> None:
    def plain(value: bytes, context: udf.Context) -> str:
        return str(context.tables["prices"]["EUR"])

    (outcome,) = run(plain, ["x"], tables=RATES).outcomes
    assert "the vertex has no table 'prices' in its `tables`; it has rates" in outcome.reason
    (outcome,) = run(Typed, ["x"]).outcomes
    assert "table rates can only be read while a record is processed" in outcome.reason
    with pytest.raises(udf.StateError, match="not in __init__, setup or close"):
        _ = Typed().rates


def test_a_value_that_is_not_of_the_type_fails_its_record() -> None:
    (outcome,) = run(Typed, ["x"], tables={"rates": {"EUR": b'{"price": 1}'}}).outcomes
    assert "the value of 'EUR' in table rates cannot be read" in outcome.reason
    with pytest.raises(TypeError, match="table rates: a dict is not what the state stores"):
        run(Typed, ["x"], tables={"rates": {"EUR": {"price": 1}}})


def test_values_have_codecs() -> None:
    class Coded:
        raw = udf.table(bytes)
        packed = udf.table(dict, codec="msgpack")
        message = udf.table(Struct)
        anything = udf.table()

    assert {name: spec.codec.name for name, spec in tables_of(Coded, "Coded").items()} == {
        "raw": "bytes",
        "packed": "msgpack",
        "message": "protobuf",
        "anything": "json",
    }
    with pytest.raises(TypeError, match="codec='pickle' is not one of"):
        udf.table(dict, codec="pickle")


def test_only_maps_read_tables() -> None:
    for decorator in (udf.sink, udf.source_transform):

        @decorator
        class Wrong:
            rates = udf.table(Rate)

            def process(self, record: udf.Record) -> None:
                """Nothing."""

        with pytest.raises(TypeError, match="Wrong reads table rates, which only maps can"):
            define(Wrong, "Wrong")

    class Undecorated:
        rates = udf.table(Rate)

        def process(self, value: bytes) -> bytes:
            return value

    assert define(Undecorated, "Undecorated").kinds == (udf_pb2.KIND_MAP,)


def test_a_function_that_reads_tables_does_not_stream() -> None:
    refusal = refuses_streaming(define(Typed, "rates.py:Typed"))
    assert refusal.startswith("the pipeline has `streaming: true`, and rates.py:Typed reads tables: put what yields")


def test_one_declaration_is_one_table() -> None:
    class Two:
        a = b = udf.table(Rate)

    with pytest.raises(TypeError, match="a and b are one table"):
        tables_of(Two, "Two")


def update(base: int, version: int, entries: dict[bytes, bytes], table: str = "rates") -> bytes:
    return udf_pb2.SealedTableUpdate(
        base=base,
        version=version,
        table=table,
        keys=columns.pack_lists([(key,) for key in entries]),
        values=columns.pack_bytes(list(entries.values())),
    ).SerializeToString()


def test_an_update_is_only_for_the_version_before_it() -> None:
    tables = LaneTables({})
    assert tables.update(update(0, 4, {b"a": b"1", b"b": b"2"}))
    assert tables.update(update(4, 5, {b"a": b"", b"c": b"3"}))
    assert not tables.update(update(4, 6, {b"a": b"4"}))
    assert (tables.version, dict(tables.by_name["rates"])) == (5, {"b": 2, "c": 3})
    # Everything before is forgotten, also other tables.
    assert tables.update(update(0, 7, {}, "other"))
    assert {name: dict(table) for name, table in tables.by_name.items()} == {"other": {}}
    with pytest.raises(ValueError, match="1 bytes are not an update of a table"):
        tables.update(b"\xff")
    assert tables.version == 7


def test_an_update_has_a_key_for_each_value() -> None:
    message = udf_pb2.SealedTableUpdate(base=0, version=1, table="rates", values=columns.pack_bytes([b"1", b"2"]))
    message.keys = columns.pack_lists([(b"a",)])
    tables = LaneTables({})
    with pytest.raises(ValueError, match="1 entries for 2 records"):
        tables.update(message.SerializeToString())
    assert tables.version == 0
