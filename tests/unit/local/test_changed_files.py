"""Files that a run does not take in when they change: it says so at once, and what to do."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millstream.spec.loading import load
from millstream_runner.local.changed_files import watch_files

WAIT_S = 180.0
PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
    - name: in
      source: {generator: {records: 5}}
    - name: map
      udf: {python: "maps.py:f"}
    - name: sum
      udf: {python: "sums.py:f", groupBy: {window: {fixed: {length: 60s}}}}
    - name: out
      sink: {log: {}}
  edges:
    - {from: in, to: map}
    - {from: map, to: sum}
    - {from: sum, to: out}
"""


@pytest.mark.slow
async def test_a_change_that_is_not_taken_in_is_said_at_once(tmp_path: Path) -> None:
    file, maps, sums = tmp_path / "pipeline.yaml", tmp_path / "maps.py", tmp_path / "sums.py"
    file.write_text(PIPELINE)
    maps.write_text("def f(value): return value\n")
    sums.write_text("def f(keys, values): return b''\n")
    said: asyncio.Queue[str] = asyncio.Queue()
    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(watch_files(load(file), said.put_nowait))
        # Its first look is before it waits.
        await asyncio.sleep(0)

        # A function beside a worker is the worker's to look at, which restarts it.
        maps.write_text("def f(value): return None\n")
        sums.write_text("def f(keys, values): return b'1'\n")
        assert await said.get() == (
            "sums.py changed, but sum continues with the earlier version, in Spark: end it with Ctrl-C, "
            "which finishes the records in flight, and run it again"
        )
        file.write_text(PIPELINE.replace("log: {}", "lag: {}"))
        text = await said.get()
        assert text.startswith(f"{file} changed (it has 1 problem: see `millstream validate {file}`)")
        assert "but this run continues with the earlier version: end it with Ctrl-C" in text
        sums.write_text("def f(keys, values): return b'2'\n")
        assert (await said.get()).startswith("sums.py changed")
        watching.cancel()
    assert said.empty()
