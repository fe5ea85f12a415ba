"""What the pipeline `push` has outside: the feeder and the receiver of the oracle, as processes.

Above it: the experiment. Below it: `millstream_runner.chaos.oracle`, of which it knows two command lines.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from millstream.die_with_parent import dying_with_parent
from millstream.errors import InfrastructureError
from millstream.ports import free_ports
from millstream_runner.chaos.builtin_pipelines import Ports

SPLITS = 2
INPUTS = "inputs.jsonl"
RECEIVED = "received.jsonl"
_FINISH_TIMEOUT_S = 60.0
"""From the request to begin nothing new until everything is acknowledged."""
_STOP_TIMEOUT_S = 10.0


@asynccontextmanager
async def open_outside(directory: Path, ports: Ports, rate: float) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Both run inside the block. What it gives ends the feeder, once all it has sent is acknowledged.

    Raises `InfrastructureError` when that takes too long: the source is not there.
    """
    receiver = ["--port", str(ports.target), "--file", str(directory / RECEIVED)]
    feeder = ["--source", "orders", "--port", str(ports.source), "--splits", str(SPLITS)]
    feeder += ["--rate", str(rate), "--file", str(directory / INPUTS)]
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(_running("receiver", receiver))
        feeding = await stack.enter_async_context(_running("feeder", feeder))

        async def finish() -> None:
            with suppress(ProcessLookupError):
                os.kill(feeding.pid, signal.SIGTERM)
            try:
                async with asyncio.timeout(_FINISH_TIMEOUT_S):
                    await feeding.wait()
            except TimeoutError:
                raise InfrastructureError(
                    f"the source did not acknowledge what it was sent within {_FINISH_TIMEOUT_S:.0f} s"
                ) from None

        yield finish


@asynccontextmanager
async def _running(name: str, options: list[str]) -> AsyncIterator[asyncio.subprocess.Process]:
    command = [sys.executable, "-m", f"millstream_runner.chaos.oracle.{name}", *options]
    process = await asyncio.create_subprocess_exec(*dying_with_parent(command), start_new_session=True)
    try:
        yield process
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)
            with suppress(TimeoutError):
                async with asyncio.timeout(_STOP_TIMEOUT_S):
                    await process.wait()
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            await process.wait()


def outside_ports() -> Ports:
    """Ports that are free now: neighbours for the splits of the source, one for the target."""
    source = free_ports(SPLITS + 1)
    return Ports(source, source + SPLITS)
