"""Runs the program of a user-defined sink for the suites.

Above it: the suite for sinks, and its process that is killed. Below it: the program.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from millstream.spec.sinks import FallbackSink
from millstream.udf.function import open_local_function, open_remote_function
from millstream.udf.protocol import UdfClient, protocol_of
from millstream.udf.sidecar import SidecarSpec, python_command
from millstream_testing.checks import check


@asynccontextmanager
async def program_of(spec: FallbackSink, place: Path) -> AsyncIterator[UdfClient | None]:
    """The client of the sink's program, which is started in `place` or reached at its address; None for a sink without
    a program."""
    program = spec.program
    if program is None:
        yield None
        return
    if program.address is not None:
        async with open_remote_function(program.address, protocol=protocol_of(program.protocol)) as client:
            yield client
        return
    command = program.command if program.python is None else python_command(program.python)
    check(bool(command), "a program in a container is not started here: give its `address`")
    env = {variable.name: str(variable.value) for variable in program.env}
    process = SidecarSpec(command or (), role="sink", pipeline="conformance", vertex="out", env=env, cwd=place)
    async with open_local_function(process, log=lambda _, line: None, protocol=protocol_of(program.protocol)) as client:
        yield client
