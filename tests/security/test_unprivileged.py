"""A whole run by a user without any rights: functions in the strict sandbox, windows on Spark, files."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.sandbox import refusal
from tests.mesh.conftest import PipelineFiles
from tests.security.conftest import NOBODY, Stranger
from tests.small_disk import give_up

RECORDS = 1000


@pytest.fixture
def own_folder(stranger: Stranger) -> Iterator[Path]:
    """A directory that belongs to the user without rights; removed after the test."""
    with tempfile.TemporaryDirectory(prefix="millstream-unprivileged-") as folder:
        os.chown(folder, stranger.user, stranger.user)
        yield Path(folder)


def closed_parents(path: Path) -> list[Path]:
    """Directories on the way to `path` that others may not pass, the outermost first."""
    return [parent for parent in reversed(path.parents) if not parent.stat().st_mode & 0o001]


def run_as_nobody(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`millstream` as the user who owns nothing.

    In a mount namespace of its own, where Python and this checkout can be reached: they may be below root's home.
    """
    needed = {Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), Path(__file__).resolve().parents[2]}
    lines = ["set -e"]
    for number, path in enumerate(sorted(needed)):
        if parents := closed_parents(path):
            # Its parent is covered by an empty directory that all may pass, in which it is put back.
            held, parent = shlex.quote(f"{directory}/held-{number}"), shlex.quote(str(parents[0]))
            lines += [
                f"mkdir {held}",
                f"mount --bind {shlex.quote(str(path))} {held}",
                f"mountpoint -q {parent} || mount -t tmpfs -o mode=755 none {parent}",
                f"mkdir -p {shlex.quote(str(path))}",
                f"mount --bind {held} {shlex.quote(str(path))}",
            ]
    environment = {"PATH": os.defpath, "HOME": f"{directory}/home", "PYTHONDONTWRITEBYTECODE": "1"}
    program = [
        *("setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"),
        *("env", "-i", *(f"{name}={value}" for name, value in environment.items())),
        *(sys.executable, "-m", "millstream_runner", *arguments),
    ]
    lines += [f"cd {shlex.quote(str(directory / 'work'))}", f"exec {shlex.join(program)}"]
    return subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize("reduces", [False, pytest.param(True, marks=pytest.mark.sweep)])
def test_a_run_needs_no_rights(own_folder: Path, *, reduces: bool) -> None:
    refused = refusal(strict=True, network=False, limits=frozenset())
    if refused is not None:
        give_up(f"there is no sandbox here: {refused}")
    work = own_folder / "work"
    work.mkdir()
    files = PipelineFiles(work)
    query = "SELECT window_start AS at, count(*) AS records FROM window GROUP BY window_start"
    sums = f"- name: sums\n  udf: {{groupBy: {{window: {{fixed: {{length: 1h}}}}}}, sql: {{query: '{query}'}}}}\n"
    files.write(
        files.generator(RECORDS)
        + files.function("identity", more=", sandbox: strict")
        + (sums + files.file_sink("counted") if reduces else "")
        + files.file_sink("out"),
        ["in -> map", "map -> out", *(("map -> sums", "sums -> counted") if reduces else ())],
    )
    for path in (work, *work.rglob("*")):
        os.chown(path, NOBODY, NOBODY)

    ended = run_as_nobody(own_folder, "run", "pipeline.yaml", "--quiet")

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert sorted(files.numbers("out")) == list(range(RECORDS))
    if reduces:
        assert sum(row["records"] for row in files.rows("counted")) == RECORDS
    assert (work / "out").stat().st_uid == NOBODY
