"""Kills of what a running pipeline needs: its processes, our own broker, and the server outside.

    the sink has written more ─► kill ─► the sink has written more ─► kill ─► ...

A kill finds a pipeline at work, and the next one waits until it works again, however fast or slow the machine is. So
the source has to have work as long as that lasts: it never ends, or a test gives it more before each kill.

Above it: tests of connectors. Below it: a run as users start it.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from tests.mesh.running import Running, start

OUTSIDE = "outside"
"""Among victims: the server that the pipeline reads from or writes to."""
FUNCTION = "function"
"""Among victims: the process of the pipeline's function."""
_BEHIND = 500
"""When no more records wait in buffers, they are written long before the end of the time for a drain."""

Restart = Callable[[], Awaitable[object]]
"""Kills the server outside and starts it; returns when it answers."""


async def kill(run: Running, victim: str, restart: Restart | None) -> None:
    """`SIGKILL`. If the process was killed a moment ago, its successor gets it."""
    if victim == OUTSIDE:
        assert restart is not None, "there is no server outside"
        await restart()
    else:
        await run.until(lambda: _struck(run, victim))


async def kill_in_turn(
    run: Running,
    victims: Sequence[str],
    restart: Restart | None = None,
    *,
    feed: Callable[[int], Awaitable[object]] | None = None,
) -> None:
    """Kill each victim once the sink `out` has written more. Before that, `feed` gives the source more to read; its
    argument is the number of the kill, from 0."""
    for number, victim in enumerate(victims):
        # What is fed may be written before a later look.
        seen = run.records("out")
        if feed is not None:
            await feed(number)
        await run.until_more("out", than=seen)
        await kill(run, victim, restart)


async def killed_in_turn(directory: Path, pipeline: str, victims: Sequence[str], restart: Restart | None = None) -> int:
    """Run a pipeline from a source `in` that never ends to a sink `out`, and kill each victim in turn. Once the sink
    has caught up after the last kill, the pipeline is drained. Returns how many records the source has made."""
    (directory / "pipeline.yaml").write_text(pipeline)
    async with start(directory, "run", "pipeline.yaml", "--quiet", "-o", "json") as run:
        await kill_in_turn(run, victims, restart)
        await run.until_more("out")
        await run.until(lambda: _waiting(run) <= _BEHIND)
        run.interrupt()
        ended = await run.ended()
    assert ended.exit_code == 0, ended.err
    account = json.loads(ended.out.splitlines()[-1])["account"]
    assert account["balanced"]
    assert not any(edge["waiting"] for edge in account["edges"]), account["edges"]
    (made,) = [vertex["inputs"] for vertex in account["vertices"] if vertex["vertex"] == "in"]
    return int(made)


def _waiting(run: Running) -> int:
    return sum(vertex["waiting"] for vertex in run.json("status.json")["vertices"])


def _struck(run: Running, victim: str) -> bool:
    """Whether there was such a process."""
    with suppress(ProcessLookupError, psutil.NoSuchProcess):
        pid = _function_of(run) if victim == FUNCTION else run.pids().get(victim)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            return True
    return False


def _function_of(run: Running) -> int | None:
    for process in psutil.Process(run.process.pid).children(recursive=True):
        command = process.cmdline()
        # A program of its own speaks another protocol, and has a parent that starts it with `--`.
        if "millstream_udf" in command or ("--" not in command and command[-1:] and command[-1].endswith(".py")):
            return process.pid
    return None
