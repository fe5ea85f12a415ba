"""The `bigquery` sink on a stand-in for the service: types, refused rows, lost answers, two owners, expired streams."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.cloud.bigquery_storage_v1 import types
from hypothesis import Phase, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from millstream import codes
from millstream.clock import SystemClock
from millstream.codes.code import Code
from millstream.errors import RetryLaterError
from millstream.limits import BIGQUERY_NOTE_PAUSE_S, BIGQUERY_NOTED_AGAIN_S
from millstream.record import Position
from millstream.spec.models import FallbackSink
from millstream_connectors.bigquery.client import linked
from millstream_connectors.bigquery.sink import rows as rows_module
from millstream_connectors.bigquery.sink.appending import Appending, Request
from millstream_connectors.bigquery.sink.lane import REFUSED
from millstream_connectors.bigquery.sink.rows import MISFIT, TOO_LARGE, RowType
from millstream_connectors.opening_sinks import open_sink
from millstream_writer.sink import SinkFrame, SinkLane
from tests.contract.sinks.file_target import NOWHERE, sink_owner, value_of
from tests.contract.sinks.sink_targets import NUMBERS, bigquery_numbers, bigquery_spec
from tests.contract.sinks.validating import validate_sink
from tests.support.bigquery_server import BigQueryServer, open_bigquery, schema_of
from tests.support.errors import raises
from tests.support.generated_rows import DOUBLE, INSTANT, LONG, TEXT, as_json
from tests.support.sizes import sized
from tests.unit.writer.sink_frames import sink_frame


@pytest.fixture
def server() -> Iterator[BigQueryServer]:
    with open_bigquery() as opened:
        yield opened


class LateClock(SystemClock):
    """That can be set ahead."""

    late_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.late_s


def numbers(sequence: int) -> SinkFrame:
    """Ten of them, from ten times the sequence on."""
    made = [value_of(n) for n in range(sequence * 10, sequence * 10 + 10)]
    return sink_frame(made, sequence, name=f"frame-{sequence}")


async def write(lane: SinkLane, *sequences: int) -> None:
    for sequence in sequences:
        while True:
            try:
                assert not (await lane.write([numbers(sequence)], Position(sequence))).failures
            except RetryLaterError:
                continue
            break


def expected(*sequences: int) -> list[int]:
    return [n for sequence in sequences for n in range(sequence * 10, sequence * 10 + 10)]


async def test_values_become_those_of_their_columns(server: BigQueryServer) -> None:
    schema = schema_of(
        {
            "s": "STRING",
            "i": "INT64",
            "f": "DOUBLE",
            "b": "BOOL",
            "raw": "BYTES",
            "ts": "TIMESTAMP",
            "d": "DATE",
            "t": "TIME",
            "dt": "DATETIME",
            "num": "NUMERIC",
            "big": "BIGNUMERIC",
            "j": "JSON",
            "g": "GEOGRAPHY",
            "from": "STRING",
            "Clear": "INT64",
            "many": ("INT64", "REPEATED"),
        }
    )
    struct = schema.fields.add(name="items", type_=types.TableFieldSchema.Type.STRUCT)
    struct.mode = types.TableFieldSchema.Mode.REPEATED
    struct.fields.add(name="sku", type_=types.TableFieldSchema.Type.STRING, mode=types.TableFieldSchema.Mode.REQUIRED)
    struct.fields.add(name="day", type_=types.TableFieldSchema.Type.DATE)
    table = server.create({}, schema=schema)
    names = [one.name for one in schema.fields]
    value = {
        "s": "é",
        "i": 1 << 62,
        "f": 0.5,
        "b": True,
        "raw": base64.b64encode(b"\xff\0").decode(),
        "ts": "1970-01-01T01:00:00.000001+01:00",
        "d": "1970-01-03",
        "t": "12:00:01.5",
        "j": {"a": [1]},
        "dt": "2024-01-01T12:00:00",
        "num": 12.5,
        "big": "0." + "1" * 38,
        "g": "POINT(1 2)",
        "from": 3,
        "Clear": 4,
        "many": [1, 2],
        "items": [{"sku": "a", "day": "1970-01-02"}, {"sku": "b"}],
    }
    spec = bigquery_spec(server, table, columns=[{"name": name} for name in names])
    frame = sink_frame([json.dumps(value).encode(), b"{}"], 1)
    async with open_sink(spec, sink_owner(1)) as lane:
        assert not (await lane.write([frame], Position(1))).failures
    first, second = server.rows(table)
    assert first == {
        "s": "é",
        "i": 1 << 62,
        "f": 0.5,
        "b": True,
        "raw": b"\xff\0",
        "ts": 1,
        "d": 2,
        "t": "12:00:01.500000",
        "dt": "2024-01-01T12:00:00",
        "num": "12.5",
        "big": "0." + "1" * 38,
        "j": '{"a":[1]}',
        "g": "POINT(1 2)",
        "from": "3",
        "Clear": 4,
        "many": [1, 2],
        "items": [{"sku": "a", "day": 1}, {"sku": "b"}],
    }
    assert second == {}


MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))  # noqa: DTZ001


def numerics(whole: int, digits: int) -> st.SearchStrategy[Any]:
    """All numbers of a type with so many digits before and after the decimal point."""
    most = 10 ** (whole + digits) - 1
    return (st.integers(-most, most) | st.sampled_from([most, -most, 1, 0])).map(
        lambda number: Decimal(number).scaleb(-digits, Context(prec=whole + digits))
    )


CELLS: Mapping[str, st.SearchStrategy[Any]] = {
    "STRING": TEXT,
    "INT64": LONG,
    "DOUBLE": DOUBLE,
    "BOOL": st.booleans(),
    "BYTES": st.binary(max_size=8),
    "DATE": st.dates(),
    "TIME": st.times(),
    "DATETIME": MOMENTS,
    "TIMESTAMP": INSTANT,
    "NUMERIC": numerics(29, 9),
    "BIGNUMERIC": numerics(38, 38),
    "GEOGRAPHY": st.just("POINT(1 2)"),
    "INTERVAL": st.just("1-2 3 4:5:6"),
    "JSON": st.recursive(
        st.none() | st.booleans() | LONG | numerics(20, 20) | TEXT,
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
        max_leaves=4,
    ),
}
"""Of each type that the sink writes."""
STRUCTS = st.fixed_dictionaries({kind: st.none() | cells for kind, cells in CELLS.items()})
ROW = st.fixed_dictionaries(
    {kind: st.none() | cells for kind, cells in CELLS.items()}
    | {
        f"{kind}_list": st.lists(cells.filter(lambda cell: cell is not None), max_size=2)
        for kind, cells in CELLS.items()
    }
    | {"struct": STRUCTS, "struct_list": st.lists(STRUCTS, max_size=2)}
)


def schema_of_all() -> Any:
    schema = schema_of({**{kind: kind for kind in CELLS}, **{f"{kind}_list": (kind, "REPEATED") for kind in CELLS}})
    inner = schema_of({kind: kind for kind in CELLS}).fields
    for name, mode in (("struct", "NULLABLE"), ("struct_list", "REPEATED")):
        struct = schema.fields.add(
            name=name, type_=types.TableFieldSchema.Type.STRUCT, mode=getattr(types.TableFieldSchema.Mode, mode)
        )
        struct.fields.extend(inner)
    return schema


MEANING: Mapping[str, Callable[[Any], Any]] = {
    "DATE": lambda days: date(1970, 1, 1) + timedelta(days=days),
    "TIME": time.fromisoformat,
    "DATETIME": datetime.fromisoformat,
    "TIMESTAMP": lambda micros: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros),
    "NUMERIC": Decimal,
    "BIGNUMERIC": Decimal,
    "JSON": lambda text: json.loads(text, parse_float=Decimal),
}
"""What the value of a field stands for, as the service documents it."""


def meant(name: str, value: Any) -> Any:
    if name == "struct":
        return {one: meant(one, value.get(one)) for one in CELLS}
    if value is not None and name.endswith("_list"):
        return [meant(name.removesuffix("_list"), one) for one in value]
    return None if value is None else MEANING.get(name, lambda same: same)(value)


@examples(max_examples=sized(1, 4), derandomize=True, phases=[Phase.explicit, Phase.generate])
@given(st.lists(ROW, min_size=2, max_size=4))
def test_rows_mean_what_the_records_say(rows: list[dict[str, Any]]) -> None:
    schema = schema_of_all()
    names = [one.name for one in schema.fields]
    with open_bigquery() as server:
        table = server.create({}, schema=schema)

        async def write_all() -> None:
            frame = sink_frame([as_json(row, numbers=True).encode() for row in rows], 1)
            spec = bigquery_spec(server, table, columns=[{"name": name} for name in names])
            async with open_sink(spec, sink_owner(1)) as lane:
                assert not (await lane.write([frame], Position(1))).failures

        asyncio.run(write_all())
        found = server.rows(table)
    for one, row in zip(found, rows, strict=True):
        for name in names:
            # Without elements, a list is not in the message.
            empty: list[Any] | None = [] if name.endswith("_list") else None
            assert meant(name, one.get(name, empty)) == row[name], name


@pytest.mark.parametrize("odd", [1, 2**63, 1.5, True, "a", "\ud800", None, "2024-01-31T00:00:00Z", [1], {}])
@pytest.mark.parametrize("kind", ["INT64", "STRING", "DOUBLE", "BOOL", "TIMESTAMP", "JSON"])
@pytest.mark.parametrize("mode", ["NULLABLE", "REQUIRED", "REPEATED"])
def test_rows_made_together_are_what_each_is_alone(odd: object, kind: str, mode: str) -> None:
    row_type = RowType(schema_of({"n": "INT64", "c": (kind, mode)}), ["n", "c"])
    usual = {"INT64": 1, "STRING": "a", "DOUBLE": 1.5, "BOOL": True, "TIMESTAMP": "2024-01-31T00:00:00Z", "JSON": {}}[
        kind
    ]
    column = [[usual] if mode == "REPEATED" else usual, odd]
    try:
        alone = [row_type.encode(cells) for cells in zip([1, 2], column, strict=True)]
    except ValueError:
        assert row_type.encode_all([[1, 2], column]) is None
    else:
        assert row_type.encode_all([[1, 2], column]) == alone


async def test_parts_of_a_record_become_columns(server: BigQueryServer) -> None:
    table = server.create(
        {"id": "STRING", "event_time": "TIMESTAMP", "keys": "JSON", "headers": "JSON", "value": "BYTES"}
    )
    frame = sink_frame([b"\xff"], 1, keys=[[b"k"]], headers=[{"h": b"1"}], ids=["x"])
    async with open_sink(bigquery_spec(server, table, columns=[]), sink_owner(1)) as lane:
        assert not (await lane.write([frame], Position(1))).failures
    (row,) = server.rows(table)
    assert row == {"id": "x", "event_time": 1_000_000, "keys": '["k"]', "headers": '{"h":"1"}', "value": b"\xff"}


@pytest.mark.guarantee("I1", "I2")
@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        ("INT64", 1 << 63),
        ("INT64", True),
        ("INT64", "x"),
        ("DOUBLE", "x"),
        ("BOOL", 1),
        ("BYTES", "not base64!"),
        ("TIMESTAMP", 5),
        ("TIMESTAMP", "yesterday"),
        ("DATE", "2024-02-30"),
        ("TIME", "25:00"),
        ("NUMERIC", "1" * 30),
        ("NUMERIC", "0.0000000001"),
        ("NUMERIC", "12345678901234567890123456789.0000000001"),
        ("NUMERIC", "NaN"),
        ("GEOGRAPHY", 5),
        (("INT64", "REPEATED"), 5),
        (("INT64", "REPEATED"), [1, None]),
        (("INT64", "REQUIRED"), None),
    ],
)
async def test_a_value_that_its_column_cannot_have_fails_alone(
    server: BigQueryServer, kind: str | tuple[str, str], bad: object
) -> None:
    table = server.create({"n": "INT64", "x": kind})
    good: object = [7] if "REPEATED" in kind else {"GEOGRAPHY": "POINT(1 2)", "BOOL": True, "BYTES": ""}.get(kind[0])
    if good is None and kind == ("INT64", "REQUIRED"):
        good = 7
    values = [{"n": 1, "x": good}, {"n": 2, "x": bad}, {"n": 3, "x": good}]
    frame = sink_frame([json.dumps(value).encode() for value in values], 1)
    async with open_sink(bigquery_spec(server, table, columns=[{"name": "n"}, {"name": "x"}]), sink_owner(1)) as lane:
        ((failure,),) = (await lane.write([frame], Position(1))).failures
        # Nothing behind it is there before it is known what becomes of it.
        assert [row["n"] for row in server.rows(table)] == [1]
        await lane.flush()
    assert (failure.index, failure.reason, failure.retryable) == (1, MISFIT, False)
    assert "`x`" in failure.detail
    assert [row["n"] for row in server.rows(table)] == [1, 3]


@pytest.mark.guarantee("I1", "I2")
async def test_rows_that_only_the_service_refuses_fail_alone_and_again_after_a_crash(server: BigQueryServer) -> None:
    table = server.create(NUMBERS)
    server.refuses = lambda row: "out of bounds" if row.get("n") in (13, 17) else ""
    spec = bigquery_spec(server, table)
    good = [n for n in expected(1) if n not in (13, 17)]
    async with open_sink(spec, sink_owner(1)) as lane:
        (failures,) = (await lane.write([numbers(1)], Position(1))).failures
        assert bigquery_numbers(server, table) == [10, 11, 12]
        await lane.flush()
        assert lane.durable == Position(1)
    assert [(failure.index, failure.reason) for failure in failures] == [(3, REFUSED), (7, REFUSED)]
    assert "out of bounds" in failures[0].detail
    assert bigquery_numbers(server, table) == good
    # The mark was not written: all is offered again, and what was set aside is set aside again.
    server.refuses = lambda row: ""
    async with open_sink(spec, sink_owner(2)) as lane:
        (failures,) = (await lane.write([numbers(1)], Position(1))).failures
        assert [failure.index for failure in failures] == [3, 7]
    assert bigquery_numbers(server, table) == good


@pytest.mark.guarantee("I1")
async def test_a_write_of_many_requests_is_there_once_wherever_an_answer_is_lost(
    server: BigQueryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "ROW_BYTES_MAX", 60)
    for lost in range(1, 12, sized(4, 1)):
        table = server.create(NUMBERS)
        seen = iter(range(1, 10_000))
        server.cut_after = lambda method, request, lost=lost, seen=seen: method == "AppendRows" and next(seen) == lost  # type: ignore[misc]
        async with open_sink(bigquery_spec(server, table), sink_owner(1)) as lane:
            await write(lane, 1, 2, 3)
        assert next(seen) > lost
        assert bigquery_numbers(server, table) == expected(1, 2, 3), lost


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize("method", ["CreateWriteStream", "FinalizeWriteStream", "CreateReadSession", "GetWriteStream"])
async def test_an_answer_that_is_lost_while_a_lane_opens_changes_nothing(server: BigQueryServer, method: str) -> None:
    table = server.create(NUMBERS)
    async with open_sink(bigquery_spec(server, table), sink_owner(1)) as lane:
        await write(lane, 1)
    for lost in (1, 2):
        seen = iter(range(1, 10_000))
        server.cut_after = lambda name, _, lost=lost, seen=seen: name == method and next(seen) == lost  # type: ignore[misc]
        async with open_sink(bigquery_spec(server, table), sink_owner(1 + lost)) as lane:
            await write(lane, 1, 2)
    assert bigquery_numbers(server, table) == expected(1, 2)


@pytest.mark.guarantee("I1")
async def test_of_two_owners_the_older_has_no_effect(server: BigQueryServer) -> None:
    table = server.create(NUMBERS)
    spec = bigquery_spec(server, table)
    async with open_sink(spec, sink_owner(1)) as old:
        await write(old, 1)
        async with open_sink(spec, sink_owner(2, start=Position(1))) as new:
            with raises(codes.OUTPUT_TAKEN_OVER):
                await write(old, 2)
            await write(new, 2)
        with raises(codes.OUTPUT_TAKEN_OVER):
            async with open_sink(spec, sink_owner(1)):
                pass
    assert bigquery_numbers(server, table) == expected(1, 2)


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize("step", ["CreateWriteStream", "claim", "FinalizeWriteStream", "second read", "first note"])
async def test_an_owner_that_stands_still_while_it_opens_has_no_effect(server: BigQueryServer, step: str) -> None:
    """Another one opens and writes meanwhile, right before a request of the first one arrives."""
    table = server.create(NUMBERS)
    spec = bigquery_spec(server, table)
    async with open_sink(spec, sink_owner(1)) as lane:
        await write(lane, 1)
    method, time = {
        "claim": ("AppendRows", 1),
        "second read": ("CreateReadSession", 2),
        "first note": ("AppendRows", 2),
    }.get(step, (step, 1))
    reached = iter(range(1, 10_000))
    halted = server.halt_before(lambda name, _: name == method and next(reached) == time)
    async with server.beside(halted, lambda: _open_and_write(spec, 3, (1, 2))):
        with raises(codes.OUTPUT_TAKEN_OVER):
            await _open_and_write(spec, 2, (1, 3))
    async with open_sink(spec, sink_owner(4, start=Position(2))) as lane:
        assert lane.durable == Position(2)
        await write(lane, 3)
    assert bigquery_numbers(server, table) == expected(1, 2, 3)


async def _open_and_write(spec: FallbackSink, epoch: int, sequences: tuple[int, ...]) -> None:
    async with open_sink(spec, sink_owner(epoch)) as lane:
        await write(lane, *sequences)


@pytest.mark.guarantee("I1")
async def test_a_request_that_arrives_when_another_owner_writes_is_not_written(server: BigQueryServer) -> None:
    table = server.create(NUMBERS)
    spec = bigquery_spec(server, table)
    rows = iter(range(1, 10_000))
    halted = server.halt_before(
        lambda name, request: name == "AppendRows" and "_positions/" not in request.write_stream and next(rows) == 2
    )
    async with server.beside(halted, lambda: _open_and_write(spec, 2, (1, 2, 3))):
        with raises(codes.OUTPUT_TAKEN_OVER):
            await _open_and_write(spec, 1, (1, 2))
    assert bigquery_numbers(server, table) == expected(1, 2, 3)


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize("ticked", [True, False])
async def test_a_stream_that_has_expired_is_needed_only_for_rows_that_were_not_confirmed(
    server: BigQueryServer, ticked: bool
) -> None:
    table = server.create(NUMBERS)
    spec = bigquery_spec(server, table)
    async with open_sink(spec, sink_owner(1)) as lane:
        await write(lane, 1)
        if ticked:
            await lane.tick()
    server.streams.clear()
    if ticked:
        await _open_and_write(spec, 2, (1, 2))
        assert bigquery_numbers(server, table) == expected(1, 2)
        return
    with raises(codes.TARGET_POSITION_LOST, "INSERT INTO d.t_"):
        await _open_and_write(spec, 2, (1, 2))
    assert bigquery_numbers(server, table) == expected(1)


@pytest.mark.guarantee("I1", "I8")
async def test_the_table_of_positions_may_forget_old_rows(server: BigQueryServer) -> None:
    table = server.create(NUMBERS)
    clock = LateClock()
    noted = server.rows_of(f"{table}_positions")
    async with open_sink(bigquery_spec(server, table), replace(sink_owner(1), clock=clock)) as lane:
        await write(lane, 1)
        await lane.tick()
        count = len(noted)
        await lane.tick()
        assert len(noted) == count
        clock.late_s = BIGQUERY_NOTED_AGAIN_S
        await lane.tick()
        assert len(noted) == count + 1
        await lane.tick()
        assert len(noted) == count + 1
    del noted[:count]
    # The stream is gone as well, for which the note is enough.
    server.streams.clear()
    async with open_sink(bigquery_spec(server, table), sink_owner(2)) as lane:
        await write(lane, 1, 2)
    assert bigquery_numbers(server, table) == expected(1, 2)


@pytest.mark.guarantee("I1", "I8")
async def test_a_lane_that_writes_nothing_notes_its_position_after_a_failure(server: BigQueryServer) -> None:
    table = server.create(NUMBERS)
    clock = LateClock()
    noted = server.rows_of(f"{table}_positions")
    arrived: list[str] = []

    def refuse(method: str, request: Any) -> None:
        arrived.append(method)
        raise server.fail(grpc.StatusCode.UNAVAILABLE, "away")

    async with open_sink(bigquery_spec(server, table), replace(sink_owner(1), clock=clock)) as lane:
        await write(lane, 1)
        await lane.tick()
        count = len(noted)
        server.before = refuse
        clock.late_s = BIGQUERY_NOTED_AGAIN_S
        # By its connection, and by another one.
        for _ in range(2):
            with raises(codes.TARGET_AWAY):
                await lane.tick()
        tried = len(arrived)
        await lane.tick()
        assert len(arrived) == tried
        server.before = lambda method, request: None
        clock.late_s += BIGQUERY_NOTE_PAUSE_S
        await lane.tick()
        assert len(noted) > count
        claims = len(server.streams_of(table))
        await lane.tick()
        assert len(server.streams_of(table)) == claims
    del noted[:count]
    server.streams.clear()
    await _open_and_write(bigquery_spec(server, table), 2, (1, 2))
    assert bigquery_numbers(server, table) == expected(1, 2)


@pytest.mark.guarantee("I1", "I8")
async def test_a_lane_whose_connections_were_idle_notes_its_position_and_writes(server: BigQueryServer) -> None:
    table = server.create(NUMBERS)
    clock = LateClock()
    noted = server.rows_of(f"{table}_positions")
    async with open_sink(bigquery_spec(server, table), replace(sink_owner(1), clock=clock)) as lane:
        await write(lane, 1)
        await lane.tick()
        for day in (1, 2):
            count = len(noted)
            server.end_idle()
            clock.late_s = day * BIGQUERY_NOTED_AGAIN_S + day
            # The lane may not know yet that they have ended.
            with suppress(RetryLaterError):
                await lane.tick()
            await lane.tick()
            assert len(noted) > count
        server.end_idle()
        await write(lane, 2)
    assert bigquery_numbers(server, table) == expected(1, 2)


@pytest.mark.guarantee("I8")
async def test_a_connection_that_was_idle_is_replaced(server: BigQueryServer, tmp_path: Path) -> None:
    table = server.create(NUMBERS)
    settings = bigquery_spec(server, table).settings
    async with linked(settings, tmp_path, "here") as link:  # type: ignore[arg-type]
        stream = await link.create_stream(table, "COMMITTED")
        row = RowType(stream.table_schema, ["n"])
        appending = Appending(link, stream.name, row.descriptor)
        for n in range(3):
            await appending.append([Request([row.encode([n])], n)])
            server.end_idle()
            async with asyncio.timeout(30):
                while not appending.has_ended:  # noqa: ASYNC110  # gRPC has no event for it
                    await asyncio.sleep(0.01)
        appending.close()
    assert [row["n"] for row in server.rows(table)] == [0, 1, 2]


@pytest.mark.guarantee("I1")
async def test_a_stream_that_expires_under_a_lane_is_replaced(server: BigQueryServer) -> None:
    table = server.create(NUMBERS)
    async with open_sink(bigquery_spec(server, table), sink_owner(1)) as lane:
        await write(lane, 1)
        await lane.tick()
        server.streams.clear()
        await write(lane, 2)
    assert bigquery_numbers(server, table) == expected(1, 2)


@pytest.mark.guarantee("I1")
async def test_a_lane_without_a_position_continues_after_the_statement_of_the_message(server: BigQueryServer) -> None:
    table = server.create(NUMBERS)
    spec = bigquery_spec(server, table)
    with raises(codes.TARGET_POSITION_LOST) as stopped:
        async with open_sink(spec, sink_owner(4, start=Position(2))):
            pass
    said = str(stopped.value)
    names = said.split("(pipeline", 1)[1].split(")", 1)[0]
    values = said.split("VALUES (", 1)[1].split(")`", 1)[0]
    written = [None if text == "NULL" else text.strip("'") if "'" in text else int(text) for text in values.split(", ")]
    columns = [name.strip() for name in f"pipeline{names}".split(",")]
    server.rows_of(f"{table}_positions")[:] = [
        {name: value for name, value in zip(columns, written, strict=True) if value is not None}
    ]
    async with open_sink(spec, sink_owner(5, start=Position(2))) as lane:
        assert lane.durable == Position(2)
        await write(lane, 3)
    assert bigquery_numbers(server, table) == expected(3)


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize(
    ("start", "run", "code"),
    [(NOWHERE, "second", codes.SINK_AHEAD), (Position(9), "first", codes.SINK_BEHIND)],
)
async def test_a_target_of_another_past_stops_the_lane_and_its_streams_stay_open(
    server: BigQueryServer, start: Position, run: str, code: Code
) -> None:
    table = server.create(NUMBERS)
    spec = bigquery_spec(server, table)
    async with open_sink(spec, sink_owner(1)) as lane:
        await write(lane, 1)
        with raises(code, "DELETE FROM d.t_"):
            async with open_sink(spec, sink_owner(5, start=start, ledger_id=run)):
                pass
        await write(lane, 2)
    assert bigquery_numbers(server, table) == expected(1, 2)


async def test_a_row_that_no_request_can_have_fails_alone(server: BigQueryServer) -> None:
    table = server.create(NUMBERS)
    values = [json.dumps({"n": n, "text": "x" * (11_000_000 if n == 1 else 4_000_000)}).encode() for n in range(4)]
    async with open_sink(bigquery_spec(server, table), sink_owner(1)) as lane:
        ((failure,),) = (await lane.write([sink_frame(values, 1)], Position(1))).failures
        await lane.flush()
    assert (failure.index, failure.reason) == (1, TOO_LARGE)
    assert [row["n"] for row in server.rows(table)] == [0, 2, 3]


def _deny(server: BigQueryServer, table: str) -> None:
    server.denied.add(f"projects/shop/datasets/d/tables/{table}")


def _remove(server: BigQueryServer, table: str) -> None:
    del server.tables[f"projects/shop/datasets/d/tables/{table}"]


def _remove_positions(server: BigQueryServer, table: str) -> None:
    del server.tables[f"projects/shop/datasets/d/tables/{table}_positions"]


def _other_columns(server: BigQueryServer, table: str) -> None:
    server.table(table).schema.CopyFrom(schema_of({"m": "INT64", "must": ("INT64", "REQUIRED")}))


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        (_deny, codes.TARGET_REFUSES, "Permission"),
        (_remove, codes.TARGET_UNFIT, "does not find it"),
        (_remove_positions, codes.TARGET_UNFIT, "_positions"),
        (_other_columns, codes.TARGET_UNFIT, "has no column `n`.*requires a value in `must`"),
    ],
)
async def test_what_does_not_fit_is_said(
    server: BigQueryServer,
    tmp_path: Path,
    change: Callable[[BigQueryServer, str], None],
    code: Code,
    said: str,
) -> None:
    table = server.create(NUMBERS)
    change(server, table)
    spec = bigquery_spec(server, table)
    with raises(code, said):
        async with open_sink(spec, sink_owner(1)):
            pass


@pytest.mark.parametrize("code", [grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE])
async def test_quotas_and_outages_are_waited_for(server: BigQueryServer, code: grpc.StatusCode) -> None:
    table = server.create(NUMBERS)
    left = iter(range(2))

    def refuse(method: str, request: Any) -> None:
        if method == "AppendRows" and next(left, None) is not None:
            raise server.fail(code, "Exceeds quota")

    server.before = refuse
    async with open_sink(bigquery_spec(server, table), sink_owner(1)) as lane:
        with pytest.raises(RetryLaterError, match="Exceeds quota"):
            await lane.write([numbers(1)], Position(1))
        await write(lane, 1)
    assert bigquery_numbers(server, table) == expected(1)


def test_validate_online_looks_at_both_tables(
    server: BigQueryServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = server.create(NUMBERS)
    settings = bigquery_spec(server, table).as_written(given_only=True)["bigquery"]
    assert validate_sink("bigquery", settings, tmp_path, guarantee="exactlyOnce") == 0
    server.table(f"{table}_positions").schema.CopyFrom(schema_of({"lane": "STRING"}))
    assert validate_sink("bigquery", settings, tmp_path) != 0
    assert "CREATE TABLE `d.t_" in capsys.readouterr().err
