"""The audit: who did what to a pipeline, in a file that is its owner's alone and is written before anything is done."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from millstream import audit as audit_file
from millstream.buffers.jetstream.server import open_nats_server
from millstream.errors import InfrastructureError
from millstream.spec.loading import load
from millstream_runner.local import audit
from millstream_runner.local.directory import DataDirectory
from tests.mesh.conftest import PipelineFiles
from tests.mesh.running import called, command, start
from tests.security.conftest import Stranger
from tests.small_disk import open_small_disk
from tests.support.children import started, together


def noted(root: Path) -> list[dict[str, Any]]:
    return list(audit_file.read_entries(DataDirectory(root).audit))


async def test_every_command_that_looks_in_or_changes_something_is_written_down(
    open_folder: Path, stranger: Stranger
) -> None:
    files = PipelineFiles(open_folder)
    files.write(
        files.generator(None, rpu=8000) + files.function("identity") + files.file_sink("out"),
        ["in => map", "map -> out"],
        more="limits: {bufferMaxLength: 4000}",
    )
    data = open_folder / ".millstream" / "p"

    async def drained(*options: str) -> None:
        async with start(open_folder, "run", "pipeline.yaml", *options) as run:
            await run.until_more("out")
            run.interrupt()
            assert (await run.ended()).exit_code == 0

    await drained()
    (open_folder / "none.jsonl").write_text("")
    for arguments in (
        ("peek", "in-map"),
        ("peek", "in-map", "--partition", "3"),
        ("deadletters", "replay", "none.jsonl"),
        ("repair", "pipeline.yaml"),
        ("repair", "pipeline.yaml", "--accept-loss"),
    ):
        await called(open_folder, *arguments)
    await drained("--fresh", "--move-outputs", "--quiet")

    found = noted(data)

    actions = [entry["action"] for entry in found]
    assert actions == ["start", "drain", "end", "peek", "replay", "repair", "repair", "start", "drain", "end"]
    first = found[0]
    user = pwd.getpwuid(os.getuid())
    assert (first["user"]["id"], first["user"]["name"]) == (user.pw_uid, user.pw_name)
    assert first["command"][1:] == ["run", "pipeline.yaml"]
    assert first["process"] == found[2]["process"] != found[3]["process"]
    assert first["time"] < found[-1]["time"]
    # One pipeline file, one digest, independent of the user.
    assert {(entry["pipeline"], entry["spec"]) for entry in found} == {("p", first["spec"])}
    assert (found[2]["exit_code"], found[3]["edge"], found[6]["accept_loss"]) == (0, "in-map", True)
    assert (first["fresh"], found[-3]["fresh"]) == (False, True)
    assert stat.S_IMODE((data / "audit.jsonl").stat().st_mode) == 0o600
    assert stranger.reads(data / "audit.jsonl") is None
    shown = await called(open_folder, "audit")
    assert shown.exit_code == 0, shown.err
    assert [line.split()[1] for line in shown.out.splitlines()] == actions
    as_json = await called(open_folder, "audit", "-o", "json")
    assert [json.loads(line) for line in as_json.out.splitlines()] == found


async def test_what_cannot_be_written_down_is_not_done(open_folder: Path) -> None:
    files = PipelineFiles(open_folder)
    files.write(files.generator(5) + files.file_sink("out"), ["in -> out"])
    data = open_folder / ".millstream" / "p"
    data.mkdir(parents=True)
    elsewhere = open_folder / "elsewhere"
    elsewhere.write_text("precious")
    (data / "audit.jsonl").symlink_to(elsewhere)

    ended = await command(open_folder, "run", "pipeline.yaml")

    assert ended.exit_code == 4
    assert "the audit file" in ended.err
    assert "without an entry nothing is done" in ended.err
    assert elsewhere.read_text() == "precious"
    assert not (data / "broker").exists()
    assert not (open_folder / "out").exists()


def test_a_full_disk_leaves_whole_entries(tmp_path: Path) -> None:
    with open_small_disk(tmp_path / "disk", 1 << 20) as disk:
        directory = DataDirectory(disk)
        audit.note(directory, "start")
        with pytest.raises(OSError, match="No space"):
            (disk / "ballast").write_bytes(bytes(1 << 20))
        refused = 0
        for _ in range(100):
            try:
                audit.note(directory, "peek")
            except InfrastructureError:
                refused += 1
        assert refused
        (disk / "ballast").unlink()
        audit.note(directory, "end")

        found = noted(disk)
        assert [found[0]["action"], found[-1]["action"]] == ["start", "end"]
        # No half of an entry is left: what was refused is not there, what was not is.
        assert len((disk / "audit.jsonl").read_text().splitlines()) == len(found) == 102 - refused


def test_it_is_bounded_and_keeps_one_older_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_file, "AUDIT_BYTES_MAX", 4000)
    directory = DataDirectory(tmp_path)
    for number in range(50):
        audit.note(directory, "peek", number=number)

    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(sizes) == {"audit.jsonl", "audit.jsonl.1"}
    assert max(sizes.values()) <= 4000
    numbers = [entry["number"] for entry in noted(tmp_path)]
    assert numbers == list(range(numbers[0], 50))


async def test_processes_write_at_once_without_losing_an_entry(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nimport millstream.audit\nfrom millstream_runner.local import audit\n"
        "from millstream_runner.local.directory import DataDirectory\nmillstream.audit.AUDIT_BYTES_MAX = 60_000\n"
        "for number in range(50):\n    audit.note(DataDirectory(Path(sys.argv[1])), 'peek', of=sys.argv[2])\n"
    )

    async def write(number: int) -> int:
        async with started(sys.executable, "-c", program, tmp_path, str(number)) as writer:
            return await writer.wait()

    async with asyncio.timeout(60):
        assert await together(*map(write, range(3))) == [0, 0, 0]
    assert len(noted(tmp_path)) == 150


def test_no_password_of_an_address_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["millstream", "peek", "--broker", "nats://ada:secret@host:4222"])
    audit.note(DataDirectory(tmp_path), "peek")

    text = (tmp_path / "audit.jsonl").read_text()
    assert "secret" not in text
    assert "nats://***@host:4222" in text


@pytest.mark.sweep
async def test_a_change_of_the_pipeline_is_written_down_with_both_specs(tmp_path: Path) -> None:
    files = PipelineFiles(tmp_path)
    two = files.generator(5) + files.file_sink("out")
    files.write(two + files.file_sink("more"), ["in -> out", "in -> more"])
    assert (await command(tmp_path, "run", "pipeline.yaml", "--quiet")).exit_code == 0
    files.write(two, ["in -> out"])
    ended = await command(tmp_path, "run", "pipeline.yaml", "--quiet")
    assert ended.exit_code == 0, ended.err

    found = noted(tmp_path / ".millstream" / "p")

    assert [entry["action"] for entry in found] == ["start", "end", "start", "change", "end"]
    first, change = found[0], found[3]
    assert change["leaving"] == ["more"]
    assert (change["former_spec"], change["spec"]) == (first["spec"], found[4]["spec"])
    assert change["spec"] != first["spec"]


@pytest.mark.sweep
async def test_what_is_done_over_another_broker_is_written_down_for_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    files = PipelineFiles(tmp_path)
    file = files.write(files.generator(5) + files.file_sink("out"), ["in -> out"])
    digest = audit.pipeline_of(load(file))["spec"]
    async with open_nats_server(tmp_path / "broker") as server:
        place = ("--broker", server.url, "--broker-access", str(server.access_file))
        prepared = await command(tmp_path, "broker", "prepare", "pipeline.yaml", *place)
        assert prepared.exit_code == 0, prepared.err
        vertices = tmp_path / "vertices.jsonl"
        compiled = await command(tmp_path, "compile", "pipeline.yaml", "--to", "pipeline.json")
        assert compiled.exit_code == 0, compiled.err
        by_hand = [sys.executable, "-m", "millstream_worker", "--pipeline", "pipeline.json", "--vertex", "in", *place]
        environment = {**os.environ, "MILLSTREAM_AUDIT": str(vertices)}
        async with started(*by_hand, cwd=tmp_path, env=environment, stderr=subprocess.PIPE) as vertex_process:
            _, told = await asyncio.wait_for(vertex_process.communicate(), 60)
            assert vertex_process.returncode == 0, told
        peeked = await command(tmp_path, "peek", "in-out", "--file", "pipeline.yaml", *place)
        assert peeked.exit_code == 0, peeked.err
        # What cannot be written down is not done.
        monkeypatch.setenv("MILLSTREAM_AUDIT", str(tmp_path))
        refused = await command(tmp_path, "peek", "in-out", "--file", "pipeline.yaml", *place)
        assert (refused.exit_code, refused.out) == (4, "")
        monkeypatch.delenv("MILLSTREAM_AUDIT")

    own = tmp_path / "state" / "millstream" / "audit.jsonl"
    found = list(audit_file.read_entries(own))
    assert [entry["action"] for entry in found] == ["prepare", "peek"]
    (vertex,) = audit_file.read_entries(vertices)
    assert (vertex["action"], vertex["replica"]) == ("vertex", "in-0")
    for entry in (*found, vertex):
        assert (entry["pipeline"], entry["spec"], entry["user"]["id"]) == ("p", digest, os.getuid())
        assert (entry["broker"], entry["access"]) == (server.url.removeprefix("nats://"), "user millstream")
    assert f"spec {digest}".encode() in told
    assert stat.S_IMODE(own.stat().st_mode) == 0o600
    shown = await command(tmp_path, "audit", "--elsewhere")
    assert [line.split()[1] for line in shown.out.splitlines()] == ["prepare", "peek"]


def test_where_nothing_is_writable_entries_go_to_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MILLSTREAM_AUDIT", "-")
    monkeypatch.setenv("HOME", "/proc")
    files = PipelineFiles(tmp_path)
    file = files.write(files.generator(5) + files.file_sink("out"), ["in -> out"])

    audit.note_elsewhere(load(file), "prepare")

    (line,) = capfd.readouterr().err.splitlines()
    assert (json.loads(line)["action"], json.loads(line)["pipeline"]) == ("prepare", "p")
