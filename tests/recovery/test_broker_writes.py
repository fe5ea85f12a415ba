"""A broker whose disk fails once stores nothing more, but still answers: it is restarted, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from millstream.buffers.jetstream.server import failure_in
from millstream.buffers.technology import WriteFailure
from tests.mesh.running import start
from tests.support.children import started

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
PLACE = "/data/store/jetstream/millstream/streams/p-in/msgs/1.blk"


@pytest.mark.parametrize(
    ("message", "failure"),
    [
        (f"[ERR] Filestore [p-in] Critical write error: sync {PLACE}: input/output error", WriteFailure.BROKEN),
        (f"[ERR] Filestore [p-in] Critical write error: write {PLACE}: read-only file system", WriteFailure.BROKEN),
        ("[ERR] JetStream failed to store a msg on stream 'millstream > p-in': short write", WriteFailure.BROKEN),
        ("[ERR] JetStream stream 'millstream > p-in' critical write error: bad file descriptor", WriteFailure.BROKEN),
        (f"[ERR] Filestore [p-in] Critical write error: write {PLACE}: no space left on device", WriteFailure.FULL),
        ("[ERR] JetStream out of space, will be DISABLED", WriteFailure.FULL),
        # These are answers to a client, which waits for space in the buffer.
        ("[ERR] JetStream failed to store a msg on stream 'millstream > p-in': maximum bytes exceeded", None),
        ("[ERR] JetStream failed to store a msg on stream 'millstream > p-in': maximum messages exceeded", None),
        ("[INF] Server is ready", None),
    ],
)
def test_what_the_server_says_when_it_cannot_write(message: str, failure: WriteFailure | None) -> None:
    line = f"[4711] 2026/11/29 13:06:08.142539 {message}"
    assert failure_in(line.encode()) is failure


def _tracer() -> str:
    """The program that makes system calls fail. Go calls the system itself, so a library in between would see none."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed, which makes the broker's fsync fail")
    # A child of this process, so the same rules hold as for the broker.
    with subprocess.Popen(["sleep", "60"]) as sleeping:
        tracing = [strace, "-o", os.devnull, "-p", str(sleeping.pid), "-e", "trace=none"]
        with subprocess.Popen(tracing, stderr=subprocess.PIPE, text=True) as tried:
            assert tried.stderr is not None
            line = tried.stderr.readline()
            tried.terminate()
        sleeping.kill()
    if "attached" not in line:
        pytest.skip(f"this system permits no ptrace: {line.strip()}")
    return strace


@pytest.mark.guarantee("I9")
async def test_a_broker_whose_fsync_fails_is_restarted_and_nothing_is_lost(tmp_path: Path) -> None:
    strace = _tracer()
    (tmp_path / "p.yaml").write_text(PIPELINE, encoding="utf-8")
    async with start(tmp_path, "run", "p.yaml", "-o", "json") as running:
        broker = await running.pid("broker")
        await running.until_more("out", than=0)
        fault = ("-f", "-o", os.devnull, "-e", "trace=fsync", "-e", "inject=fsync:error=EIO:when=3")
        async with started(strace, *fault, "-p", str(broker), stderr=asyncio.subprocess.DEVNULL):
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
