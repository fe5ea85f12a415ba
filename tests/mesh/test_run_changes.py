"""Pipelines that change between two runs: what was drained goes on as something else, what waits is named."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.durable import CRASH_AT
from tests.mesh.running import command, start

if TYPE_CHECKING:
    from tests.mesh.conftest import PipelineFiles

SOURCE = "- name: in\n  source: {file: {paths: ['in*.jsonl'], format: jsonl, follow: true}, keys: [k]}\n"


def give(directory: Path, first: int, records: int) -> None:
    with (directory / "in.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps({"number": n, "k": str(n % 7)}) + "\n" for n in range(first, first + records))


async def drained(directory: Path, **sinks: int) -> None:
    """Run until the sinks have taken so many records in this run and before, then drain."""
    async with start(directory, "run", "pipeline.yaml") as run:
        await run.until(lambda: all(run.records(sink) >= records for sink, records in sinks.items()))
        run.interrupt()
        ended = await run.ended()
    assert ended.exit_code == 0, ended.err
    assert "account: BALANCED" in ended.out


@pytest.mark.guarantee("I1", "I2")
async def test_a_drained_pipeline_changes_and_each_record_comes_once(
    files: PipelineFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write(
        SOURCE
        + files.function("identity")
        + files.function("identity", vertex="other")
        + files.file_sink("out")
        + files.file_sink("gone"),
        ["in -> map", "in -> other", "map -> out", "other -> out", "map -> gone"],
    )
    give(tmp_path, 0, 300)
    await drained(tmp_path, out=600, gone=300)
    # More partitions, another name, and a sink less.
    files.write(
        SOURCE
        + files.function("identity", more="").replace("  udf", "  partitions: 3\n  udf")
        + files.function("identity", vertex="renamed")
        + files.file_sink("out", more="  partitions: 2\n"),
        ["in -> map", "in -> renamed", "map -> out", "renamed -> out"],
    )
    give(tmp_path, 300, 300)
    # The first run of it is killed while it removes what is not needed any more.
    with monkeypatch.context() as environment:
        environment.setenv(CRASH_AT, "ledger.delete:after")
        killed = await command(tmp_path, "run", "pipeline.yaml")
    assert killed.exit_code == -signal.SIGKILL
    # `other` and its edge were counted before, and are no more.
    await drained(tmp_path, out=600 - 300 + 600)
    assert sorted(files.numbers("out")) == sorted([*range(600), *range(600)])
    assert sorted(files.numbers("gone")) == list(range(300))
    stores = tmp_path / ".millstream" / "p" / "broker" / "store"
    assert [path.name for path in stores.rglob("*") if path.name in ("p-other", "p-gone", "KV_p-other-OT")] == []
    # A name that was used does not come back: what was written under it was counted.
    files.write(
        SOURCE + files.function("identity", vertex="other") + files.file_sink("out"), ["in -> other", "other -> out"]
    )
    back = await command(tmp_path, "run", "pipeline.yaml")
    assert back.exit_code == 2
    assert "a vertex called other was removed earlier" in back.err


async def test_what_waits_keeps_the_pipeline_as_it_was_and_is_named(files: PipelineFiles, tmp_path: Path) -> None:
    held = "- name: held\n  sink: {http: {url: 'http://127.0.0.1:1/'}}\n"
    edges = ["in -> map", "map -> out", "map -> held"]
    path = files.write(SOURCE + files.function("identity") + files.file_sink("out") + held, edges)
    give(tmp_path, 0, 50)
    async with start(tmp_path, "run", "pipeline.yaml", "--quiet") as run:
        await run.until(lambda: run.records("out") >= 50)
        await run.interrupt_twice()
        assert (await run.ended()).exit_code == 130
    before = path.read_text()
    files.write(SOURCE + files.function("identity") + files.file_sink("out"), edges[:2])
    refused = await command(tmp_path, "run", "pipeline.yaml")
    assert refused.exit_code == 2
    assert "vertex held was removed, and 50 records wait on edge map-held" in refused.err
    # As it was it goes on, and takes nothing a second time.
    path.write_text(before.replace("http: {url: 'http://127.0.0.1:1/'}", "http: {url: 'http://127.0.0.1:2/'}"))
    give(tmp_path, 50, 10)
    async with start(tmp_path, "run", "pipeline.yaml", "--quiet") as run:
        await run.until(lambda: run.records("out") >= 60)
        await run.interrupt_twice()
        assert (await run.ended()).exit_code == 130
    assert sorted(files.numbers("out")) == list(range(60))
