"""Processes: how they end, and what is read of them. Real ones."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop

from millstream.errors import InfrastructureError
from millstream.processes import OUTPUT_TIMEOUT_S, Process, Stop, exit_text, open_process

pytestmark = pytest.mark.process

LIMIT_S = 180
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('here', flush=True); signal.pause()"
BUSY = (
    "import hashlib, threading\n"
    "def work():\n"
    "    while True: hashlib.sha256(bytes(1_000_000))\n"
    "for _ in range(4): threading.Thread(target=work).start()\n"
    "print('here', flush=True)\n"
)
LEAVES_ONE = (
    "import subprocess, sys\n"
    "left = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "print(left.pid, flush=True)\n"
    "{end}\n"
)


class Output:
    """Lines of a process, and when there are some."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.some = asyncio.Event()

    def __call__(self, lines: list[bytes]) -> None:
        self.lines += lines
        self.some.set()


@asynccontextmanager
async def python(code: str, output: Output, *, group: bool = False, stop: Stop | None = None) -> AsyncIterator[Process]:
    command = [sys.executable, "-c", code]
    async with (
        asyncio.timeout(LIMIT_S),
        open_process(
            command,
            name="the test's process",
            stdin=asyncio.subprocess.PIPE,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            group=group,
            stop=stop or Stop(),
        ) as process,
    ):
        yield process


async def test_its_output_is_read_to_the_last_line_that_has_no_end() -> None:
    output = Output()
    async with python("print('one'); print('two', end='')", output) as process:
        assert await process.wait() == 0
    assert output.lines == [b"one", b"two"]


async def test_it_is_asked_to_end_before_it_is_killed() -> None:
    output = Output()
    code = "import signal\nprint('here', flush=True)\nsignal.sigwait({signal.SIGTERM})\nprint('bye')"
    blocked = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\n"
    async with python(blocked + code, output, stop=Stop(LIMIT_S)) as process:
        await output.some.wait()
    assert (process.exit_code, output.lines) == (0, [b"here", b"bye"])


async def test_one_that_does_not_end_is_killed() -> None:
    output = Output()
    async with python(STUBBORN, output, stop=Stop(0.1)) as process:
        await output.some.wait()
    assert process.exit_code == -signal.SIGKILL


async def test_one_that_reads_orders_ends_when_there_are_no_more() -> None:
    output = Output()
    code = "import sys\nfor line in sys.stdin: print('got', line.strip(), flush=True)\nprint('over')"
    async with python(code, output, stop=Stop(LIMIT_S, by=None)) as process:
        process.tell("stop a-0")
        await output.some.wait()
    assert (process.exit_code, output.lines) == (0, [b"got stop a-0", b"over"])


async def test_what_a_group_leaves_behind_ends_with_it() -> None:
    output = Output()
    async with python(LEAVES_ONE.format(end="sys.exit(3)"), output, group=True) as process:
        assert await process.wait() == 3
    left = int(output.lines[0])
    async with asyncio.timeout(LIMIT_S):
        while psutil.pid_exists(left) and psutil.Process(left).status() != psutil.STATUS_ZOMBIE:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_one_that_was_left_behind_does_not_hide_the_end() -> None:
    output = Output()
    async with python(LEAVES_ONE.format(end=""), output) as process:
        await process.wait()
        ended = asyncio.get_running_loop().time()
    left = int(output.lines[0])
    os.kill(left, signal.SIGKILL)
    assert asyncio.get_running_loop().time() - ended >= OUTPUT_TIMEOUT_S


async def test_what_a_callback_raises_comes_out() -> None:
    def refuse(lines: list[bytes]) -> None:
        raise ValueError(f"no room for {lines}")

    with pytest.raises(ValueError, match="no room"):
        async with asyncio.timeout(LIMIT_S), open_process(["echo", "x"], name="it", stdout=refuse) as process:
            await process.wait()


async def test_a_command_that_does_not_exist_ends_as_in_a_shell() -> None:
    output = Output()
    async with open_process(["no-such-command"], name="it", stderr=output) as process:
        assert await process.wait() == 127
    assert output.lines[0].endswith(b"no-such-command: command not found")


async def test_one_that_cannot_be_started(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match=r"cannot start it \(true\): No such file"):
        async with open_process(["true"], name="it", cwd=tmp_path / "nowhere"):
            pass


async def test_all_threads_of_one_that_is_paused_stand_still_when_the_call_returns() -> None:
    output = Output()
    async with python(BUSY, output) as process:
        await output.some.wait()
        for _ in range(50):
            process.pause()
            states = [path.read_text() for path in Path(f"/proc/{process.pid}/task").glob("*/stat")]
            assert [state.rpartition(") ")[2][0] for state in states] == ["T"] * 5
            process.resume()


async def test_one_that_has_ended_can_be_paused() -> None:
    output = Output()
    async with python("print('here', flush=True)", output) as process:
        await output.some.wait()
        # It ends meanwhile, and the loop hears of it at any of these moments.
        for _ in range(200):
            process.pause()
            process.resume()
            await asyncio.sleep(0)
        assert await process.wait() == 0
        process.pause()
        process.resume()


@pytest.mark.parametrize(("code", "text"), [(0, "code 0"), (3, "code 3"), (-9, "signal SIGKILL"), (-200, "signal 200")])
def test_how_it_ended_in_words(code: int, text: str) -> None:
    assert exit_text(code) == text


@pytest.mark.parametrize(
    "holds",
    [
        test_its_output_is_read_to_the_last_line_that_has_no_end,
        test_it_is_asked_to_end_before_it_is_killed,
        test_one_that_reads_orders_ends_when_there_are_no_more,
        test_what_a_group_leaves_behind_ends_with_it,
        test_one_that_was_left_behind_does_not_hide_the_end,
        test_all_threads_of_one_that_is_paused_stand_still_when_the_call_returns,
        test_one_that_has_ended_can_be_paused,
    ],
)
def test_the_same_holds_on_the_loop_that_runners_and_workers_have(
    holds: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    uvloop.run(holds())
