"""Pipelines that read over HTTP, killed with their servers: what has a place comes once, and nothing comes twice."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.contract.sinks.file_target import finished_files
from tests.mesh.running import Running, start
from tests.support import sizes
from tests.support.web_server import WebProcess

RECORDS = 3_000 if sizes.ALL else 1_000
PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
  - name: in
    source: SOURCE
  - name: out
    sink: {file: {path: out, format: lines}}
  edges:
  - {from: in, to: out}
"""


@pytest.fixture
def server() -> Iterator[WebProcess]:
    server = WebProcess()
    server.start()
    yield server
    server.kill()


def lines(path: Path) -> list[str]:
    return [line for file in finished_files(path / "out") for line in file.read_text().splitlines()]


async def kill(run: Running, victims: tuple[str, ...], server: WebProcess) -> None:
    for victim in victims:
        seen = run.records("in")
        await run.until(lambda seen=seen: run.records("in") > seen)  # type: ignore[misc]
        if victim == "server":
            server.kill()
            await asyncio.to_thread(server.start)
        else:
            with suppress(ProcessLookupError, KeyError):
                os.kill(run.pids()[victim], signal.SIGKILL)


def source(kind: str, address: str) -> dict[str, Any]:
    if kind == "sse":
        return {"sse": {"url": f"http://{address}/events?count={RECORDS}&slow=1"}, "guarantee": "exactlyOnce"}
    cursor = {"path": "next", "parameter": "since"}
    url = f"http://{address}/items?count={RECORDS}&per=20&slow=1"
    poll = {"url": url, "records": "items", "cursor": cursor, "interval": "10ms", "stopAtEnd": True}
    return {"httpPoll": poll, "guarantee": "exactlyOnce"}


@pytest.mark.guarantee("I1", "I2", "I9")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", ["sse", "httpPoll"] if sizes.ALL else ["sse"])
async def test_each_record_is_there_once_though_everything_is_killed(
    tmp_path: Path, server: WebProcess, kind: str
) -> None:
    text = PIPELINE.replace("SOURCE", json.dumps(source(kind, server.address)))
    (tmp_path / "pipeline.yaml").write_text(text)
    async with start(tmp_path, "run", "pipeline.yaml") as run:
        await kill(run, ("in-0", "server", "broker") if sizes.ALL else ("in-0", "server"), server)
        ended = await run.ended()
    assert ended.exit_code == 0, ended.err
    assert "account: BALANCED" in ended.out
    found = [json.loads(line) for line in lines(tmp_path)]
    assert sorted(one["id"] if kind == "httpPoll" else one for one in found) == [*range(1, RECORDS + 1)]


@pytest.mark.guarantee("I2")
@pytest.mark.timeout(240)
async def test_a_message_that_may_be_lost_is_never_there_twice(tmp_path: Path, server: WebProcess) -> None:
    text = PIPELINE.replace("SOURCE", json.dumps({"websocket": {"url": f"ws://{server.address}/ticks"}}))
    (tmp_path / "pipeline.yaml").write_text(text)
    async with start(tmp_path, "run", "pipeline.yaml") as run:
        await kill(run, ("in-0", "server"), server)
        seen = run.records("out")
        await run.until(lambda: run.records("out") > seen)
        run.interrupt()
        ended = await run.ended()
    assert ended.exit_code == 0, ended.err
    assert "account: BALANCED" in ended.out
    counts = Counter(json.loads(line)["message"] for line in lines(tmp_path))
    assert len({message.partition("-")[0] for message in counts}) > 1, "a kill has cost a connection"
    assert max(counts.values()) == 1
