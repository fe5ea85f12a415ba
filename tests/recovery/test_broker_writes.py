"""A broker whose disk fails once stores nothing more, but still answers and says so: it is restarted, and nothing is
lost."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from millstream.buffers.jetstream.requests import until_answered
from millstream.buffers.jetstream.server import open_nats_server
from millstream.buffers.jetstream.stream_health import ask_for_streams, failed_writes
from millstream.nats.connection import open_connection
from tests.mesh.running import start
from tests.support.system_calls import failing, need_failing_calls

PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
    - {name: in, source: {generator: {rpu: 500, valueBlob: aGVsbG8=}}}
    - {name: step, udf: {builtin: {name: cat}}}
    - {name: out, sink: {file: {path: out, rolling: {maxAge: 1s}}, envelope: true}}
  edges:
    - {from: in, to: step, chain: false}
    - {from: step, to: out}
"""


def test_only_failed_writes_are_failures() -> None:
    """A stream that is not there yet may be restored at this moment."""
    errors = [
        {"type": "STREAM", "account": "a", "stream": "s", "error": "JetStream stream 'a > s' could not be recovered"},
        {"type": "STREAM", "account": "a", "stream": "s", "error": "JetStream stream 'a > s' write error: sync 1.blk"},
    ]
    answer = {"data": {"status": "error", "errors": errors}}
    assert failed_writes(json.dumps(answer).encode()) == [errors[1]["error"]]
    assert failed_writes(b'{"data": {"status": "ok", "status_code": 200}}') == []
    with pytest.raises(ValueError, match="not an answer"):
        failed_writes(b"[]")


@pytest.mark.guarantee("I9")
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("fsync:error=EIO:when=1+", "input/output error"),
        ("pwrite64:error=EROFS:when=1+", "read-only file system"),
    ],
)
async def test_a_server_says_which_stream_stores_nothing_more(tmp_path: Path, fault: str, reason: str) -> None:
    """It answers, and another stream works."""
    need_failing_calls()
    async with open_nats_server(tmp_path) as server, open_connection(server.access, name="test") as connection:
        port = int(server.access.url.rpartition(":")[2])
        for name in ("one", "two"):
            await until_answered(connection, f"STREAM.CREATE.{name}", {"name": name, "subjects": [name]})
            await connection.request(name, b"stored")
        assert await ask_for_streams(port, server.access) == []
        (file,) = tmp_path.rglob("one/msgs/1.blk")
        async with failing(server.pid, fault, files=(file,)):
            await connection.publish("one", b"lost")
            async with asyncio.timeout(20):
                while not (failed := await ask_for_streams(port, server.access)):  # noqa: ASYNC110  # nothing tells
                    await asyncio.sleep(0.05)
        assert reason in failed[0]
        assert "one" in failed[0]
        assert len(failed) == 1
        assert b"seq" in (await connection.request("two", b"stored")).data


@pytest.mark.guarantee("I9")
async def test_a_broker_whose_fsync_fails_is_restarted_and_nothing_is_lost(tmp_path: Path) -> None:
    need_failing_calls()
    (tmp_path / "p.yaml").write_text(PIPELINE, encoding="utf-8")
    async with start(tmp_path, "run", "p.yaml", "-o", "json") as running:
        broker = await running.pid("broker")
        await running.until_more("out", than=0)
        async with failing(broker, "fsync:error=EIO:when=3"):
            await running.until_replaced("broker", broker)
        await running.until_more("out")
        running.interrupt()
        ended = await running.ended()
    assert ended.exit_code == 0, ended.err
    assert "the broker failed to write" in ended.err
    vertices = json.loads(ended.out.splitlines()[-1])["account"]["vertices"]
    read = next(vertex for vertex in vertices if vertex["vertex"] == "in")["inputs"]
    files = (tmp_path / "out").glob("*.jsonl")
    ids = [json.loads(line)["id"] for file in files for line in file.read_text().splitlines()]
    assert (len(ids), len(set(ids))) == (read, read)
