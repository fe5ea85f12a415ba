"""Files: what a run keeps is its owner's alone, whatever the umask, and no link leads it to what is not its own."""

from __future__ import annotations

import os
import resource
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.errors import InfrastructureError
from millstream.files import append_private, own_directory, write_private
from millstream.udf.socket_directory import open_socket_directory, remove_abandoned
from millstream_runner.local.directory import DataDirectory, held
from tests.mesh.conftest import PipelineFiles
from tests.mesh.running import command
from tests.security.conftest import NOBODY, Stranger

LINKS = ("logs/runner.jsonl", "logs/in-0.jsonl", "broker/nats.conf", "runtime.json.tmp", "status.json.tmp")
"""Files of a run that are written, or written again, without being looked at before."""


LOOKING = """
import json, os, pathlib, stat

def look(value):
    files = [path for path in pathlib.Path("data").rglob("*") if stat.S_ISREG(path.lstat().st_mode)]
    parents = {int(pid): int(of(pid, "PPid:")[0]) for pid in os.listdir("/proc") if pid.isdigit()}
    runner = parents[parents[os.getpid()]]
    pids = [runner, os.getpid(), *(pid for pid, parent in parents.items() if parent == runner)]
    texts = {pid: pathlib.Path(f"/proc/{pid}/limits").read_text() for pid in pids}
    limits = {pid: text.split("Max core file size")[1].split()[:2] for pid, text in texts.items()}
    wide = [str(path) for path in files if path.lstat().st_mode & 0o077]
    return json.dumps({"files": list(map(str, files)), "wide": wide, "cores": limits})

def of(pid, name):
    try:
        lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return ["0"]
    return next((line.split()[1:] for line in lines if line.startswith(name)), ["0"])
"""


@pytest.fixture
def core_files() -> Iterator[None]:
    """The shell has allowed core files of any size."""
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, before)


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def victim(open_folder: Path) -> Path:
    """A file that a link leads to."""
    path = open_folder / "victim"
    path.write_text("precious")
    return path


def modes(root: Path) -> dict[str, int]:
    """The rights of everything in a directory, other than those of sockets and links."""
    found = {}
    for path in (root, *root.rglob("*")):
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode) or stat.S_ISREG(mode):
            found[str(path.relative_to(root))] = stat.S_IMODE(mode)
    return found


def old(path: Path) -> None:
    """Make it look as if nothing had happened to it for a while."""
    long_ago = time.time() - 3600
    os.utime(path, (long_ago, long_ago), follow_symlinks=False)


@pytest.mark.guarantee("I16")
@pytest.mark.parametrize("umask", [0], indirect=True)
async def test_a_run_leaves_nothing_that_a_stranger_can_read_and_follows_no_link(
    stranger: Stranger, open_folder: Path, victim: Path, umask: int, core_files: None
) -> None:
    files = PipelineFiles(open_folder)
    (open_folder / "functions.py").write_text(LOOKING)
    files.write(files.generator(50) + files.function("look") + files.file_sink("out"), ["in -> map", "map -> out"])
    # A data directory that an earlier version made, or a user, open to all.
    data = open_folder / "data"
    for made in (data, data / "logs", data / "broker"):
        made.mkdir()
        made.chmod(0o755)
    for name in LINKS:
        (data / name).symlink_to(victim)

    ended = await command(open_folder, "run", "pipeline.yaml", "--data-dir", "data", "--quiet")

    assert ended.exit_code == 0, ended.err
    assert victim.read_text() == "precious"
    wide = {name: oct(mode) for name, mode in modes(data).items() if mode & 0o077 and name != "."}
    assert not wide
    # Some files, such as one of the broker with its ports, are there only during the run.
    (seen, *_) = files.rows("out")
    assert seen["wide"] == []
    assert len(seen["files"]) > 5
    # The memory of a process holds records and keys: function, worker, runner, broker.
    assert len(seen["cores"]) >= 4
    assert set(map(tuple, seen["cores"].values())) <= {("0", "0"), ("1", "1")}
    program = """
found = [str(path) for path in pathlib.Path(sys.argv[1]).rglob("*") if path.is_file() and os.access(path, os.R_OK)]
print(found)
"""
    done = stranger.run(program, data)
    assert done.stdout.strip() == "[]", (done.stdout, done.stderr)
    # Results are the user's, with the user's umask.
    (result,) = (open_folder / "out").glob("*.jsonl")
    assert stat.S_IMODE(result.stat().st_mode) == 0o666 & ~umask


