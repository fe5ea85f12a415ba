"""How a function is held: its limits, what it sees of the machine, and whether this system can do that.

Above it: the sidecar supervisor, and the checks of a pipeline file. Below it: `millstream.confine`, which does it
between the start of a process and its command.
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

NOT_HELD = confine.NOT_HELD
"""Exit code of a start that could not be held."""
SCRATCH = "/tmp"  # the sandbox has one of its own
_PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
# Of /etc only what programs look up: a user's or root's rights reach further there than a function should.
_LOOKED_UP = (
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/nsswitch.conf"),
    *("/etc/passwd", "/etc/group", "/etc/hosts", "/etc/host.conf", "/etc/gai.conf", "/etc/resolv.conf"),
    *("/etc/services", "/etc/protocols", "/etc/localtime", "/etc/timezone", "/etc/os-release", "/etc/mime.types"),
    *("/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/pki/tls/certs", "/etc/pki/ca-trust", "/etc/fonts"),
    *("/sys/devices/system", "/sys/fs/cgroup", "/sys/kernel/mm/transparent_hugepage"),
)
DATA_DIRECTORIES = ".millstream"
"""Directory that holds data directories which the user has not named, where a pipeline was started."""
_CHECK_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Confinement:
    """What a function may not exceed, and see."""

    limits: Mapping[str, int] = field(default_factory=dict)
    """`memory` (bytes of data a process), `processes`, `files`, `cpu` (processors); what is missing is not limited."""
    strict: bool = False
    """In a sandbox."""
    network: bool = False
    """The sandbox has the host's network."""
    readable: tuple[Path, ...] = ()
    """Files and directories that a sandbox shows beside code and programs."""
    hidden: tuple[Path, ...] = ()
    """Files and directories that are empty in a sandbox, also inside what it shows."""

    @property
    def environment(self) -> dict[str, str]:
        """Variables that have another value inside."""
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
    """The command line that runs `command` held, and so that it dies with the calling process.

    Args:
        command: Program and arguments.
        held: How.
        cwd: Where it runs; a sandbox shows this directory.
        sockets: The directory that it may write into, whatever else is read-only.
        search: Where programs are looked for (PATH).
        check: Do everything but run it, and end with code 0.

    Raises `UserError` where a sandbox would show the user's home directory.
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
            "sockets": os.path.realpath(sockets),
            "cwd": os.path.realpath(cwd),
            "links": [(path, os.readlink(path)) for path in _PROGRAMS if os.path.islink(path)],
            "read": _mounts([*(path for path in _PROGRAMS if not os.path.islink(path)), *shown]),
            "hidden": sorted({os.path.realpath(path) for path in held.hidden}),
        }
    text = json.dumps(settings)
    start = [sys.executable, "-I", "-S", "-c", confine.START, str(Path(confine.__file__).parent)]
    return [*start, str(os.getpid()), text, "--", *command]


def holds_home(directory: Path) -> bool:
    """Whether a directory is the user's home or above it: to show it would be to show everything."""
    found = Path(os.path.realpath(directory))
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        # A user without an entry and without HOME has none; but above everything is not a place either.
        return found == Path(found.anchor)
    return found in (Path(os.path.realpath(home)), *Path(os.path.realpath(home)).parents)


@functools.cache
def refusal(*, strict: bool, network: bool, limits: frozenset[str]) -> str | None:
    """Why this system cannot hold a function so; None where it can. Tries it with a command that does nothing."""
    with tempfile.TemporaryDirectory(prefix="millstream-check-") as directory:
        place = Path(directory)
        # Any value that is not an obstacle: what counts is whether the kernel takes it.
        values = {"memory": 1 << 40, "processes": 1 << 14, "files": 256, "cpu": 1}
        held = Confinement({name: values[name] for name in limits}, strict, network)
        command = confined([sys.executable], held, cwd=place, sockets=place, check=True)
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_CHECK_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"it was not tried to the end within {_CHECK_TIMEOUT_S:g} s"
    message = done.stderr.decode(errors="replace").strip()
    return None if done.returncode == 0 else message or f"the trial ended with code {done.returncode}"


def _of_program(program: str, cwd: Path, search: str) -> Iterator[Path]:
    """Where a program lies: for `<prefix>/bin/program` the prefix, also of what it is a link to."""
    found = str(cwd / program) if os.sep in program else shutil.which(program, path=search)
    while found is not None:
        path = Path(found)
        prefix = path.parent.parent
        yield prefix if path.parent.name == "bin" and not holds_home(prefix) else path
        found = str(path.parent / os.readlink(path)) if path.is_symlink() else None


def _of_this_python() -> Iterator[str]:
    """What our own interpreter imports from."""
    here = os.path.realpath(os.getcwd())
    for place in (sys.prefix, sys.base_prefix, *sys.path):
        # Where the vertex was started is not a place for libraries.
        if place and os.path.realpath(place) != here and not holds_home(Path(place)):
            yield place


def _mounts(paths: Sequence[str]) -> list[tuple[str, str]]:
    """What is shown (source, place), outer directories first; what is a link, or behind one, at both its names."""
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
    """Whether a directory above it is shown, with its contents."""
    return any(str(parent) in places for parent in Path(path).parents)
