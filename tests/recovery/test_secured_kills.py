"""Kills of vertices and of their broker, over encrypted connections to a broker that knows who talks."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from millstream.spec import resolved
from millstream.spec.loading import load
from millstream.testing.nats_server import NatsServer, open_nats_server
from millstream.tether import tethered

RECORDS = 2000
"""As the pipeline says, at 200 a second."""
KILLS = 6
LIMIT_S = 240.0
PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
    - name: in
      source: {generator: {rpu: 200, records: 2000}}
    - name: map
      udf: {builtin: {name: cat}}
    - name: out
      sink: {file: {path: out}}
  edges:
    - {from: in, to: map}
    - {from: map, to: out}
"""


class Vertex:
    """A process of a vertex, started again whenever it was killed."""

    def __init__(self, name: str, file: Path, server: NatsServer) -> None:
        self.name = name
        self._command = [
            *(sys.executable, "-m", "millstream_vertex", "--pipeline", str(file), "--vertex", name),
            *("--nats", server.url, "--nats-access", str(server.access_file), "--log-level", "WARNING"),
        ]
        self._log = file.parent / f"{name}.log"
        self.process: asyncio.subprocess.Process | None = None
        self.killed = 0

    async def run(self) -> None:
        while True:
            with self._log.open("ab") as log:
                self.process = await asyncio.create_subprocess_exec(*tethered(self._command), stdout=log, stderr=log)
            try:
                code = await self.process.wait()
            finally:
                self.kill()
            if code == 0:
                return
            assert code == -9, self._log.read_text()

    def kill(self) -> None:
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.kill()


@pytest.mark.guarantee("I1", "I9")
@pytest.mark.timeout(300)
async def test_a_pipeline_is_exact_with_encryption_and_users_whoever_is_killed(tmp_path: Path) -> None:
    rng = random.Random(4)
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    loaded = load(tmp_path / "pipeline.yaml")
    file = tmp_path / "pipeline.json"
    file.write_text(resolved.dump(loaded.pipeline, loaded.base_dir))
    async with open_nats_server(tmp_path / "broker", tls=True) as server, asyncio.timeout(LIMIT_S):
        vertices = [Vertex(name, file, server) for name in ("in", "map", "out")]
        async with asyncio.TaskGroup() as group:
            for vertex in vertices:
                group.create_task(vertex.run(), name=vertex.name)
            for number in range(KILLS):
                # Everything is begun, and goes on, between one kill and the next.
                await until_more(tmp_path / "broker")
                if number % 3 == 2:
                    await server.restart()
                else:
                    rng.choice(vertices).kill()
    found = [line for path in (tmp_path / "out").rglob("*.jsonl") for line in path.read_text().splitlines()]
    assert sorted(json.loads(line)["number"] for line in found) == list(range(RECORDS))


async def until_more(store: Path) -> None:
    """Wait until something was stored again."""
    before = size_of(store)
    while size_of(store) == before:  # noqa: ASYNC110  # files tell nobody
        await asyncio.sleep(0.02)


def size_of(store: Path) -> int:
    total = 0
    for folder, _, names in os.walk(store):
        for name in names:
            with suppress(FileNotFoundError):
                total += (Path(folder) / name).stat().st_size
    return total