def test_a_link_in_place_of_the_lock_is_refused(open_folder: Path, victim: Path) -> None:
    (open_folder / "lock").symlink_to(victim)

    with pytest.raises(InfrastructureError, match="symbolic links"), held(open_folder):
        pass
    assert victim.read_text() == "precious"


def test_a_part_of_the_data_directory_that_is_somebody_elses_is_refused(stranger: Stranger, open_folder: Path) -> None:
    theirs = open_folder / "data" / "broker"
    theirs.mkdir(parents=True)
    os.chown(theirs, stranger.user, stranger.user)

    with (
        held(open_folder / "data") as directory,
        pytest.raises(InfrastructureError, match=f"another user .id {NOBODY}"),
    ):
        directory.make()
    theirs.rmdir()
    theirs.symlink_to(open_folder)
    os.lchown(theirs, stranger.user, stranger.user)
    with held(open_folder / "data") as directory, pytest.raises(InfrastructureError, match="another user"):
        directory.make()


@pytest.mark.guarantee("I16")
def test_the_clean_up_of_sockets_leaves_alone_what_a_stranger_has_planted(
    stranger: Stranger, open_folder: Path, victim: Path
) -> None:
    base = open_folder / "tmp"
    base.mkdir()
    base.chmod(0o777)
    precious = open_folder / "directory"
    precious.mkdir()
    (precious / "owner").write_text("precious")
    planting = """
os.symlink(sys.argv[2], sys.argv[1] + "/millstream-udf-link")
os.mkdir(sys.argv[1] + "/millstream-udf-theirs")
os.symlink(sys.argv[3], sys.argv[1] + "/millstream-udf-theirs/owner")
"""
    done = stranger.run(planting, base, precious, victim)
    assert done.returncode == 0, done.stderr
    ours = base / "millstream-udf-ours"
    ours.mkdir()
    (ours / "owner").symlink_to(victim)
    abandoned = base / "millstream-udf-abandoned"
    abandoned.mkdir()
    for path in base.iterdir():
        old(path)

    remove_abandoned(base)

    assert (precious / "owner").read_text() == victim.read_text() == "precious"
    assert {path.name for path in base.iterdir()} == {f"millstream-udf-{name}" for name in ("link", "theirs", "ours")}


def test_a_socket_directory_is_for_its_owner_alone(
    stranger: Stranger, open_folder: Path, umask: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = open_folder / "tmp"
    base.mkdir()
    base.chmod(0o777)
    monkeypatch.setattr("tempfile.tempdir", str(base))

    with open_socket_directory() as directory:
        assert modes(directory.parent) == {".": 0o700, "owner": 0o600, "s": 0o700}
        # Even if a function opens its own directory to all users.
        directory.chmod(0o777)
        done = stranger.run("print(os.listdir(sys.argv[1]))", directory)
    assert "PermissionError" in done.stderr


@pytest.mark.guarantee("I16")
def test_files_of_ours_are_not_opened_through_links_nor_taken_from_others(
    stranger: Stranger, open_folder: Path, victim: Path
) -> None:
    link = open_folder / "link"
    link.symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"), append_private(link):
        pass
    write_private(link, "new")
    assert (link.is_symlink(), link.read_text(), victim.read_text()) == (False, "new", "precious")

    theirs = open_folder / "theirs"
    theirs.write_text("")
    os.chown(theirs, stranger.user, stranger.user)
    with pytest.raises(PermissionError, match="not a file of this user"), append_private(theirs):
        pass
    os.mkfifo(open_folder / "pipe")
    pipe = open_folder / "pipe"
    with pytest.raises(OSError, match=r"not a file of this user|No such device"), append_private(pipe):
        pass


def test_a_directory_that_the_user_has_put_elsewhere_may_stay_there(open_folder: Path) -> None:
    elsewhere = open_folder / "large-disk"
    elsewhere.mkdir(mode=0o755)
    root = open_folder / "data"
    root.mkdir()
    (root / "broker").symlink_to(elsewhere)

    own_directory(root / "broker")
    DataDirectory(root).make()

    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o700
