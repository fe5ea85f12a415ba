"""`millstream run --debug-function`: a debugger in a function, by the protocol that editors speak (DAP)."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from millstream.limits import DRAIN_TIMEOUT_S
from millstream.ports import free_ports
from tests.mesh.conftest import PipelineFiles
from tests.mesh.running import Running, command, start, until_gone
from tests.support.sizes import first

FUNCTION = """\
import json

def doubled(value):
    number = json.loads(value)["number"]
    double = 2 * number
    return json.dumps({"number": number, "double": double})
"""
LINE = 6
"""Of the return."""
LIMIT_S = 180


class Client:
    """What an editor does with a debugger."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._sent = 0
        self._waiting: list[dict[str, Any]] = []
        """Messages that were not asked for yet."""

    def send(self, name: str, **arguments: Any) -> int:
        self._sent += 1
        body = json.dumps({"seq": self._sent, "type": "request", "command": name, "arguments": arguments}).encode()
        self._writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        return self._sent

    async def answer(self, sent: int) -> dict[str, Any]:
        found = await self._next(lambda message: message.get("request_seq") == sent)
        assert found["success"], found
        body: dict[str, Any] = found.get("body") or {}
        return body

    async def event(self, name: str) -> dict[str, Any]:
        body: dict[str, Any] = (await self._next(lambda message: message.get("event") == name)).get("body") or {}
        return body

    async def ask(self, name: str, **arguments: Any) -> dict[str, Any]:
        return await self.answer(self.send(name, **arguments))

    async def _next(self, is_meant: Any) -> dict[str, Any]:
        async with asyncio.timeout(LIMIT_S):
            while True:
                for message in self._waiting:
                    if is_meant(message):
                        self._waiting.remove(message)
                        return message
                head = await self._reader.readuntil(b"\r\n\r\n")
                size = re.search(rb"Content-Length: (\d+)", head)
                assert size is not None
                self._waiting.append(json.loads(await self._reader.readexactly(int(size[1]))))


@asynccontextmanager
async def attached(port: int, file: Path, *lines: int) -> AsyncIterator[Client]:
    """A client with breakpoints at these lines, and the function running."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        client = Client(reader, writer)
        await client.ask("initialize", adapterID="debugpy", clientID="test", pathFormat="path", linesStartAt1=True)
        attaching = client.send("attach", justMyCode=True)
        await client.event("initialized")
        points = [{"line": line} for line in lines]
        await client.ask("setBreakpoints", source={"path": str(file)}, breakpoints=points)
        await client.ask("configurationDone")
        await client.answer(attaching)
        yield client
    finally:
        writer.close()


def pipeline(files: PipelineFiles, *, records: int = 20) -> Path:
    (files.directory / "doubling.py").write_text(FUNCTION)
    return files.write(
        files.generator(records) + "- name: map\n  udf: {python: 'doubling.py:doubled'}\n" + files.file_sink("out"),
        ["in -> map", "map -> out"],
    )


@asynccontextmanager
async def debugged(path: Path, port: int) -> AsyncIterator[Running]:
    """A run whose map waits for a debugger."""
    async with start(path.parent, "run", path.name, "--debug-function", "map", "--debug-port", str(port)) as run:
        await run.until(lambda: f"map waits for a debugger at 127.0.0.1:{port}" in run.err())
        yield run


async def test_a_breakpoint_is_hit_and_the_pipeline_goes_on(files: PipelineFiles) -> None:
    function, port = files.directory / "doubling.py", free_ports()
    async with debugged(pipeline(files), port) as run, attached(port, function, LINE) as client:
        stopped = await client.event("stopped")
        assert stopped["reason"] == "breakpoint"
        (frame, *_) = (await client.ask("stackTrace", threadId=stopped["threadId"]))["stackFrames"]
        assert (frame["name"], frame["line"]) == ("doubled", LINE)
        shown = await client.ask("evaluate", expression="double", frameId=frame["id"], context="watch")
        assert shown["result"] == "0"
        await client.ask("setBreakpoints", source={"path": str(function)}, breakpoints=[])
        await client.ask("continue", threadId=stopped["threadId"])
        ended = await run.ended()
    assert ended.exit_code == 0, ended.err
    assert sorted(row["double"] for row in files.rows("out")) == [2 * number for number in range(20)]
    assert "not answer" not in ended.err


@pytest.mark.sweep
async def test_ctrl_c_ends_a_run_that_waits_for_a_debugger(files: PipelineFiles) -> None:
    port = free_ports()
    async with debugged(pipeline(files), port) as run:
        await run.until(lambda: run.json("status.json").get("states", {}).get("map") == "being debugged")
        begun_s = time.monotonic()
        run.interrupt()
        ended = await run.ended()
    assert ended.exit_code == 0, ended.err
    assert time.monotonic() - begun_s < DRAIN_TIMEOUT_S
    await nobody_listens(port)


@pytest.mark.sweep
async def test_ctrl_c_ends_a_run_that_stands_at_a_breakpoint(files: PipelineFiles) -> None:
    port = free_ports()
    async with debugged(pipeline(files), port) as run:
        async with attached(port, files.directory / "doubling.py", LINE) as client:
            await client.event("stopped")
            begun_s = time.monotonic()
            run.interrupt()
            ended = await run.ended()
        assert ended.exit_code == 0, ended.err
        assert time.monotonic() - begun_s < DRAIN_TIMEOUT_S
    await nobody_listens(port)
    # Nothing is lost by it.
    again = await command(files.directory, "run", "pipeline.yaml")
    assert again.exit_code == 0, again.err
    assert sorted(files.numbers("out")) == list(range(20))


async def nobody_listens(port: int) -> None:
    """debugpy's adapter is a process of its own, which ends when the function has."""
    adapters = [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if str(port) in (process.info["cmdline"] or []) and "--for-server" in (process.info["cmdline"] or [])
    ]
    await until_gone(adapters)


