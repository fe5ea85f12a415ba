"""What the trims of a running pipeline ask its broker for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.nats.client import Msg
from millstream.nats.connection import open_connection
from tests.mesh.reducing import LIMIT_S
from tests.support.pipelines import open_pipeline

if TYPE_CHECKING:
    from tests.mesh.conftest import PipelineFiles

TRIMS = 4


async def test_a_trim_does_not_ask_for_marks_that_came_with_the_frames(files: PipelineFiles, tmp_path: Path) -> None:
    # The broker would answer with the whole message that has the mark: a commit of up to several MiB.
    path = files.write(
        files.generator(None) + files.function("identity") + files.file_sink("out"), ["in => map", "map -> out"]
    )
    purged: list[str] = []
    asked: list[str] = []
    enough = asyncio.Event()

    def on_purge(message: Msg) -> None:
        purged.append(message.subject)
        if len(purged) == TRIMS:
            enough.set()

    async with open_pipeline(path, tmp_path / "broker") as run, open_connection(run.server.access) as other:
        running = asyncio.ensure_future(run.run())
        await other.client.listen("$JS.API.STREAM.PURGE.>", on_purge)
        async with asyncio.timeout(LIMIT_S):
            await enough.wait()
        # The lanes are open by now. A trim that asks does so for each lane.
        await other.client.listen("$JS.API.STREAM.MSG.GET.>", lambda message: asked.append(message.subject))
        purged.clear()
        enough.clear()
        async with asyncio.timeout(LIMIT_S):
            await enough.wait()
        during = len(asked)
        run.stop()
        await running
    # A commit whose answer is late, and a reader that takes the server for silent, look at a message, too.
    assert during < TRIMS
