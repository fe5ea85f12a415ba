"""How a function is confined: its limits, what it sees of the machine, and whether this system supports that.

Above it: the sidecar supervisor, and the checks of a pipeline file. Below it: `millstream.confine`, which confines a
process before its command runs.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from millstream import codes, confine
from millstream.errors import UserError
from millstream.files import make_private_directories

NOT_HELD = confine.NOT_HELD
"""Exit code of a process that could not be confined."""
SCRATCH = "/tmp"  # the sandbox has one of its own
_PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
# Only those files of /etc that programs look up: a function must not read everything there that its user or root can.
_LOOKED_UP = (
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/nsswitch.conf"),
    *("/etc/passwd", "/etc/group", "/etc/hosts", "/etc/host.conf", "/etc/gai.conf", "/etc/resolv.conf"),
    *("/etc/services", "/etc/protocols", "/etc/localtime", "/etc/timezone", "/etc/os-release", "/etc/mime.types"),
    *("/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/pki/tls/certs", "/etc/pki/ca-trust", "/etc/fonts"),
    *("/sys/devices/system", "/sys/fs/cgroup", "/sys/kernel/mm/transparent_hugepage"),
)
DATA_DIRECTORIES = ".millstream"
"""The directory for data directories that the user has not named. It is created where a pipeline is started."""
_CHECK_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Confinement:
    """The limits of a function, and what it can see."""

    limits: Mapping[str, int] = field(default_factory=dict)
    """`memory` (bytes of data per process), `processes`, `files`, `cpu` (processors). A missing one is not limited."""
    strict: bool = False
    """The function runs in a sandbox."""
    network: bool = False
    """The sandbox has the host's network."""
    readable: tuple[Path, ...] = ()
    """Files and directories that a sandbox shows in addition to code and programs."""
    hidden: tuple[Path, ...] = ()
    """Files and directories that are empty in a sandbox, even inside those that it shows."""

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that have another value inside."""
        return {"HOME": SCRATCH, "TMPDIR": SCRATCH} if self.strict else {}


def confined(
    command: Sequence[str],
    held: Confinement,
    *,
    cwd: Path,
    sockets: Path,
    search: str = os.defpath,
    check: bool = False,
) -> list[str]:
    """The command line that runs `command` confined, so that it dies with the calling process.

    Args:
        command: Program and arguments.
        held: The confinement.
        cwd: The working directory; a sandbox shows it.
        sockets: The directory of its sockets, which is empty. A sandbox has one of its own in memory, and this path
            leads there while the command runs. Then it is a directory with the files that the command has left there.
            The directory above it must contain nothing that a sandbox shows.
        search: The search path for programs (PATH).
        check: Do everything except run the command, and exit with code 0.

    Raises `UserError` if a sandbox would show the user's home directory.
    """
    settings: dict[str, object] = {}
    if held.strict and holds_home(cwd):
        raise UserError(
            codes.SANDBOX_IMPOSSIBLE,
            f"a sandbox would show its function {cwd}, which holds your home directory: give it a `workingDir` with "
            "nothing but code in it",
        )
    if held.strict or held.limits:
        settings = {"limits": dict(held.limits), "strict": held.strict, "check": check}
    if held.strict:
        shown = [*_LOOKED_UP, *map(str, _of_program(command[0], cwd, search)), str(cwd), *map(str, held.readable)]
        if command[0] == sys.executable:
            shown += _of_this_python()
        settings |= {
            "network": held.network,
            "sockets": str(Path(os.path.realpath(sockets.parent)) / sockets.name),
            "cwd": os.path.realpath(cwd),
            "links": [(path, os.readlink(path)) for path in _PROGRAMS if os.path.islink(path)],
            "read": _mounts([*(path for path in _PROGRAMS if not os.path.islink(path)), *shown]),
            "hidden": sorted({os.path.realpath(path) for path in held.hidden}),
        }
    start = (sys.executable, "-I", "-S", "-c", confine.START, str(Path(confine.__file__).parent))
    return [*start, str(os.getpid()), json.dumps(settings), "--", *command]


def holds_home(directory: Path) -> bool:
    """Whether a directory is the user's home or above it: if a sandbox showed it, it would show everything."""
    found = Path(os.path.realpath(directory))
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        # A user without an entry and without HOME has no home directory; but the root directory is not allowed either.
        return found == Path(found.anchor)
    return found in (Path(os.path.realpath(home)), *Path(os.path.realpath(home)).parents)


@functools.cache
def refusal(*, strict: bool, network: bool, limits: frozenset[str]) -> str | None:
    """Why this system cannot apply this confinement; None if it can. Tries it with a command that does nothing."""
    with tempfile.TemporaryDirectory(prefix="millstream-check-") as directory:
        place, sockets = Path(directory), Path(directory) / "private" / "sockets"
        make_private_directories(sockets)
        # Any value that does not get in the way: it only matters whether the kernel takes it.
        values = {"memory": 1 << 40, "processes": 1 << 14, "files": 256, "cpu": 1}
        held = Confinement({name: values[name] for name in limits}, strict, network)
        command = confined([sys.executable], held, cwd=place, sockets=sockets, check=True)
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as trial:
            assert trial.stdout is not None
            try:
                # A sandbox waits until its sockets were looked for.
                if strict and trial.stdout.readline():
                    os.listdir(sockets)
                _, error = trial.communicate(timeout=_CHECK_TIMEOUT_S)
            except OSError as unreachable:
                trial.kill()
                return f"its sockets cannot be reached: {unreachable}"
            except subprocess.TimeoutExpired:
                trial.kill()
                return f"it was not tried to the end within {_CHECK_TIMEOUT_S:g} s"
    message = error.decode(errors="replace").strip()
    return None if trial.returncode == 0 else message or f"the trial ended with code {trial.returncode}"


def _of_program(program: str, cwd: Path, search: str) -> Iterator[Path]:
    """Where a program is: for `<prefix>/bin/program` the prefix. For a link, also where its target is."""
    found = str(cwd / program) if os.sep in program else shutil.which(program, path=search)
    while found is not None:
        path = Path(found)
        prefix = path.parent.parent
        yield prefix if path.parent.name == "bin" and not holds_home(prefix) else path
        found = str(path.parent / os.readlink(path)) if path.is_symlink() else None


def _of_this_python() -> Iterator[str]:
    """The places that our own interpreter imports from."""
    here = os.path.realpath(os.getcwd())
    for place in (sys.prefix, sys.base_prefix, *sys.path):
        # The directory where the vertex was started does not contain libraries.
        if place and os.path.realpath(place) != here and not holds_home(Path(place)):
            yield place


def _mounts(paths: Sequence[str]) -> list[tuple[str, str]]:
    """What a sandbox shows, as (source, place), outer directories first. A path that is a link, or leads through one,
    is shown under both names."""
    shown: set[tuple[str, str]] = set()
    for path in paths:
        real = os.path.realpath(path)
        if os.path.exists(real):
            shown |= {(real, place) for place in (real, os.path.abspath(path)) if not _is_below(place, _PROGRAMS)}
    places = {place for source, place in shown if source == place}
    return sorted(
        (pair for pair in shown if pair[0] == pair[1] or not _is_below(pair[1], places)), key=lambda pair: pair[1]
    )


def _is_below(path: str, places: Collection[str]) -> bool:
    """Whether a directory above it is among the places, so that its contents are shown anyway."""
    return any(str(parent) in places for parent in Path(path).parents)