@pytest.mark.sweep
async def test_breakpoints_without_a_debugger(files: PipelineFiles) -> None:
    text = FUNCTION.replace("    double =", "    breakpoint()\n    double =")
    path = pipeline(files)
    (files.directory / "doubling.py").write_text(text)
    ended = await command(files.directory, "run", path.name)
    assert ended.exit_code == 0, ended.err
    assert ended.err.count("the breakpoint at doubling.py:5 was skipped") == 1
    assert "--debug-function map" in ended.err
    assert len(files.rows("out")) == 20


@pytest.mark.sweep
async def test_pdb_without_a_terminal(files: PipelineFiles) -> None:
    text = FUNCTION.replace("    double =", "    import pdb; pdb.set_trace()\n    double =")
    path = pipeline(files)
    (files.directory / "doubling.py").write_text(text)
    ended = await command(files.directory, "run", path.name)
    assert ended.exit_code == 3, ended.err
    assert "pdb cannot be used here" in ended.err
    assert "--debug-function map" in ended.err
    assert "BdbQuit" not in ended.err


@pytest.mark.sweep
async def test_a_program_in_another_language_says_which_process_it_is(files: PipelineFiles) -> None:
    """It cannot be made to wait; a debugger attaches to it while it runs, and it is not taken for hung."""
    path, port = pipeline(files, records=20), free_ports()
    # A function in Go would be such a program; what counts is that the command does not name the SDK.
    program = files.directory / "program"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} -m millstream_udf doubling.py:doubled\n")
    program.chmod(0o755)
    path.write_text(path.read_text().replace("{python: 'doubling.py:doubled'}", "{command: [./program]}"))
    async with debugged(path, port) as run:
        pid = re.search(r"the process of map is (\d+), for a debugger to attach to", run.err())
        assert pid is not None
        assert psutil.Process(int(pid[1])).is_running()
        run.interrupt()
        assert (await run.ended()).exit_code == 0


@pytest.mark.parametrize(
    ("name", "what"),
    first(
        1,
        [
            ("mpa", "has no such vertex; did you mean map?"),
            ("out", "it has no function"),
        ],
    ),
)
async def test_what_cannot_be_debugged(files: PipelineFiles, name: str, what: str) -> None:
    ended = await command(files.directory, "run", pipeline(files).name, "--debug-function", name)
    assert ended.exit_code == 2
    assert what in ended.err
