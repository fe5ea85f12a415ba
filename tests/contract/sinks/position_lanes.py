"""Lanes of user-defined sinks that keep positions, each with its function in a process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from millstream.record import Position
from millstream.spec.models import FallbackSink
from millstream.udf.function import LocalFunction, open_local_function
from millstream.udf.sidecar import SidecarSpec, python_command
from millstream_connectors.opening_sinks import open_sink
from millstream_writer.connector import SinkOwner
from millstream_writer.sink import SinkLane
from tests.contract.sinks.file_target import NOWHERE, sink_owner
from tests.contract.sinks.sink_targets import POSITION_SINK

PYTHON = python_command(f"{POSITION_SINK}:Numbers")


@asynccontextmanager
async def function(
    target: Path, command: Sequence[str] = PYTHON, env: Mapping[str, str] | None = None
) -> AsyncIterator[LocalFunction]:
    """A running function that writes to `target`."""
    spec = SidecarSpec(
        command, role="sink", pipeline="p", vertex="out", env={"SINK_TARGET": str(target), **(env or {})}
    )
    async with asyncio.timeout(90), open_local_function(spec, log=lambda _, line: None) as opened:
        yield opened


@asynccontextmanager
async def lane(client: LocalFunction, owner: SinkOwner) -> AsyncIterator[SinkLane]:
    """A lane of it."""
    spec = FallbackSink.model_validate({"udsink": {"python": f"{POSITION_SINK}:Numbers"}})
    async with open_sink(spec, replace(owner, client=client)) as opened:
        yield opened


@asynccontextmanager
async def opened(
    target: Path,
    epoch: int,
    *,
    start: Position = NOWHERE,
    command: Sequence[str] = PYTHON,
    env: Mapping[str, str] | None = None,
) -> AsyncIterator[SinkLane]:
    """A lane with a function of its own."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(function(target, command, env))
        yield await stack.enter_async_context(lane(client, sink_owner(epoch, start=start)))
