"""Pipelines from source to sink: routing, partitions, joins, cycles, functions that fail, watermarks, going on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.clock import END_OF_TIME_US
from millstream.errors import FencedError, UdfError
from millstream.record import LaneId
from tests.mesh.reducing import Event, closed_past, running, source, taken_in, write_events
from tests.support.pipelines import open_pipeline

if TYPE_CHECKING:
    from tests.mesh.conftest import PipelineFiles


@pytest.mark.guarantee("I1", "I2")
async def test_every_record_reaches_every_sink_whose_condition_it_meets(files: PipelineFiles, tmp_path: Path) -> None:
    path = files.write(
        files.generator(1000)
        + files.function("by_parity")
        + "".join(map(files.file_sink, ("all", "even", "not-ten", "both"))),
        [
            "in -> map",
            "map -> all",
            "{from: map, to: even, conditions: {tags: {values: [even]}}}",
            "{from: map, to: not-ten, conditions: {tags: {operator: not, values: [ten]}}}",
            "{from: map, to: both, conditions: {tags: {operator: and, values: [even, ten]}}}",
        ],
    )
    async with open_pipeline(path, tmp_path / "broker") as run:
        await run.run()
        account = await run.account("map")
        marks = await run.marks()
    numbers = range(1000)
    assert files.numbers("all") == list(numbers)
    assert files.numbers("even") == [n for n in numbers if n % 2 == 0]
    assert files.numbers("not-ten") == [n for n in numbers if n % 10]
    assert files.numbers("both") == [n for n in numbers if n % 10 == 0]
    assert (account.inputs, account.processed, account.outputs, account.difference) == (1000, 1000, 1000, 0)
    assert all(mark.ended and mark.watermark_us == END_OF_TIME_US for mark in marks.values())


@pytest.mark.guarantee("I2")
async def test_a_function_may_give_none_or_many(files: PipelineFiles, tmp_path: Path) -> None:
    path = files.write(
        files.generator(900) + files.function("twice_or_not") + files.file_sink("out"), ["in -> map", "map -> out"]
    )
    async with open_pipeline(path, tmp_path / "broker") as run:
        await run.run()
        account = await run.account("map")
    assert files.numbers("out") == [n for n in range(900) if n % 3 for _ in range(2)]
    assert (account.inputs, account.processed, account.filtered, account.outputs) == (900, 600, 300, 1200)


@pytest.mark.guarantee("I4")
async def test_records_of_a_key_stay_in_order_over_partitions_and_replicas(
    files: PipelineFiles, tmp_path: Path
) -> None:
    path = files.write(
        files.generator(5000, keyCount=11)
        + files.function("branded", more="").replace("  udf", "  partitions: 4\n  replicas: 2\n  udf")
        + files.file_sink("out", more="  partitions: 3\n"),
        ["in -> map", "map -> out"],
    )
    async with open_pipeline(path, tmp_path / "broker") as run:
        await run.run()
    rows = files.rows("out")
    assert sorted(row["number"] for row in rows) == list(range(5000))
    of_key: dict[str, list[int]] = {}
    for row in rows:
        of_key.setdefault(row["keys"][0], []).append(row["number"])
    assert len(of_key) == 11
    # Records of one key are all in the files of one lane, which are read in the order in which they were written.
    assert all(numbers == sorted(numbers) for numbers in of_key.values())


async def test_sources_join_on_a_map(files: PipelineFiles, tmp_path: Path) -> None:
    second = files.generator(300).replace("name: in", "name: other")
    path = files.write(
        files.generator(500) + second + files.function("identity") + files.file_sink("out"),
        ["in -> map", "other -> map", "map -> out"],
    )
    async with open_pipeline(path, tmp_path / "broker") as run:
        await run.run()
    assert sorted(files.numbers("out")) == sorted([*range(500), *range(300)])


async def test_a_cycle_ends_when_it_is_empty(files: PipelineFiles, tmp_path: Path) -> None:
    path = files.write(
        files.generator(200)
        + files.function("identity", vertex="enter")
        + files.function("countdown")
        + files.file_sink("out"),
        [
            "in -> enter",
            "enter -> map",
            "{from: map, to: enter, conditions: {tags: {values: [again]}}}",
            "{from: map, to: out, conditions: {tags: {values: [done]}}}",
        ],
    )
    async with open_pipeline(path, tmp_path / "broker") as run:
        await run.run()
        account = await run.account("map")
    assert sorted(files.numbers("out")) == list(range(200))
    assert account.inputs == 200 + sum(number % 4 for number in range(200))


@pytest.mark.guarantee("I2")
async def test_what_a_function_fails_on_is_retried_then_dead_lettered(files: PipelineFiles, tmp_path: Path) -> None:
    policy = ", retryStrategy: {backoff: {interval: 1ms, steps: 2}}"
    path = files.write(
        files.generator(100) + files.function("picky", more=policy) + files.file_sink("out") + files.file_sink("dead"),
        ["in -> map", "map -> out", "{from: map, to: dead, kind: deadLetter}"],
    )
    async with open_pipeline(path, tmp_path / "broker") as run:
        await run.run()
        account = await run.account("map")
    assert files.numbers("out") == [n for n in range(100) if n % 10 not in (1, 2, 3)]
    dead = files.envelopes("dead")
    assert [json.loads(letter.value)["number"] for letter in dead] == [n for n in range(100) if n % 10 in (1, 3)]
    assert {(letter.vertex, letter.lane) for letter in dead} == {("map", "in-map.0")}
    assert [letter.position for letter in dead] == [letter.id for letter in dead]
    assert len({(letter.run, letter.position) for letter in dead}) == 20
    assert {letter.reason for letter in dead} == {f"ValueError: number {n} is bad" for n in range(1, 100, 10)} | {
        "hopeless"
    }
    assert {"functions.py" in letter.detail for letter in dead if letter.reason != "hopeless"} == {True}
    assert (account.inputs, account.processed, account.dead_lettered) == (100, 70, 20)
    assert account.dropped == {"unwanted": 10}
    assert account.difference == 0


@pytest.mark.guarantee("I2")
async def test_lines_of_any_text_go_to_a_text_file_and_what_is_no_json_to_its_dead_letters(
    files: PipelineFiles, tmp_path: Path
) -> None:
    (tmp_path / "in.txt").write_text('{"number": 1}\nnot json\n{"number": 5}\n\n', encoding="utf-8")
    policy = ", retryStrategy: {backoff: {interval: 1ms, steps: 1}}"
    path = files.write(
        "- name: in\n  source: {file: {paths: [in.txt], format: lines}}\n"
        + files.function("picky", more=policy)
        + files.file_sink("out")
        + files.file_sink("dead")
        + "- name: text\n  sink: {file: {path: text, format: lines}}\n"
        + "- name: raw\n  sink: {file: {path: raw, format: lines}, envelope: false}\n",
        [
            *("in -> map", "map -> out", "in -> text"),
            *("{from: map, to: dead, kind: deadLetter}", "{from: map, to: raw, kind: deadLetter}"),
        ],
    )
    async with open_pipeline(path, tmp_path / "broker") as run:
        await run.run()
    assert files.numbers("out") == [5]
    dead = files.envelopes("dead")
    assert [letter.value for letter in dead] == [b'{"number": 1}', b"not json", b""]
    assert dead[1].reason.startswith("json.decoder.JSONDecodeError: Expecting value")
    assert [file.read_bytes() for file in (tmp_path / "text").glob("*.txt")] == [(tmp_path / "in.txt").read_bytes()]
    assert [file.read_bytes() for file in (tmp_path / "raw").glob("*.txt")] == [b'{"number": 1}\nnot json\n\n']


@pytest.mark.parametrize(
    ("into", "record"),
    [("in => map", r"\d+/1 \(sequence \d+, index 1, "), ("in -> map", r"1 \(number 2 from the source, ")],
    ids=["buffer", "chain"],
)
async def test_a_failing_function_stops_the_lane_with_its_own_traceback(
    files: PipelineFiles, tmp_path: Path, into: str, record: str
) -> None:
    policy = ", retryStrategy: {backoff: {interval: 1ms, steps: 1}, onFailure: stop}"
    path = files.write(
        files.generator(100) + files.function("picky", more=policy) + files.file_sink("out"), [into, "map -> out"]
    )
    async with open_pipeline(path, tmp_path / "broker") as run:
        with pytest.RaisesGroup(
            pytest.RaisesExc(
                UdfError,
                match=r"(?s)p/map/in-map\.0: .*on record map/in-map/0/"
                + record
                + r".*number 1 is bad.*functions\.py.*onFailure",
            ),
            flatten_subgroups=True,
        ):
            await run.run()
        account = await run.account("map")
    assert account.inputs == 0, "nothing of the failing stretch is committed"


async def test_a_failing_record_can_be_dropped_and_counted(files: PipelineFiles, tmp_path: Path) -> None:
    policy = ", retryStrategy: {backoff: {interval: 1ms, steps: 1}, onFailure: drop}"
    path = files.write(
        files.generator(100) + files.function("picky", more=policy) + files.file_sink("out"),
        ["in -> map", "map -> out"],
    )
    async with open_pipeline(path, tmp_path / "broker") as run:
        await run.run()
        account = await run.account("map")
    assert files.numbers("out") == [n for n in range(100) if n % 10 not in (1, 2, 3, 4)]
    assert account.dropped == {"unwanted": 10, "function failed": 30}


@pytest.mark.guarantee("I5")
async def test_the_transformer_sets_keys_and_times_before_the_watermark_is_taken(
    files: PipelineFiles, tmp_path: Path
) -> None:
    source = files.generator(1000).replace("source: {", "source: {transformer: {python: 'functions.py:dated'}, ")
    path = files.write(source + files.function("branded") + files.file_sink("out"), ["in -> map", "map -> out"])
    async with open_pipeline(path, tmp_path / "broker") as run:
        await run.run()
        source_account, sink_account = await run.account("in"), await run.account("out")
    rows = files.rows("out")
    assert [row["number"] for row in rows] == [n for n in range(1000) if n % 5 != 4]
    assert all(row["keys"] == [str(row["number"] % 7)] for row in rows)
    assert (source_account.inputs, source_account.filtered) == (1000, 200)
    assert sink_account.late == 0


@pytest.mark.guarantee("I2")
async def test_late_records_are_counted_and_still_processed(files: PipelineFiles, tmp_path: Path) -> None:
    in_time, late = [Event(n, 100 + n) for n in range(50)], [Event(50 + n, n) for n in range(7)]
    vertices = source(more=", follow: true") + files.function("identity") + files.file_sink("out")
    path = files.write(vertices, ["in => map", "map -> out"], more="watermark: {maxDelay: 1s}")
    async with open_pipeline(path, tmp_path / "broker") as run, running(run) as task:
        write_events(tmp_path / "in.jsonl", in_time)
        # What the map has published it has heard, and holds for whatever it reads from then on.
        await closed_past(run, "map", 148, task)
        write_events(tmp_path / "in.jsonl", late)
        await taken_in(run, "out", len(in_time) + len(late), task)
        accounts = [await run.account(name) for name in ("in", "map")]
    assert sorted(row["n"] for row in files.rows("out")) == list(range(57))
    assert [account.late for account in accounts] == [len(late)] * 2


@pytest.mark.guarantee("I1", "I7")
async def test_a_pipeline_goes_on_where_it_stopped(files: PipelineFiles, tmp_path: Path) -> None:
    path = files.write(
        files.generator(6000, rpu=1500) + files.function("branded") + files.file_sink("out") + files.file_sink("copy"),
        ["in -> map", "map -> out", "map -> copy"],
    )
    async with open_pipeline(path, tmp_path / "broker") as run:
        for _ in range(2):
            running = asyncio.ensure_future(run.run())
            while (await run.account("map")).inputs == 0:
                assert not running.done()
            run.stop()
            await running
        before = await run.account("map")
        assert 0 < before.inputs < 6000
        await run.run()
        marks = await run.marks()
    assert files.numbers("out") == list(range(6000))
    assert files.rows("out") == files.rows("copy"), "both sinks have the same random id for each record"
    assert {mark.epoch for mark in marks.values()} == {3}


@pytest.mark.guarantee("I1")
async def test_an_owner_that_was_replaced_stops_without_an_effect(files: PipelineFiles, tmp_path: Path) -> None:
    path = files.write(
        files.generator(15_000, rpu=5000) + files.function("identity") + files.file_sink("out"),
        ["in -> map", "map -> out"],
    )
    async with open_pipeline(path, tmp_path / "broker") as first:
        running = asyncio.ensure_future(first.run())
        while (await first.account("map")).inputs == 0:
            assert not running.done()
        # A second set of owners on the same ledgers.
        second = first.again()
        successor = asyncio.ensure_future(second.run())
        with pytest.raises(ExceptionGroup) as ended:
            await running
        # A lane is refused its commit, or hears of its successor first; others of its process may too.
        assert ended.value.split(FencedError)[1] is None
        await successor
        written = await second.account("out")
    assert written.inputs == written.processed == 15_000
    assert files.numbers("out") == list(range(15_000))


async def test_a_full_buffer_with_discard_latest_drops_and_counts(files: PipelineFiles, tmp_path: Path) -> None:
    path = files.write(
        files.generator(50_000, msgSize=100)
        + "- name: out\n  sink: {blackhole: {}}\n  limits: {bufferMaxLength: 5000}\n",
        ["{from: in, to: out, onFull: discardLatest}"],
    )
    async with open_pipeline(path, tmp_path / "broker") as run:
        await run.run()
        source, sink = await run.account("in"), await run.account("out")
    assert source.outputs == 50_000
    assert sink.inputs + source.discarded == 50_000
    assert source.discarded > 0


@pytest.mark.guarantee("I1")
async def test_a_slow_function_stops_between_slices_and_loses_nothing(files: PipelineFiles, tmp_path: Path) -> None:
    # All of it would take minutes, and what waits in the buffer longer than the test has.
    records = 100_000

    def write(function: str) -> Path:
        vertices = files.generator(records) + files.function(function) + files.file_sink("out")
        return files.write(vertices, ["in => map", "map -> out"])

    async with open_pipeline(write("slow"), tmp_path / "broker") as run:
        running = asyncio.ensure_future(run.run())
        while (await run.account("map")).inputs == 0:
            assert not running.done()
        run.stop()
        await running
        begun = await run.account("map")
        write("identity")
        await run.again().run()
    assert begun.inputs < records
    assert files.numbers("out") == list(range(records))


@pytest.mark.guarantee("I5")
async def test_a_watermark_that_moved_on_while_idle_is_kept_over_a_restart(
    files: PipelineFiles, tmp_path: Path
) -> None:
    # The commit of the only frame promises what it had seen; what came after was promised in the OT store alone.
    path = files.write(
        files.generator(1_000_000, rpu=1, duration="1h", start="2024-01-01T00:00:00Z", eventTimeStep="1s")
        + files.file_sink("out"),
        ["in -> out"],
        more="watermark: {idleSource: {threshold: 100ms, incrementBy: 100ms, stepInterval: 20ms}}",
    )
    async with open_pipeline(path, tmp_path / "broker") as run:
        running = asyncio.ensure_future(run.run())
        while (moved := await run.published("in")) < 1_704_067_200_000_000 + 500_000:
            assert not running.done()
        run.stop()
        await running
        assert (await run.marks())[LaneId("in", "source", 0)].watermark_us < moved
        running = asyncio.ensure_future(run.run())
        epoch = 0
        while epoch < 2:
            after = await run.published("in")
            epoch = (await run.marks())[LaneId("in", "source", 0)].epoch
            assert after >= moved
        run.stop()
        await running
        assert await run.published("in") >= moved
