"""The outside of the pipeline `push`: the feeder and the receiver of the oracle, as processes.

Above it: the experiment. Below it: `millstream_runner.chaos.oracle`; it knows only two of its command lines.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

from millstream import codes
from millstream.errors import InfrastructureError
from millstream.ports import free_ports
from millstream.processes import Process, Stop, open_process
from millstream_runner.chaos.builtin_pipelines import Ports

SPLITS = 2
INPUTS = "inputs.jsonl"
RECEIVED = "received.jsonl"
_FINISH_TIMEOUT_S = 60.0
"""Time from the request to send nothing new until everything is acknowledged."""
_STOP_TIMEOUT_S = 10.0


@asynccontextmanager
async def open_outside(directory: Path, ports: Ports, rate: float) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Both run during the block. The yielded function ends the feeder once everything that it has sent is acknowledged.

    Raises `InfrastructureError` if that takes too long, because the source is not there.
    """
    receiver = ["--port", str(ports.target), "--file", str(directory / RECEIVED)]
    feeder = ["--source", "orders", "--port", str(ports.source), "--splits", str(SPLITS)]
    feeder += ["--rate", str(rate), "--file", str(directory / INPUTS)]
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(_running("receiver", receiver))
        feeding = await stack.enter_async_context(_running("feeder", feeder))

        async def finish() -> None:
            feeding.signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(_FINISH_TIMEOUT_S):
                    await feeding.wait()
            except TimeoutError:
                raise InfrastructureError(
                    codes.EXPERIMENT_STOPPED,
                    f"the source did not acknowledge all records within {_FINISH_TIMEOUT_S:.0f} s",
                ) from None

        yield finish


def _running(name: str, options: list[str]) -> AbstractAsyncContextManager[Process]:
    command = [sys.executable, "-P", "-m", f"millstream_runner.chaos.oracle.{name}", *options]
    return open_process(command, name=f"the {name}", stop=Stop(_STOP_TIMEOUT_S))


def outside_ports() -> Ports:
    """Ports that are free now: adjacent ones for the splits of the source, one for the target."""
    source = free_ports(SPLITS + 1)
    return Ports(source, source + SPLITS)
