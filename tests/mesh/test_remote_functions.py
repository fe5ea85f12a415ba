"""Functions that another program runs: named by their address, in whatever container or process they are."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.mesh.running import command, start
from tests.support.children import started

if TYPE_CHECKING:
    from tests.mesh.conftest import PipelineFiles


@asynccontextmanager
async def serving(directory: Path, function: str, socket: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A function in a process that Millstream did not start."""
    async with started(
        sys.executable,
        "-m",
        "millstream_udf",
        function,
        cwd=directory,
        env={**os.environ, "MILLSTREAM_UDF_SOCKET": str(socket)},
    ) as process:
        yield process


@pytest.mark.guarantee("I1")
async def test_a_map_behind_an_address_survives_the_death_of_its_function(files: PipelineFiles, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="ms-") as short:
        socket = Path(short) / "udf.sock"
        files.write(
            files.generator(None, rpu=5000)
            + f"- name: map\n  udf: {{address: 'unix:{socket}'}}\n"
            + files.file_sink("out"),
            ["in -> map", "map -> out"],
        )
        async with start(tmp_path, "run", "pipeline.yaml") as running:
            async with serving(tmp_path, "functions.py:identity", socket) as first:
                await running.until(lambda: running.records("map") > 0)
                first.kill()
                await first.wait()
            socket.unlink(missing_ok=True)
            # Another one, whose answers differ from those before.
            async with serving(tmp_path, "functions.py:branded", socket):
                await running.until(lambda: any("id" in row for row in files.rows("out")))
                running.interrupt()
                ended = await running.ended()
    assert ended.exit_code == 0, ended.err
    assert files.numbers("out") == list(range(running.records("in")))


@pytest.mark.sweep
async def test_an_address_where_nothing_answers_is_named(files: PipelineFiles, tmp_path: Path) -> None:
    files.write(
        files.generator(1) + "- name: map\n  udf: {address: 'host'}\n" + files.file_sink("out"),
        ["in -> map", "map -> out"],
    )
    ended = await command(tmp_path, "run", "pipeline.yaml")
    assert ended.exit_code == 2
    assert "'host' is not an address (expected: 'host:port' or 'unix:/path')" in ended.err
