"""What `millstream run` says when it cannot: a message that names the cause and what to do, the right exit code."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream import codes
from millstream.limits import MIB
from millstream.ports import free_ports, is_free
from tests.mesh.running import called, command, start
from tests.small_disk import open_small_disk
from tests.support.children import started

if TYPE_CHECKING:
    from tests.mesh.conftest import PipelineFiles


def small(files: PipelineFiles, into: str = "in -> map") -> Path:
    return files.write(files.generator(100) + files.function("identity") + files.file_sink("out"), [into, "map -> out"])


async def ran(*arguments: str) -> bool:
    """Run a program to its end; whether it went well."""
    async with started(*arguments, stderr=asyncio.subprocess.DEVNULL) as process:
        return await process.wait() == 0


def fill(path: Path) -> None:
    """Lengthen a file until the disk is full."""
    with path.open("ab", buffering=0) as file, suppress(OSError):
        for size in (1 << 20, 1 << 12):
            with suppress(OSError):
                while True:
                    file.write(b"x" * size)


async def test_a_typo_and_a_missing_file_are_named_with_their_lines(files: PipelineFiles, tmp_path: Path) -> None:
    path = small(files)
    path.write_text(path.read_text().replace("udf: {python", "udf: {pyton").replace("to: out", "to: outt"))
    ended = await command(tmp_path, "run", "pipeline.yaml")
    assert ended.exit_code == 2
    assert "pipeline.yaml:" in ended.err
    assert "pyton" in ended.err
    assert "`outt`" in ended.err
    assert "Traceback" not in ended.err
    assert not (tmp_path / ".millstream").exists()
    missing = await command(tmp_path, "run", "no.yaml")
    assert missing.exit_code == 2
    assert "no.yaml: there is no such file" in missing.err
    assert codes.NO_SUCH_FILE.id in missing.err


async def test_a_function_that_fails_stops_the_run_and_nothing_is_lost(files: PipelineFiles, tmp_path: Path) -> None:
    path = small(files)
    (tmp_path / "bad.py").write_text("def f(value):\n    raise ValueError('no such column: x')\n")
    path.write_text(path.read_text().replace("functions.py:identity", "bad.py:f"))
    failed = await command(tmp_path, "run", "pipeline.yaml")
    assert failed.exit_code == 3
    assert "no such column: x" in failed.err
    assert failed.err.count("the function failed on record ") == 1, failed.err
    assert "in-0 ended with exit code 3" not in failed.err
    assert "error[MS-3001]: in-0: p/map/in-map.0: " in failed.err, "it was shown when it happened"
    assert failed.err.endswith("`millstream explain MS-3001` says what that means for the data, and what to do\n")
    shown = json.loads((await called(tmp_path, "status", "-o", "json")).out)["failure"]
    assert (shown["process"], shown["code"], shown["exit_code"]) == ("in-0", "MS-3001", 3)
    (audit,) = tmp_path.glob(".millstream/*/audit.jsonl")
    end = [entry for entry in map(json.loads, audit.read_text().splitlines()) if entry["action"] == "end"]
    assert [entry["code"] for entry in end] == ["MS-3001"]
    assert "nothing is lost" in failed.out
    assert "Traceback" not in failed.err.splitlines()[-1]
    path.write_text(path.read_text().replace("bad.py:f", "functions.py:identity"))
    fixed = await command(tmp_path, "run", "pipeline.yaml")
    assert fixed.exit_code == 0, fixed.err
    assert files.numbers("out") == list(range(100))


@pytest.mark.sweep
async def test_a_command_that_ends_at_once_is_the_users_to_fix(files: PipelineFiles, tmp_path: Path) -> None:
    path = small(files)
    path.write_text(path.read_text().replace("{python: 'functions.py:identity'}", "{command: ['false']}"))
    ended = await command(tmp_path, "run", "pipeline.yaml")
    assert ended.exit_code == 3
    assert "in-0 ended with exit code 3" not in ended.err


@pytest.mark.sweep
async def test_a_changed_pipeline_is_refused_unless_it_starts_over(files: PipelineFiles, tmp_path: Path) -> None:
    path = small(files)
    assert (await command(tmp_path, "run", "pipeline.yaml", "--quiet")).exit_code == 0
    path.write_text(path.read_text().replace("name: in\n", "name: first\n").replace("from: in,", "from: first,"))
    refused = await command(tmp_path, "run", "pipeline.yaml")
    assert refused.exit_code == 2
    assert "vertex in was removed: its position would be forgotten" in refused.err
    assert "--fresh" in refused.err
    shutil.rmtree(tmp_path / "out")
    fresh = await command(tmp_path, "run", "pipeline.yaml", "--fresh")
    assert fresh.exit_code == 0, fresh.err
    assert sorted(files.numbers("out")) == list(range(100))


@pytest.mark.sweep
async def test_starting_over_is_refused_before_anything_is_removed_where_sinks_have_files(
    files: PipelineFiles, tmp_path: Path
) -> None:
    small(files)
    assert (await command(tmp_path, "run", "pipeline.yaml", "--quiet")).exit_code == 0
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    refused = await command(tmp_path, "run", "pipeline.yaml", "--fresh")
    assert refused.exit_code == 2
    assert f"{tmp_path / 'out'} contains" in refused.err
    assert "Nothing was removed" in refused.err
    assert "--fresh --move-outputs" in refused.err
    # The run before is still there.
    again = await command(tmp_path, "run", "pipeline.yaml")
    assert again.exit_code == 0, again.err
    assert "nothing was left to process" in again.out
    moved = await command(tmp_path, "run", "pipeline.yaml", "--fresh", "--move-outputs")
    assert moved.exit_code == 0, moved.err
    (aside,) = tmp_path.glob("out.before-*")
    assert f"the files of {tmp_path / 'out'} were moved to {aside}" in moved.err
    assert {tmp_path / "out" / path.relative_to(aside): path.read_bytes() for path in aside.glob("*.jsonl")} == {
        path: data for path, data in before.items() if path.suffix == ".jsonl" and path.parent.name == "out"
    }
    assert sorted(files.numbers("out")) == list(range(100))
    # Without a data directory a run starts over as well.
    shutil.rmtree(tmp_path / ".millstream")
    without = await command(tmp_path, "run", "pipeline.yaml")
    assert (without.exit_code, "--move-outputs" in without.err) == (2, True)


@pytest.mark.sweep
@pytest.mark.guarantee("I1")
async def test_a_file_sink_whose_directory_was_replaced_by_an_empty_one_writes_nothing(
    files: PipelineFiles, tmp_path: Path
) -> None:
    """As on another disk: it does not repeat what is in the former directory, and continues in that one."""
    path = files.write(files.generator(None, rpu=300) + files.file_sink("out"), ["in -> out"])

    async def drained() -> None:
        async with start(tmp_path, "run", path.name) as run:
            await run.until_more("out")
            run.interrupt()
            ended = await run.ended()
        assert ended.exit_code == 0, ended.err

    await drained()
    before = sorted(files.numbers("out"))
    (tmp_path / "out").rename(tmp_path / "other-disk")
    for _ in range(2):
        refused = await command(tmp_path, "run", path.name)
        assert refused.exit_code == 5, refused.err
        assert codes.TARGET_POSITION_LOST.id in refused.err
        assert f"the directory {tmp_path / 'out'}" in refused.err
        assert "mkdir -p " in refused.err
        assert "restart" not in refused.err
        assert not (tmp_path / "out").exists()
    (tmp_path / "other-disk").rename(tmp_path / "out")
    await drained()
    after = sorted(files.numbers("out"))
    assert len(after) > len(before)
    assert after == list(range(len(after)))


@pytest.mark.sweep
async def test_a_run_whose_lock_file_was_removed_is_left_alone(files: PipelineFiles, tmp_path: Path) -> None:
    files.write(
        files.generator(None, rpu=10) + files.function("identity") + files.file_sink("out"), ["in -> map", "map -> out"]
    )
    async with start(tmp_path, "run", "pipeline.yaml") as run:
        await run.until(lambda: run.records("out") > 0)
        pids = await run.all_pids("broker", "in-0", "out-0")
        (run.data / "lock").unlink()
        refused = await command(tmp_path, "run", "pipeline.yaml")
        assert refused.exit_code == 4
        assert f"in use by process {run.process.pid}, whose lock file was removed" in refused.err
        await run.until_more("out")
        assert run.pids() == pids
        modes = {path.name: path.stat().st_mode & 0o777 for path in (run.data, *run.data.iterdir())}
        assert {name: oct(mode) for name, mode in modes.items() if mode & 0o077} == {}


@pytest.mark.sweep
async def test_ports_that_are_taken_are_named_before_anything_is_started(files: PipelineFiles, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        small(files, "in => map")
        # The second process's.
        options = ("--workers", "2", "--metrics-port-base", str(port - 1))
        ended = await command(tmp_path, "run", "pipeline.yaml", *options)
        assert ended.exit_code == 2
        of_second = "the metrics of worker.1 (map-0, out-0)"
        assert f"{of_second} cannot be served on 127.0.0.1:{port}: Address already in use" in ended.err
        assert "--metrics-port-base" in ended.err
        assert not (tmp_path / ".millstream/p/broker").exists()
        files.write(
            f"- name: in\n  partitions: 2\n  source: {{http: {{port: {port - 1}}}}}\n" + files.file_sink("out"),
            ["in -> out"],
        )
        ended = await command(tmp_path, "run", "pipeline.yaml")
    assert ended.exit_code == 2
    assert f"vertex in: the http source cannot listen on 127.0.0.1 port {port}: Address already in use" in ended.err
    assert "`http.port`" in ended.err


@pytest.mark.sweep
async def test_what_fails_again_and_again_is_shown_once(files: PipelineFiles, tmp_path: Path) -> None:
    port = free_ports()
    files.write(f"- name: in\n  source: {{http: {{port: {port}}}}}\n" + files.file_sink("out"), ["in -> out"])
    with socket.socket() as taken:
        async with start(tmp_path, "run", "pipeline.yaml") as run:
            await run.until(lambda: not is_free(port) and "in-0" in run.pids())
            pid = await run.pid("in-0")
            os.kill(pid, signal.SIGKILL)
            # Faster than the process that is started in its place.
            await run.until(lambda: is_free(port))
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", port))
            taken.listen()
            await run.until(lambda: "(the same error again)" in run.err())
            said = run.err()
    assert "warning: in-0: was killed from outside (SIGKILL; was the machine out of memory?); it is" in said
    assert said.count("warning: in-0: ended with exit code 4; it is restarted in") == 2
    assert said.count("cannot listen on") == 1, said


@pytest.mark.sweep
async def test_a_remembered_port_that_is_taken_is_given_up(files: PipelineFiles, tmp_path: Path) -> None:
    small(files)
    assert (await command(tmp_path, "run", "pipeline.yaml", "--quiet")).exit_code == 0
    runtime = tmp_path / ".millstream/p/runtime.json"
    port = json.loads(runtime.read_text())["broker_port"]
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        ended = await command(tmp_path, "run", "pipeline.yaml")
    assert ended.exit_code == 0, ended.err
    assert json.loads(runtime.read_text())["broker_port"] != port


async def test_a_directory_that_cannot_be_used_is_named(files: PipelineFiles, tmp_path: Path) -> None:
    small(files)
    (tmp_path / "file").write_text("")
    ended = await command(tmp_path, "run", "pipeline.yaml", "--data-dir", "file/data")
    assert ended.exit_code == 4
    assert "cannot use the data directory" in ended.err
    assert "Traceback" not in ended.err


async def test_a_store_the_broker_cannot_open_is_named(files: PipelineFiles, tmp_path: Path) -> None:
    small(files)
    (tmp_path / "data/broker").mkdir(parents=True)
    (tmp_path / "data/broker/store").write_text("not a directory")
    ended = await command(tmp_path, "run", "pipeline.yaml", "--data-dir", "data")
    assert ended.exit_code == 4
    assert "data/broker" in ended.err


@pytest.mark.sweep
@pytest.mark.guarantee("I1", "I9")
async def test_a_full_disk_stops_nothing_for_good(files: PipelineFiles, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0 or not await ran("mount", "-t", "tmpfs", "-o", "size=512m", "tmpfs", str(disk)):
        pytest.skip("a disk of its own cannot be mounted here")
    try:
        files.write(
            files.generator(None, msgSize=1000, rpu=5000) + files.function("identity") + files.file_sink("out"),
            ["in -> map", "map -> out"],
            more="limits: {bufferMaxBytes: 16Mi, bufferMaxLength: 4000}",
        )
        async with start(tmp_path, "run", "pipeline.yaml", "--data-dir", "disk/data", data="disk/data") as run:
            await run.until(lambda: run.records("out") > 0)

            # What is consumed is removed, and its room is taken again, until something cannot be stored.
            def keep_full() -> bool:
                fill(disk / "filler")
                # Where the broker cannot stage a commit it refuses it; where it cannot write one it stores nothing
                # more, and may not answer.
                return "records that cannot be stored wait" in run.err() and bool(
                    re.search(r"commit delayed|the broker failed to write|broker has not answered", run.err())
                )

            await run.until(keep_full)
            (disk / "filler").unlink()
            await run.until(lambda: "there is space again" in run.err())
            await run.until_more("out")
            run.interrupt()
            ended = await run.ended()
        assert ended.exit_code == 0, ended.err
        assert "nothing is lost; free some space, and the run continues" in ended.err
        assert "account: BALANCED" in ended.out
        assert files.numbers("out") == list(range(run.records("in")))
    finally:
        assert await ran("umount", "--lazy", str(disk))


async def test_a_disk_that_cannot_hold_the_buffers_is_refused_before_anything_runs(
    files: PipelineFiles, tmp_path: Path
) -> None:
    files.write(files.generator(1000) + files.file_sink("out"), ["in -> out"])
    with open_small_disk(tmp_path / "disk", 200 * MIB):
        refused = await command(tmp_path, "run", "pipeline.yaml", "--data-dir", "disk/data")
        assert refused.exit_code == 4
        assert re.search(r"reserve \d+ MiB, of which vertex in \d+ MiB, .* has 200 MiB free", refused.err)
        assert not (tmp_path / "disk/data/broker").exists()
        text = (tmp_path / "pipeline.yaml").read_text()
        (tmp_path / "pipeline.yaml").write_text(f"{text}  limits: {{bufferMaxBytes: 16Mi}}\n")
        ended = await command(tmp_path, "run", "pipeline.yaml", "--data-dir", "disk/data")
    assert ended.exit_code == 0, ended.err
    assert files.numbers("out") == list(range(1000))


async def test_a_broken_option_and_a_defect_have_their_codes(tmp_path: Path) -> None:
    assert (await command(tmp_path, "run")).exit_code == 2
    assert (await called(tmp_path, "status")).exit_code == 2
    assert (await called(tmp_path, "peek", "in-map")).exit_code == 2
