"""Who did what to a pipeline, and when: an append-only file of JSON lines in its data directory.

    {"time": …, "action": "start", "user": {"id": 1000, "name": "ada", "login": 1000}, "process": 4711,
     "command": ["millstream", "run", "p.yaml"], "pipeline": "p", "spec": "sha256:…", …}

An action is in the file, durably, before it is done: one that cannot be written down is refused. What a run has begun
already (to drain, to end) is not: it goes on with a warning. The file is its owner's alone, `--fresh` leaves it, and it
is bounded by rotation. Above it: the runner, and the commands that look into a pipeline or change it. Below it: files.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import pwd
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from millstream.errors import EnvironmentFault
from millstream.files import open_private
from millstream.local.directory import DataDirectory
from millstream.spec import resolved
from millstream.spec.loading import Loaded

AUDIT_BYTES_MAX = 4 * 1024 * 1024
"""Of the file. One older file is kept beside it."""
_COMMAND_CHARACTERS_MAX = 4096
_NO_LOGIN = 2**32 - 1
"""What the kernel says of a process that no login has started."""
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")


def note(directory: DataDirectory, action: str, **more: Any) -> None:
    """Write down that this process is about to do something. Raises `EnvironmentFault` where that cannot be written."""
    entry = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "action": action,
        "user": _user(),
        "process": os.getpid(),
        "command": _command(sys.argv),
        **_pipeline(directory),
        **more,
    }
    line = json.dumps(entry, default=str).encode() + b"\n"
    path = directory.audit
    try:
        _append(path, line)
    except OSError as error:
        raise EnvironmentFault(
            f"the audit file {path} cannot be written ({error.strerror}), and without an entry nothing is done: free "
            "some space, or see to its rights"
        ) from error


def note_going(directory: DataDirectory, message: Callable[[str], None], action: str, **more: Any) -> None:
    """Write down what a run does that has begun: it is done also where that cannot be written, with a warning."""
    try:
        note(directory, action, **more)
    except EnvironmentFault as error:
        message(f"warning: {action!r} is missing from the audit: {error}")


@contextmanager
def until_end(directory: DataDirectory, message: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Write down the end of what happens in the block, with what it puts into the mapping, or the error's name."""
    outcome: dict[str, Any] = {}
    try:
        yield outcome
    except BaseException as error:
        outcome["error"] = type(error).__name__
        raise
    finally:
        note_going(directory, message, "end", **outcome)


def pipeline_of(loaded: Loaded) -> dict[str, str]:
    """What an entry says of a pipeline that the directory does not hold yet."""
    return {
        "pipeline": loaded.pipeline.name,
        "spec": spec_digest(resolved.dump(loaded.pipeline, loaded.base_dir)),
    }


def entries(directory: DataDirectory) -> Iterator[dict[str, Any]]:
    """What was written down, the oldest first; a line that a full disk has cut is left out."""
    for path in (_older(directory.audit), directory.audit):
        with suppress(FileNotFoundError), path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                with suppress(ValueError):
                    entry = json.loads(line)
                    if isinstance(entry, dict):
                        yield entry


def spec_digest(text: str) -> str:
    """What tells a pipeline from another: of the resolved pipeline, as the data directory has it."""
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _append(path: Path, line: bytes) -> None:
    while True:
        descriptor = open_private(path, os.O_WRONLY | os.O_APPEND)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            status = os.fstat(descriptor)
            if not path.exists() or path.stat().st_ino != status.st_ino:
                # Another process has rotated it meanwhile.
                continue
            if status.st_size + len(line) > AUDIT_BYTES_MAX:
                path.replace(_older(path))
                continue
            if os.write(descriptor, line) < len(line):
                # Half a line has found room; the next would become a part of it.
                os.ftruncate(descriptor, status.st_size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(descriptor)
            return
        finally:
            os.close(descriptor)


def _older(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def _user() -> dict[str, Any]:
    identity = os.getuid()
    name = login = None
    with suppress(KeyError):
        name = pwd.getpwuid(identity).pw_name
    with suppress(OSError, ValueError):
        login = int(Path("/proc/self/loginuid").read_text())
    return {"id": identity, "name": name, "login": None if login == _NO_LOGIN else login}


def _command(arguments: Sequence[str]) -> list[str]:
    """The command line, without what stands before the host in an address."""
    shown = [_CREDENTIALS.sub("***@", argument) for argument in arguments]
    return [argument[:_COMMAND_CHARACTERS_MAX] for argument in shown[:100]]


def _pipeline(directory: DataDirectory) -> dict[str, Any]:
    """Which pipeline the directory holds, as far as it holds one."""
    try:
        text = directory.pipeline.read_text(encoding="utf-8")
        return {"pipeline": json.loads(text)["pipeline"]["metadata"]["name"], "spec": spec_digest(text)}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
