"""A sink's lane in a process that dies at a durable step, and what another one makes of it.

Above it: tests of sinks that keep a position. Below it: the sink, as a vertex opens it, in a process of its own.

python -m tests.recovery.killed_sinks SPEC EPOCH
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from millstream.durable import CRASH_AT
from millstream.errors import RetryLaterError
from millstream.record import Position
from millstream.spec.models import FallbackSink
from millstream_connectors.opening_sinks import open_sink
from millstream_testing.programs import program_of
from tests.contract.sinks.file_target import sink_owner, value_of
from tests.support.children import started
from tests.unit.writer.sink_frames import sink_frame
from tools.style import REPOSITORY

_FRAMES = 12
EXPECTED = [*range(10, 10 * _FRAMES + 10)]
"""The numbers that the target has in the end."""


async def kill_at(spec: dict[str, Any], point: str, *, epochs: tuple[int, int] = (1, 2)) -> None:
    """Have a lane write all of it and die at a point, and another one write all of it again."""
    async with (
        asyncio.timeout(60),
        started(
            sys.executable,
            "-m",
            "tests.recovery.killed_sinks",
            json.dumps(spec),
            f"{epochs[0]}",
            cwd=REPOSITORY,
            env={**os.environ, CRASH_AT: point},
        ) as process,
    ):
        assert await process.wait() == -signal.SIGKILL, point
    await deliver(FallbackSink.model_validate(spec), epochs[1])


async def deliver(spec: FallbackSink, epoch: int) -> None:
    """The lane, from its mark, which never came further than the start: all is offered again."""
    async with program_of(spec, Path()) as client, open_sink(spec, replace(sink_owner(epoch), client=client)) as lane:
        for sequence in range(1, _FRAMES + 1):
            frame = sink_frame([value_of(n) for n in range(sequence * 10, sequence * 10 + 10)], sequence)
            while True:
                with suppress(RetryLaterError):
                    await lane.write([frame], Position(sequence))
                    break
        while True:
            with suppress(RetryLaterError):
                await lane.flush()
                break


if __name__ == "__main__":
    asyncio.run(deliver(FallbackSink.model_validate(json.loads(sys.argv[1])), int(sys.argv[2])))
