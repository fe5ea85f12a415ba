"""Processes that hang: noticed, said and replaced, while those that are only slow are left alone."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from millstream.errors import FencedError
from millstream.health import LOOK_INTERVAL_S, Health, Patience, open_heartbeat
from millstream.limits import HUNG_AFTER_S
from millstream.lines import text_of
from millstream.processes import Process, open_process
from tests.mesh.conftest import PipelineFiles
from tests.mesh.running import start
from tests.support.children import started

LIMIT_S = 180
BEATS = """
import asyncio, sys, time
from millstream.health import start_heartbeat

async def main():
    start_heartbeat(asyncio.get_running_loop())
    await asyncio.sleep(0)
    exec(sys.argv[1])
    await asyncio.Event().wait()

asyncio.run(main())
"""
RATE = 100
"""Of the sources here, in records per second."""
WORKER = "worker.1 (map-0, out-0)"
"""Of a run with two."""
PATIENCE = Patience(hung_s=3.0, start_s=30.0, reported_s=1.5)
# How long a silence was is measured, and the watching process may have waited for a processor.
REPORTED = r"has not answered for \d+ s; it is replaced after 3 s"
STOPPED = r"was stopped by a signal, and did not answer for \d+ s"


@asynccontextmanager
async def watched(code: str, patience: Patience = PATIENCE) -> AsyncIterator[tuple[Process, Health, list[str]]]:
    """A process with a heartbeat that runs `code` in its event loop, who watches it, and what is reported."""
    reports: list[str] = []
    with open_heartbeat() as heartbeat:
        async with (
            open_process(
                [sys.executable, "-c", BEATS, code],
                name="child",
                stdout=lambda _: None,
                stderr=lambda lines: reports.extend(map(text_of, lines)),
                environment={**os.environ, **heartbeat.environment},
                pass_fds=(heartbeat.write_end,),
            ) as child,
            asyncio.timeout(LIMIT_S),
            asyncio.TaskGroup() as tasks,
        ):
            health = Health(child.pid, patience, report=reports.append)
            watching = tasks.create_task(health.until_hung(heartbeat.beat))
            yield child, health, reports
            watching.cancel()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # another process makes it true
        await asyncio.sleep(0.05)


async def test_an_event_loop_that_is_held_is_reported_and_is_hung() -> None:
    async with watched("time.sleep(600)") as (_, health, reports):
        await until(lambda: bool(health.hung))
    assert re.fullmatch(r"did not answer for \d+ s", health.hung)
    (reported,) = reports
    assert re.fullmatch(REPORTED, reported)


async def test_a_pause_is_reported_and_nothing_else_comes_of_it() -> None:
    async with watched("time.sleep(2.2)", replace(PATIENCE, hung_s=30.0)) as (_, health, reports):
        await until(lambda: len(reports) == 2 or bool(health.hung))
        assert not health.hung
    assert re.fullmatch(r"has not answered for \d+ s; it is replaced after 30 s", reports[0])
    assert reports[1].startswith("answers again, after ")


async def test_one_that_may_rest_is_not_silent_meanwhile_and_is_asked_when_it_is_stopped() -> None:
    asked: list[float] = []

    async def ask() -> None:
        asked.append(time.monotonic())
        if len(asked) > 1:
            await asyncio.Event().wait()

    async with watched("pass") as (child, _, _), asyncio.TaskGroup() as tasks:
        reports: list[str] = []
        health = Health(child.pid, PATIENCE, report=reports.append, rest_s=10 * LIMIT_S)
        watching = tasks.create_task(health.until_hung(ask))
        await until(lambda: bool(asked))
        await until(lambda: time.monotonic() > asked[0] + PATIENCE.hung_s)
        assert len(asked) == 1
        assert not reports
        assert not health.hung
        child.signal(signal.SIGSTOP)
        await until(lambda: bool(health.hung))
        assert len(asked) == 2
        assert time.monotonic() >= asked[1] + PATIENCE.hung_s - 2 * LOOK_INTERVAL_S
        watching.cancel()
    (reported,) = reports
    assert re.fullmatch(REPORTED, reported)
    assert re.match(STOPPED, health.hung)


async def test_what_a_process_starts_does_not_beat_for_it() -> None:
    code = "import os, subprocess; subprocess.Popen(['sleep', '600']); os.kill(os.getpid(), 19)"
    async with watched(code) as (child, health, _):
        await until(lambda: bool(health.hung))
        for process in psutil.Process(child.pid).children():
            process.kill()
    assert re.match(STOPPED, health.hung)


@pytest.mark.timeout(900)
@pytest.mark.guarantee("I1", "I9")
async def test_stopped_vertices_and_a_stopped_broker_are_replaced(tmp_path: Path) -> None:
    files = PipelineFiles(tmp_path)
    files.write(
        files.generator(None, rpu=RATE) + files.function("identity") + files.file_sink("out"),
        ["in => map", "map -> out"],
    )
    async with start(tmp_path, "run", "pipeline.yaml", "--workers", "2") as run:
        await run.until(lambda: run.records("out") > 0)
        before = {name: await run.pid(name) for name in ("map-0", "broker")}
        for pid in before.values():
            os.kill(pid, signal.SIGSTOP)
        # Whatever is stopped takes no other signal: that it is gone means it was killed.
        await run.until(lambda: all(run.pids().get(name, 0) not in (0, before[name]) for name in ("map-0", "broker")))
        await run.until_more("out")
        run.interrupt()
        ended = await run.ended()
    assert ended.exit_code == 0, ended.err
    assert re.search(rf"warning: {re.escape(WORKER)}: has not answered for \d+ s; it is replaced after 12 s", ended.err)
    assert re.search(rf"warning: {re.escape(WORKER)}: {STOPPED}: it was killed; it is", ended.err)
    assert re.search(r"warning: runner: the broker has not answered for \d+ s; it is replaced after 12 s", ended.err)
    assert re.search(rf"warning: runner: the broker {STOPPED}: it was", ended.err)
    # The source waited for the broker, and was well.
    assert "in-0: has not" not in ended.err
    assert sorted(files.numbers("out")) == list(range(run.records("in")))


@pytest.mark.sweep
@pytest.mark.timeout(900)
@pytest.mark.guarantee("I1", "I9")
async def test_a_run_that_was_stopped_as_a_whole_takes_its_own_sleep_for_nobodys_silence(tmp_path: Path) -> None:
    files = PipelineFiles(tmp_path)
    files.write(
        files.generator(None, rpu=RATE) + files.function("identity") + files.file_sink("out"),
        ["in => map", "map -> out"],
    )
    async with start(tmp_path, "run", "pipeline.yaml") as run:
        await run.until(lambda: run.records("out") > 0)
        before = await run.all_pids("broker", "in-0", "map-0", "out-0")
        # The runner sleeps longest, as one would whose terminal was stopped with Ctrl-Z.
        family = [*before.values(), run.process.pid]
        seen = run.records("out")
        for pid in family:
            os.kill(pid, signal.SIGSTOP)
        begun_s = time.monotonic()
        await until(lambda: time.monotonic() - begun_s > HUNG_AFTER_S + 1)
        for pid in family:
            os.kill(pid, signal.SIGCONT)
        # It makes up for its sleep, and goes on for some seconds: what it took for silence it would have told by then.
        await run.until_more("out", than=seen + RATE * int(HUNG_AFTER_S + 3))
        run.interrupt()
        ended = await run.ended()
    assert ended.exit_code == 0, ended.err
    assert "it is replaced" not in ended.err
    assert "it was killed" not in ended.err
    assert sorted(files.numbers("out")) == list(range(run.records("in")))


@pytest.mark.sweep
@pytest.mark.timeout(900)
@pytest.mark.guarantee("I1", "I9")
async def test_a_stopped_sink_that_wakes_behind_its_successor_ends_as_fenced(tmp_path: Path) -> None:
    files = PipelineFiles(tmp_path)
    files.write(files.generator(None, rpu=RATE) + files.file_sink("out"), ["in -> out"])

    def has_written(epoch: int) -> bool:
        return any((tmp_path / "out").glob(f"*-e{epoch}.jsonl"))

    async with start(tmp_path, "run", "pipeline.yaml") as run:
        await run.until(lambda: has_written(1))
        owner = psutil.Process(await run.pid("out-0"))
        # The runner sleeps as well, so that it neither replaces the owner nor counts the time.
        for process in (psutil.Process(run.process.pid), owner):
            process.send_signal(signal.SIGSTOP)
        successor_log = tmp_path / "successor.log"
        with successor_log.open("wb") as log:
            starting = started(
                *owner.cmdline(),
                cwd=owner.cwd(),
                env=owner.environ(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            async with starting as successor:
                # Meanwhile it consumes, and has trimmed, what the owner was about to read.
                await run.until(lambda: has_written(2))
                owner.send_signal(signal.SIGCONT)
                async with asyncio.timeout(LIMIT_S):
                    # Its parent still sleeps.
                    await until(lambda: owner.status() == psutil.STATUS_ZOMBIE)
                os.kill(run.process.pid, signal.SIGCONT)
                # The one that the runner starts in its place fences the successor in turn.
                async with asyncio.timeout(LIMIT_S):
                    ended_with = await successor.wait()
                assert ended_with == FencedError.exit_code, successor_log.read_text()
        await run.until(lambda: has_written(3))
        run.interrupt()
        ended = await run.ended()
    assert ended.exit_code == 0, ended.err
    assert f"out-0: ended with exit code {FencedError.exit_code}" in ended.err
    assert "damaged" not in ended.err
    assert sorted(files.numbers("out")) == list(range(run.records("in")))
