"""A user-defined sink that keeps positions: whatever dies, each record is in its target once, in order."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from millstream import codes
from millstream.account import Account
from millstream.errors import RetryLaterError, UdfError
from millstream.record import Position
from millstream.retry import Backoff, OnFailure, RetryPolicy
from millstream.udf.sidecar import python_command
from millstream_connectors.opening_sinks import open_sink
from millstream_writer.delivery import Delivery, DeliveryLimits
from millstream_writer.sink import DivideDeliveryError, SinkFrame, SinkLane
from tests.contract.sinks.file_target import file_spec, numbers_in, sink_owner, value_of
from tests.contract.sinks.position_lanes import function, lane, opened
from tests.contract.sinks.sink_targets import POSITION_SINK, position_sink_numbers, sqlite_rows
from tests.support.errors import raises
from tests.support.sizes import first
from tests.unit.writer.sink_frames import sink_frame

FRAMES = range(1, 7)
EVERYTHING = [*range(10, 70)]
STEPS = ["write:after", "commit:before", "flush:after", "open:before", "open:after", "check", "write:before"]
STEPS += ["flush:before"]


def frame(sequence: int, name: str = "") -> SinkFrame:
    """Ten numbers, from ten times `sequence` on."""
    return sink_frame([value_of(n) for n in range(10 * sequence, 10 * sequence + 10)], sequence, name=name)


async def write(opened: SinkLane, sequences: Sequence[int]) -> None:
    """Each as a transaction of its own."""
    for sequence in sequences:
        result = await opened.write([frame(sequence)], Position(sequence))
        assert not result.failures
        assert opened.durable == Position(sequence)


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize("time", [*(pytest.param(time, marks=pytest.mark.sweep) for time in ("", "#2")), "#13"])
@pytest.mark.parametrize("step", first(3, STEPS))
async def test_a_function_that_is_killed_at_a_step_writes_each_record_once(
    tmp_path: Path, step: str, time: str
) -> None:
    target = tmp_path / "numbers.db"
    each = step.startswith(("write", "check"))
    if time == "#13" and not each:
        time = "#5"
    async with opened(target, 1, env={"SINK_DIES_AT": f"{step}{time}"}) as one:
        await write(one, FRAMES)
    # The first opening is the only one, unless the process dies.
    assert Path(f"{target}.dead").exists() is not (step.startswith("open") and bool(time))
    assert position_sink_numbers(target) == EVERYTHING


@pytest.mark.guarantee("I1")
async def test_a_lane_continues_from_any_mark_at_or_before_the_position(tmp_path: Path) -> None:
    target = tmp_path / "numbers.db"
    async with opened(target, 1) as one:
        await write(one, [1, 2, 3])
        await one.write([frame(4).take(range(7))], Position(3, 7))
    async with function(target) as client:
        for epoch, mark in enumerate((Position(0), Position(1), Position(2, 5), Position(3), Position(3, 7)), 2):
            async with lane(client, sink_owner(epoch, start=mark)) as next_one:
                assert next_one.durable == Position(3, 7)
                for sequence in range(mark.sequence + 1, 4):
                    await next_one.write([frame(sequence)], Position(sequence))
        async with lane(client, sink_owner(9)) as last:
            for sequence in FRAMES:
                await last.write([frame(sequence)], Position(sequence))
    assert position_sink_numbers(target) == EVERYTHING


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize("shared", [True, False], ids=["one process", "two processes"])
async def test_of_two_owners_the_older_has_no_effect(tmp_path: Path, *, shared: bool) -> None:
    target = tmp_path / "numbers.db"
    async with function(target) as first, function(target) as second:
        async with lane(first, sink_owner(1)) as old:
            await write(old, [1, 2])
            async with lane(first if shared else second, sink_owner(2, start=Position(1))) as new:
                assert new.durable == Position(2)
                with raises(codes.OUTPUT_TAKEN_OVER, "another owner"):
                    await old.write([frame(3)], Position(3))
                await write(new, [3, 4])
                with raises(codes.OUTPUT_TAKEN_OVER, "another owner"):
                    await old.write([frame(3)], Position(3))
                await write(new, [5, 6])
        with raises(codes.OUTPUT_TAKEN_OVER, "another owner"):
            async with lane(first, sink_owner(1)):
                pytest.fail("an older owner opened the lane")
    assert position_sink_numbers(target) == EVERYTHING


@pytest.mark.guarantee("I1")
async def test_a_target_of_another_past_stops_the_lane(tmp_path: Path) -> None:
    target = tmp_path / "numbers.db"

    async def another(sequence: int, name: str) -> str | None:
        return f"frame other instead of {name} at {sequence}"

    async with function(target) as client:
        async with lane(client, sink_owner(1)) as one:
            await one.write([frame(1, "a"), frame(2, "b")], Position(2))
        cases = [
            (replace(sink_owner(2), ledger_id="second"), codes.SINK_AHEAD, "another run .* what the function stores"),
            # It was started over: its epochs begin again.
            (replace(sink_owner(1), ledger_id="third"), codes.SINK_AHEAD, "another run .* what the function stores"),
            (sink_owner(3, start=Position(3)), codes.SINK_BEHIND, "is at sequence 2 of lane out.in-out.0"),
            (replace(sink_owner(4), held_instead=another), codes.SINK_AHEAD, "frame b at sequence 2"),
        ]
        for owner, code, message in cases:
            with raises(code, message):
                async with lane(client, owner):
                    pytest.fail("the lane was opened")
        sqlite_rows(target, "UPDATE positions SET position = X'7B7D'")
        with raises(codes.FUNCTION_PROTOCOL, "a position that Millstream never gave it"):
            async with lane(client, sink_owner(5)):
                pytest.fail("the lane was opened")
    assert position_sink_numbers(target) == [*range(10, 30)]


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize("what", ["position = NULL", "position = replace(position, '\"at\":[2,0]', '\"at\":[1,0]')"])
async def test_a_target_that_loses_what_it_confirmed_stops_the_lane(tmp_path: Path, what: str) -> None:
    target = tmp_path / "numbers.db"
    async with opened(target, 1, env={"SINK_DIES_AT": "write:after#25"}) as one:
        await write(one, [1, 2])
        sqlite_rows(target, f"UPDATE positions SET {what}")
        with raises(codes.SINK_BEHIND, "the function had confirmed sequence 2, record 0"):
            await one.write([frame(3)], Position(3))


@pytest.mark.guarantee("I1", "I2")
async def test_what_was_refused_stays_refused_whatever_the_function_says_later(tmp_path: Path) -> None:
    """The target passes the refused records, the mark does not, and another version of the function takes them all."""
    target = tmp_path / "numbers.db"
    numbers = [1000011, 1000022, 1000033, 1000044, 1000055, 1000066]
    refused = sink_frame([value_of(n) for n in numbers], 1)
    another = tmp_path / "another.py"
    source = POSITION_SINK.read_text().replace("def check(", "def looked_at(")
    another.write_text(source)
    told = []
    for epoch, file in ((1, POSITION_SINK), (2, another)):
        async with opened(target, epoch, command=python_command(f"{file}:Numbers")) as one:
            result = await one.write([refused], Position(1))
            told.append([replace(failure, detail="") for failure in result.failures[0] if not failure.untried])
            if untried := [failure.index for failure in result.failures[0] if failure.untried]:
                assert position_sink_numbers(target) == [1000011]
                assert not (await one.write([refused.take(untried)], Position(1))).failures
            assert one.durable == Position(1)
    assert told[0] == told[1]
    assert [(f.index, f.reason, f.drop, f.fallback, f.retryable) for f in told[0]] == [
        (1, "function failed", False, False, False),
        (2, "unwanted", True, False, False),
        (3, "not mine", False, True, False),
        (4, "hopeless", False, False, False),
    ]
    assert position_sink_numbers(target) == [1000011, 1000066]


@pytest.mark.guarantee("I2")
async def test_refused_records_go_where_the_policy_says_and_nothing_after_them_is_written_before(
    tmp_path: Path,
) -> None:
    target = tmp_path / "numbers.db"
    given = [1000010, 1000022, 1000033, 1000044, 1000055, 1000066]
    async with (
        opened(target, 1) as primary,
        open_sink(file_spec(tmp_path / "fallback", "jsonl"), sink_owner(1).as_fallback()) as fallback,
    ):
        stopping = delivery_of(primary, None, OnFailure.STOP)
        with raises(codes.SINK_FUNCTION_FAILED, "1000022|function failed"):
            await stopping.write([sink_frame([value_of(n) for n in given], 1)], Position(1))
        assert position_sink_numbers(target) == [1000010]
    async with (
        opened(target, 2) as primary,
        open_sink(file_spec(tmp_path / "fallback", "jsonl"), sink_owner(2).as_fallback()) as fallback,
    ):
        delivery = delivery_of(primary, fallback, OnFailure.FALLBACK)
        await delivery.write([sink_frame([value_of(n) for n in given], 1)], Position(1))
        await delivery.flush()
        settled = delivery.take_settled()
    assert settled is not None
    assert settled.account == Account(inputs=6, processed=5, fallback=3, dropped={"unwanted": 1})
    assert position_sink_numbers(target) == [1000010, 1000066]
    assert numbers_in(tmp_path / "fallback") == [1000022, 1000044, 1000055]


FALLBACK = sink_owner(1).as_fallback()


def delivery_of(primary: SinkLane, fallback: SinkLane | None, on_failure: OnFailure) -> Delivery:
    policy, limits = RetryPolicy(Backoff(0.001, steps=3), on_failure), DeliveryLimits(10**9, 10**12)
    return Delivery(
        primary, fallback, policy, limits, where="p/out/in-out.0", rng=random.Random(1), stop_error=UdfError
    )


async def written(delivery: Delivery, frames: Sequence[SinkFrame]) -> Account:
    account = await delivery.write(frames, Position(frames[-1].sequence))
    await delivery.flush()
    return account


IN_WRITE, IN_FLUSH = [2000099, 3000099], [2000098, 3000098]


@pytest.mark.guarantee("I1", "I2")
@pytest.mark.parametrize(
    "deadly", [pytest.param(IN_WRITE, id="write", marks=pytest.mark.sweep), pytest.param(IN_FLUSH, id="flush")]
)
async def test_only_a_record_that_ends_the_process_is_refused_and_the_position_passes_it(
    tmp_path: Path, deadly: list[int]
) -> None:
    """Between others, and behind one that `check` refuses."""
    target, first, second = tmp_path / "numbers.db", [10, 11, deadly[0], 1000033, 12], [13, deadly[1]]
    frames = [sink_frame([value_of(n) for n in first], 1), sink_frame([value_of(n) for n in second], 2)]
    async with opened(target, 1) as primary, open_sink(file_spec(tmp_path / "fallback", "jsonl"), FALLBACK) as fallback:
        delivery = delivery_of(primary, fallback, OnFailure.FALLBACK)
        await delivery.write(frames, Position(2))
        await delivery.flush()
        settled = delivery.take_settled()
        assert primary.durable == Position(2)
    assert settled is not None
    assert settled.account == Account(inputs=7, processed=6, fallback=2, dropped={"unwanted": 1})
    assert position_sink_numbers(target) == [10, 11, 12, 13]
    assert numbers_in(tmp_path / "fallback") == deadly
    # The next owner begins at an older mark. It learns from the position what became of these records.
    async with opened(target, 2) as one:
        result = await one.write(frames, Position(2))
        assert [[failure.index for failure in failures] for failures in result.failures] == [[2, 3], [1]]
    assert position_sink_numbers(target) == [10, 11, 12, 13]


@pytest.mark.sweep
@pytest.mark.guarantee("I1")
async def test_a_lane_stops_at_a_record_that_ends_the_process_and_has_all_before_it(tmp_path: Path) -> None:
    target = tmp_path / "numbers.db"
    frames = [frame(1), sink_frame([value_of(n) for n in (20, 2000098)], 2)]
    async with opened(target, 1) as primary:
        delivery = delivery_of(primary, None, OnFailure.RETRY)
        with raises(codes.SINK_FUNCTION_FAILED, "2/1.*3 attempts.*its process exited with code 4, 3 times in a row"):
            await delivery.write(frames, Position(2))
    assert position_sink_numbers(target) == [*range(10, 21)]


@pytest.mark.sweep
@pytest.mark.guarantee("I1", "I2")
@pytest.mark.parametrize("deadly", [2000099, 2000098], ids=["write", "flush"])
@pytest.mark.parametrize("others", [[10, 11], [1000033]], ids=["others", "one that is refused"])
async def test_nothing_of_a_whole_delivery_that_ends_the_process_is_in_the_target_and_it_has_to_be_divided(
    tmp_path: Path, deadly: int, others: list[int]
) -> None:
    target = tmp_path / "numbers.db"
    frames = [sink_frame([value_of(n)], number) for number, n in enumerate([*others, deadly], 1)]
    async with function(target) as client, lane(client, replace(sink_owner(1), whole=True)) as primary:
        delivery = delivery_of(primary, None, OnFailure.DROP)
        # That `check` refuses one leaves everything for the flush.
        with pytest.raises(DivideDeliveryError, match="exited with code"):
            await written(delivery, frames)
        assert delivery.set_aside == ({0: {0}} if others == [1000033] else {})
        assert (position_sink_numbers(target), primary.durable) == ([], Position(0))
        assert delivery.statistics().unsettled_records == 0
        # The cause has a delivery of its own.
        account = await written(delivery, [sink_frame([value_of(deadly)], 1)])
        assert account == Account(inputs=1, dropped={"function failed": 1})
        assert (position_sink_numbers(target), primary.durable) == ([], Position(1))
        await delivery.write([sink_frame([value_of(n) for n in (12, 13)], 2)], Position(2))
    assert position_sink_numbers(target) == [12, 13]


@pytest.mark.sweep
@pytest.mark.guarantee("I1")
@pytest.mark.parametrize("step", ["open:before", "flush:before"])
async def test_an_opening_and_a_flush_without_records_that_end_the_process_have_failed(
    tmp_path: Path, step: str
) -> None:
    target, always = tmp_path / "numbers.db", tmp_path / "always.py"
    always.write_text(POSITION_SINK.read_text().replace("os.kill(os.getpid(), signal.SIGKILL)", "os._exit(3)"))
    always.write_text(always.read_text().replace(" and not dead.exists()", "").replace("== int(", ">= int("))
    async with opened(target, 1, command=python_command(f"{always}:Numbers"), env={"SINK_DIES_AT": step}) as one:
        with pytest.raises(RetryLaterError, match=r"code 3, 3 times in a row, when it (opened|stored)"):
            await one.write([], Position(1))


async def test_a_position_remembers_refused_records_only_until_the_mark_has_passed_them(tmp_path: Path) -> None:
    target, mark = tmp_path / "numbers.db", Position(0)
    async with function(target) as client:
        owner = replace(sink_owner(1), committed=lambda: mark)
        async with lane(client, owner) as one:
            for sequence in range(1, 6):
                await one.write([sink_frame([value_of(1000033)], sequence)], Position(sequence))
                await one.flush()
                mark = Position(sequence - 1)
                (text,) = sqlite_rows(target, "SELECT position FROM positions")[0]
                at = [item[0] for item in json.loads(text)["refused"]]
                assert at == ([0] if sequence == 1 else [sequence - 2, sequence - 1])


async def test_a_check_that_asks_for_another_time_is_no_attempt(tmp_path: Path) -> None:
    target = tmp_path / "numbers.db"
    async with opened(target, 1) as one:
        delivery = delivery_of(one, None, OnFailure.STOP)
        await delivery.write([sink_frame([value_of(n) for n in (1000066, 1000077, 1000088)], 1)], Position(1))
        assert delivery.statistics().retries == 0
    assert position_sink_numbers(target) == [1000066, 1000077, 1000088]


async def test_a_function_that_fails_is_tried_again_and_nothing_is_written_twice(tmp_path: Path) -> None:
    """The database is locked: the function raises, and its instance is discarded."""
    target = tmp_path / "numbers.db"
    quick = tmp_path / "quick.py"
    quick.write_text(POSITION_SINK.read_text().replace("timeout=20", "timeout=0.01"))
    async with opened(target, 1, command=python_command(f"{quick}:Numbers")) as one:
        delivery = delivery_of(one, None, OnFailure.RETRY)
        await delivery.write([frame(1)], Position(1))
        with closing(sqlite3.connect(target, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            writing = asyncio.create_task(delivery.write([frame(2)], Position(2)))
            while "database is locked" not in delivery.statistics().waiting:  # noqa: ASYNC110  # there is no event
                await asyncio.sleep(0.01)
            other.execute("COMMIT")
        async with asyncio.timeout(30):
            await writing
        for sequence in range(3, 7):
            await delivery.write([frame(sequence)], Position(sequence))
    assert position_sink_numbers(target) == EVERYTHING
