"""Pipelines that change between two runs: what was drained goes on as something else, what waits is named."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.durable import CRASH_AT
from tests.mesh.running import command, start
from tests.support.sizes import sized

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
    # A dry run says what the change requires, and changes nothing.
    (data,) = (tmp_path / ".millstream").iterdir()
    before = {path: path.read_bytes() for path in data.glob("*.json")}
    dry = await command(tmp_path, "run", "pipeline.yaml", "--dry-run")
    assert dry.exit_code == 0, dry.err
    said = dry.out.splitlines()
    assert said[: said.index("")] == [
        "drain    vertex map had 1 partition and now has 3",
        "drain    vertex other was removed",
        "drain    vertex out had 1 partition and now has 2",
        "drain    vertex gone was removed",
        "restart  vertex renamed is new",
        "restart  edge in-renamed is new",
        "restart  edge renamed-out is new",
    ]
    assert {path: path.read_bytes() for path in data.glob("*.json")} == before
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
    dry = await command(tmp_path, "run", "pipeline.yaml", "--dry-run", "-o", "json")
    assert dry.exit_code == 2
    refused = [one["what"] for one in json.loads(dry.out)["differences"] if one["effect"] == "refused"]
    assert any("a vertex called other was removed earlier" in what for what in refused)


@pytest.mark.sweep
@pytest.mark.guarantee("I1", "I2")
@pytest.mark.parametrize(
    ("into", "ledger"),
    [
        pytest.param("in => map", "map", id="buffer"),
        pytest.param("in -> map", "in", id="chain", marks=pytest.mark.sweep),
    ],
)
async def test_edges_that_share_a_copy_part_where_nothing_waits(
    files: PipelineFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, into: str, ledger: str
) -> None:
    tagging = (
        "import json\nfrom millstream_udf import Message\n\n\ndef tag(value: bytes) -> Message:\n"
        '    return Message(value, tags=["odd"] if json.loads(value)["number"] % 2 else [])\n'
    )
    (tmp_path / "tagging.py").write_text(tagging, encoding="utf-8")
    vertices = SOURCE + "- name: map\n  udf: {python: 'tagging.py:tag'}\n" + "".join(map(files.file_sink, "abc"))
    edges = [into, "map -> a", "map -> b", "map -> c"]
    odd = "{from: map, to: b, conditions: {tags: {values: [odd]}}}"
    files.write(vertices, edges)
    give(tmp_path, 0, 100)
    await drained(tmp_path, a=100, b=100, c=100)
    files.write(vertices, [*edges[:2], odd, edges[3]])
    give(tmp_path, 100, 100)
    # The first runs of it are killed in the middle of the change.
    points = ("ledger.take_over:after@b", f"ledger.leave:before@{ledger}", f"ledger.leave:after@{ledger}")
    for point in points[-sized(1, len(points)) :]:
        with monkeypatch.context() as environment:
            environment.setenv(CRASH_AT, point)
            assert (await command(tmp_path, "run", "pipeline.yaml")).exit_code == -signal.SIGKILL, point
    await drained(tmp_path, a=200, b=150, c=200)
    # What has parted stays apart, and c gets a second partition, which is another change.
    files.write(vertices.replace("- name: c\n", "- name: c\n  partitions: 2\n"), edges)
    give(tmp_path, 200, 100)
    await drained(tmp_path, a=300, b=250, c=300)
    assert sorted(files.numbers("a")) == sorted(files.numbers("c")) == list(range(300))
    assert sorted(files.numbers("b")) == [n for n in range(300) if n < 100 or n >= 200 or n % 2]


@pytest.mark.sweep
async def test_edges_that_share_a_copy_do_not_part_while_records_wait(files: PipelineFiles, tmp_path: Path) -> None:
    held = "- name: held\n  sink: {http: {url: 'http://127.0.0.1:1/'}}\n"
    vertices = SOURCE + files.function("identity") + files.file_sink("out") + held
    path = files.write(vertices, ["in -> map", "map -> out", "map -> held"])
    give(tmp_path, 0, 50)
    async with start(tmp_path, "run", "pipeline.yaml", "--quiet") as run:
        await run.until(lambda: run.records("out") >= 50)
        await run.interrupt_twice()
        assert (await run.ended()).exit_code == 130
    before = path.read_text()
    files.write(vertices, ["in -> map", "map -> out", "{from: map, to: held, onFull: discardLatest}"])
    refused = await command(tmp_path, "run", "pipeline.yaml")
    assert refused.exit_code == 2
    assert "the records of edge map-held are stored together with those of other edges" in refused.err
    path.write_text(before)
    give(tmp_path, 50, 10)
    async with start(tmp_path, "run", "pipeline.yaml", "--quiet") as run:
        await run.until(lambda: run.records("out") >= 60)
        await run.interrupt_twice()
        assert (await run.ended()).exit_code == 130
    assert sorted(files.numbers("out")) == list(range(60))


@pytest.mark.sweep
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
