"""What a failed test leaves behind: nothing."""

from __future__ import annotations

import asyncio
import sys

import psutil
import pytest

from tests.support.children import started, together

FOREVER = "import time\nprint('begun', flush=True)\ntime.sleep(600)\n"


@pytest.mark.process
async def test_the_processes_of_a_failed_block_and_of_its_neighbours_have_ended() -> None:
    pids: list[int] = []
    begun = asyncio.Event()

    async def wait_forever() -> None:
        async with started(sys.executable, "-c", FOREVER, stdout=asyncio.subprocess.PIPE) as process:
            assert process.stdout is not None
            await process.stdout.readline()
            pids.append(process.pid)
            begun.set()
            await process.wait()

    async def fail() -> None:
        async with started(sys.executable, "-c", FOREVER) as process:
            pids.append(process.pid)
            await begun.wait()
            raise AssertionError("as a test does")

    async with asyncio.timeout(60):
        with pytest.raises(ExceptionGroup, match="TaskGroup"):
            await together(wait_forever(), fail())
    assert len(pids) == 2
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
