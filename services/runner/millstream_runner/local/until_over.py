"""Ends what follows a run when the run is over.

Above it: commands that follow a run. Below it: the data directory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from millstream.background import beside
from millstream_runner.local.directory import DataDirectory
from millstream_runner.local.processes import is_alive

_POLL_S = 0.25


@asynccontextmanager
async def until_over(directory: DataDirectory | None, note_over: Callable[[], None]) -> AsyncIterator[None]:
    """End the block when the runner exits, because the block may be waiting for its broker, which is gone then.
    `directory`: that of the run; None for a run elsewhere. `note_over` is called when that is why the block ends."""
    if directory is None:
        yield
        return
    inside, is_over = asyncio.current_task(), False
    assert inside is not None, "a block runs in a task"

    async def watch() -> None:
        nonlocal is_over
        while True:
            runtime = directory.read_runtime()
            if runtime is None or not is_alive(runtime.runner):
                is_over = True
                note_over()
                inside.cancel()
                return
            await asyncio.sleep(_POLL_S)

    async with beside(watch(), "watch the runner"):
        try:
            yield
        except asyncio.CancelledError:
            if not is_over:
                raise
            inside.uncancel()
