"""A server that is silent again and again while something works with it, and whether the event loop goes on meanwhile.

A client that waits for an answer while it holds the interpreter's lock stops everything in its process: the lanes of
other vertices, health checks, and the loop that would end the silence here.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

from tests.support.children import started
from tests.support.server_process import ServerProcess

SILENCE_S = 0.05
"""Shorter than any limit of a client."""
ENDS_BY_ITSELF_S = 5
"""A stopped process does not end a silence, so something else does, for the test to fail instead of standing."""
_END = "import os, signal, sys, time; time.sleep(int(sys.argv[1])); os.kill(int(sys.argv[2]), signal.SIGCONT)"

T = TypeVar("T")


async def through_silences(server: ServerProcess, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. Fails if the loop stood still in a silence."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    while not task.done():
        server.pause()
        since_s = loop.time()
        # One process: a shell's `sleep` would outlive it.
        async with started(sys.executable, "-ISc", _END, str(ENDS_BY_ITSELF_S), str(server.pid)):
            await asyncio.wait((task,), timeout=SILENCE_S)
            lasted_s = loop.time() - since_s
            server.go_on()
        assert lasted_s < ENDS_BY_ITSELF_S, f"the process stood still for {lasted_s:.1f} s"
        # Time for a request or two.
        await asyncio.wait((task,), timeout=0.02)
    return task.result()
