"""Chains that end in a sink, killed at random with all they need: a function that gives other records at every attempt
has one answer in the target, whole."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest

from millstream.errors import FencedError
from millstream.wire.ledger.v1 import mark_pb2
from tests.contract.sinks.sink_targets import sqlite_rows
from tests.mesh.conftest import PipelineFiles
from tests.mesh.running import Running, start
from tests.recovery.crash_pipelines import check_whims
from tests.support import kafka_server, postgres_server
from tests.support.kafka_server import open_kafka
from tests.support.pipelines import PipelineRun, open_pipeline
from tests.support.postgres_server import open_postgres
from tests.support.redis_server import open_redis

POSITION_VALUES = Path(__file__).parent / "position_values.py"
PART = 400
"""Records between two kills, and for each owner."""
OWNERS = 6
CHAIN = [f"{{from: {one}, to: {other}, chain: true}}" for one, other in (("in", "whim"), ("whim", "out"))]


@dataclass(frozen=True, slots=True)
class Place:
    """A target, and how it dies."""

    sink: dict[str, Any]
    rows: Callable[[], Sequence[dict[str, Any]]]
    restart: Callable[[], object] = lambda: None


@contextmanager
def place_of(kind: str, directory: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        if kind == "file":
            files = PipelineFiles(directory)
            yield Place(
                {"file": {"path": "out", "format": "jsonl", "rolling": {"maxAge": "100ms"}}}, lambda: files.rows("out")
            )
        elif kind == "udsink":
            yield position_sink(directory)
        elif kind == "postgres":
            server = stack.enter_context(open_postgres())
            database = asyncio.run(server.database())
            asyncio.run(
                database.execute('CREATE TABLE whims (number int, whim text, "of" int, copy int, place bigserial)')
            )
            names = ("number", "whim", "of", "copy")
            settings = {**database.settings, "table": "whims", "columns": [{"name": name} for name in names]}
            statement = 'SELECT number, whim, "of", copy FROM whims ORDER BY place'
            yield Place(
                {"postgres": settings},
                lambda: [dict(zip(names, row, strict=True)) for row in database.rows_at_once(statement)],
                server.restart,
            )
        elif kind == "kafka":
            brokers = stack.enter_context(open_kafka(directory / "kafka"))
            topic = brokers.create(f"whims-{uuid4()}")
            yield Place(
                {"kafka": {"brokers": [brokers.brokers], "topic": topic}},
                lambda: [json.loads(value) for value in brokers.values(topic)],
                brokers.restart,
            )
        else:
            redis = stack.enter_context(open_redis())

            def restart() -> None:
                redis.kill()
                redis.start()

            yield Place(
                {"redisStreams": {**redis.settings, "stream": "whims"}},
                lambda: [json.loads(entry["value"]) for entry in redis.entries("whims")],
                restart,
            )


def position_sink(directory: Path, name: str = "Values", deadly: Sequence[int] = ()) -> Place:
    """A user-defined sink that keeps positions."""
    env = {"VALUES": str(directory / "values"), "DEADLY": json.dumps(deadly)}
    settings = {
        "python": f"{POSITION_VALUES}:{name}",
        "env": [{"name": key, "value": value} for key, value in env.items()],
    }
    return Place({"udsink": settings}, lambda: position_sink_rows(directory / "values"))


def position_sink_rows(file: Path) -> list[dict[str, Any]]:
    """What the database of `position_values.py` has, in the order in which it was written."""
    return [json.loads(value) for (value,) in sqlite_rows(file, 'SELECT value FROM "values" ORDER BY place')]


def missing(kind: str) -> str:
    return {"postgres": postgres_server.why_missing, "kafka": kafka_server.why_missing}.get(kind, str)()


def kill(run: Running, *names: str) -> None:
    with suppress(ProcessLookupError, KeyError):
        for pid in [run.pids()[name] for name in names]:
            os.kill(pid, signal.SIGKILL)


def kill_with(run: Running, place: Place) -> None:
    """The worker, and its target."""
    kill(run, "in-0")
    place.restart()


def kill_function(run: Running) -> None:
    with suppress(KeyError, psutil.NoSuchProcess):
        for child in psutil.Process(run.pids()["in-0"]).children(recursive=True):
            child.kill()


@pytest.mark.guarantee("I1", "I2", "I9")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "kind",
    ["postgres", *(pytest.param(kind, marks=pytest.mark.sweep) for kind in ("file", "kafka", "redis", "udsink"))],
)
def test_one_answer_counts_though_everything_is_killed(tmp_path: Path, kind: str) -> None:
    if missing(kind):
        pytest.skip(missing(kind))
    with place_of(kind, tmp_path) as place:
        asyncio.run(_killed(tmp_path, place))


async def _killed(directory: Path, place: Place) -> None:
    files = PipelineFiles(directory)
    sink = json.dumps({**place.sink, "guarantee": "exactlyOnce"})
    files.write(f"{files.fed_source()}{files.function('whimsical', vertex='whim')}- name: out\n  sink: {sink}\n", CHAIN)
    files.feed(range(PART))
    kills: list[Callable[[Running], object]] = [
        lambda run: kill(run, "in-0"),
        lambda run: place.restart(),
        kill_function,
        lambda run: kill(run, "in-0", "broker"),
        lambda run: kill_with(run, place),
    ]
    async with start(directory, "run", "pipeline.yaml", "--quiet", "-o", "json") as run:
        for number, one in enumerate(kills, 1):
            await run.until(lambda number=number: run.records("in") > (number - 1) * PART)  # type: ignore[misc]
            await asyncio.to_thread(one, run)
            files.feed(range(number * PART, (number + 1) * PART))
        records = (len(kills) + 1) * PART
        await run.until(lambda: run.records("in") >= records)
        run.interrupt()
        ended = await run.ended()
    assert ended.exit_code == 0, ended.err
    told = json.loads(ended.out.splitlines()[-1])["account"]
    assert told["balanced"]
    rows = await asyncio.to_thread(place.rows)
    check_whims(rows, range(records))
    counts = {one["vertex"]: (one["inputs"], one["processed"], one["filtered"]) for one in told["vertices"]}
    sevenths = len(range(0, records, 7))
    assert counts == {
        "in": (records, records, 0),
        "whim": (records, records - sevenths, sevenths),
        "out": (len(rows), len(rows), 0),
    }


DEADLY = [9, 311, 312, 640]
"""Numbers whose first copy ends the process of the sink in `flush`."""


@pytest.mark.sweep
@pytest.mark.guarantee("I1", "I2")
@pytest.mark.timeout(900)
async def test_deliveries_that_end_their_process_are_divided_though_everything_is_killed(tmp_path: Path) -> None:
    """The parts of a delivery have records of one attempt, because the mark keeps them."""
    files, place, records = PipelineFiles(tmp_path), position_sink(tmp_path, "Deadly", DEADLY), 2 * PART
    sink = json.dumps({**place.sink, "guarantee": "exactlyOnce", "retryStrategy": {"onFailure": "drop"}})
    files.write(f"{files.fed_source()}{files.function('whimsical', vertex='whim')}- name: out\n  sink: {sink}\n", CHAIN)
    files.feed(range(records))
    kills: list[Callable[[Running], object]] = [
        lambda run: kill(run, "in-0"),
        kill_function,
        lambda run: kill(run, "in-0", "broker"),
        lambda run: kill(run, "in-0"),
        kill_function,
        lambda run: kill(run, "broker"),
    ]
    deaths = tmp_path / "values.deaths"
    async with start(tmp_path, "run", "pipeline.yaml", "--quiet", "-o", "json") as run:
        for one in kills:
            before = deaths.stat().st_size if deaths.exists() else 0
            await run.until(lambda before=before: deaths.exists() and deaths.stat().st_size > before + 2)  # type: ignore[misc]
            await asyncio.to_thread(one, run)
        # Records are in order, so this is the last one.
        await run.until(lambda: any(row["number"] == records - 1 for row in place.rows()))
        run.interrupt()
        ended = await run.ended()
    assert ended.exit_code == 0, ended.err
    told = json.loads(ended.out.splitlines()[-1])["account"]
    assert told["balanced"]
    rows = await asyncio.to_thread(place.rows)
    (out,) = (one for one in told["vertices"] if one["vertex"] == "out")
    assert out["dropped"] == {"function failed": len(DEADLY)}
    assert (out["inputs"], out["processed"]) == (len(rows) + len(DEADLY), len(rows))
    assert [row["number"] for row in rows] == sorted(row["number"] for row in rows)
    deadly = [row for row in rows if row["number"] in DEADLY]
    check_whims([row for row in rows if row not in deadly], [n for n in range(records) if n not in DEADLY])
    for number in DEADLY:
        found = [row for row in deadly if row["number"] == number]
        assert len({row["whim"] for row in found}) <= 1
        assert [row["copy"] for row in found] == [*range(1, found[0]["of"])] if found else True


@pytest.mark.sweep
@pytest.mark.guarantee("I1", "I2")
@pytest.mark.timeout(900)
async def test_of_owners_that_follow_each_other_at_once_one_counts(tmp_path: Path) -> None:
    files = PipelineFiles(tmp_path)
    sink = "- name: out\n  sink: {file: {path: out, format: jsonl, rolling: {maxRecords: 100}}}\n"
    path = files.write(files.fed_source() + files.function("whimsical", vertex="whim") + sink, CHAIN)
    records = 0
    async with open_pipeline(path, tmp_path / "data") as first, asyncio.TaskGroup() as group:
        for number in range(OWNERS):
            group.create_task(_replaced(first.again(), number))
            await _until(first, lambda mark, number=number: mark.epoch > number)  # type: ignore[misc]
            delivered = (await _mark(first)).delivered
            files.feed(range(records, records := records + PART))
            # The next owner comes in the middle of its work.
            await _until(first, lambda mark, delivered=delivered: mark.delivered > delivered)  # type: ignore[misc]
        last = first.again()
        ending = group.create_task(last.run())
        await _until(first, lambda mark: mark.account.inputs >= records)
        last.stop()
        await ending
        account = await first.account("out")
        mark = await _mark(first)
    assert mark.epoch == OWNERS + 1
    check_whims(files.rows("out"), range(records))
    assert account.inputs == account.processed == len(files.rows("out"))


async def _replaced(run: PipelineRun, number: int) -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        await run.run()
    assert caught.group_contains(FencedError), f"owner {number}: {caught.value!r}"


async def _mark(run: PipelineRun) -> mark_pb2.Mark:
    """Of the only lane."""
    return next(iter((await run.marks()).values()), mark_pb2.Mark())


async def _until(run: PipelineRun, reached: Callable[[mark_pb2.Mark], bool]) -> None:
    async with asyncio.timeout(60):
        while not reached(await _mark(run)):  # noqa: ASYNC110  # of a server there is no event
            await asyncio.sleep(0.01)
