"""Pipelines that read over HTTP, killed with their servers: what has a place comes once, and nothing comes twice."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.contract.sinks.file_target import finished_files
from tests.mesh.running import start
from tests.recovery.kills import OUTSIDE, kill_in_turn
from tests.support import sizes
from tests.support.web_server import WebProcess

ENDLESS = 10**9
"""Records that a server has: whenever a process is killed, there is work."""
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


async def killed(directory: Path, server: WebProcess, victims: Sequence[str], settings: Mapping[str, Any]) -> int:
    """Kill each in turn while the pipeline reads from the server, then drain it. Returns how many records it read."""

    async def restart() -> None:
        server.kill()
        await asyncio.to_thread(server.start)

    (directory / "pipeline.yaml").write_text(PIPELINE.replace("SOURCE", json.dumps(settings)))
    async with start(directory, "run", "pipeline.yaml") as run:
        await kill_in_turn(run, victims, restart)
        await run.until_more("out")
        run.interrupt()
        ended = await run.ended()
    assert ended.exit_code == 0, ended.err
    assert "account: BALANCED" in ended.out
    return run.records("in")


def source(kind: str, address: str) -> dict[str, Any]:
    if kind == "sse":
        return {"sse": {"url": f"http://{address}/events?count={ENDLESS}&slow=1"}, "guarantee": "exactlyOnce"}
    cursor = {"path": "next", "parameter": "since"}
    url = f"http://{address}/items?count={ENDLESS}&per=20&slow=1"
    poll = {"url": url, "records": "items", "cursor": cursor, "interval": "10ms"}
    return {"httpPoll": poll, "guarantee": "exactlyOnce"}


@pytest.mark.guarantee("I1", "I2", "I9")
@pytest.mark.timeout(900)
@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["sse", "httpPoll"])
async def test_each_record_is_there_once_though_everything_is_killed(
    tmp_path: Path, server: WebProcess, kind: str
) -> None:
    victims = ("in-0", OUTSIDE, "broker") if sizes.ALL else ("in-0", OUTSIDE)
    records = await killed(tmp_path, server, victims, source(kind, server.address))
    found = [json.loads(line) for line in lines(tmp_path)]
    assert sorted(one["id"] if kind == "httpPoll" else one for one in found) == [*range(1, records + 1)]


@pytest.mark.guarantee("I2")
@pytest.mark.timeout(900)
@pytest.mark.sweep
async def test_a_message_that_may_be_lost_is_never_there_twice(tmp_path: Path, server: WebProcess) -> None:
    await killed(tmp_path, server, ("in-0", OUTSIDE), {"websocket": {"url": f"ws://{server.address}/ticks"}})
    counts = Counter(json.loads(line)["message"] for line in lines(tmp_path))
    assert len({message.partition("-")[0] for message in counts}) > 1, "a kill has cost a connection"
    assert max(counts.values()) == 1
