"""Records who does what: JSON lines in a file that only its owner can read, each durable before its action begins.

Above it: the runner's `local.audit`, for the data directory of a run, and vertices that were started by hand. Below
it: files. It handles entries and does not depend on the actions.
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
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from millstream import codes
from millstream.errors import InfrastructureError
from millstream.files import make_private_directories, open_private
from millstream.json_parser import parse_json

AUDIT_BYTES_MAX = 4 * 1024 * 1024
"""Largest size of the file. One older file is kept next to it."""
FILE_VARIABLE = "MILLSTREAM_AUDIT"
"""Environment variable that names the file for actions of this user that do not belong to a data directory."""
TO_LOG = Path("-")
"""Standard error instead of a file: a container's log keeps it even if nothing in the container is writable."""
_COMMAND_CHARACTERS_MAX = 4096
_NO_LOGIN = 2**32 - 1
"""The kernel's login id of a process that was not started from a login."""
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")


def write_entry(path: Path, action: str, **more: Any) -> None:
    """Records that this process is about to do something. Raises `InfrastructureError` if the entry cannot be
    written."""
    entry = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "action": action,
        "user": _user(),
        "process": os.getpid(),
        "command": _command(sys.argv),
        **more,
    }
    line = json.dumps(entry, default=str).encode() + b"\n"
    try:
        if path == TO_LOG:
            os.write(sys.stderr.fileno(), line)
        else:
            _append(path, line)
    except OSError as error:
        raise InfrastructureError(
            codes.AUDIT_UNWRITABLE,
            f"the audit file {path} cannot be written ({error.strerror}), and without an entry nothing is done: free "
            "some space, or correct its permissions",
        ) from error


def read_entries(path: Path) -> Iterator[dict[str, Any]]:
    """The entries, oldest first. A line that a full disk has truncated is left out."""
    for file in (_older(path), path):
        with suppress(FileNotFoundError), file.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                with suppress(ValueError):
                    entry = parse_json(line)
                    if isinstance(entry, dict):
                        yield entry


def named_file() -> Path | None:
    """The file that the environment names; None if it does not name one."""
    named = os.environ.get(FILE_VARIABLE)
    if not named:
        return None
    return TO_LOG if named == str(TO_LOG) else Path(named).absolute()


def own_file() -> Path:
    """The file for this user's actions that do not belong to a data directory: the one that the environment names,
    otherwise `millstream/audit.jsonl` where the user's programs keep their state. Creates its directory."""
    named = named_file()
    if named is not None:
        return named
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    directory = Path(state).absolute() / "millstream"
    try:
        make_private_directories(directory)
    except OSError as error:
        raise InfrastructureError(
            codes.AUDIT_UNWRITABLE,
            f"{directory}, the directory of your audit file, cannot be created ({error.strerror}), and without an "
            f"entry nothing is done: name another file in {FILE_VARIABLE}",
        ) from error
    return directory / "audit.jsonl"


def spec_digest(text: str) -> str:
    """Identifies a pipeline: the digest of the resolved pipeline, as the data directory has it.

    White space at the end of a file is not part of it.
    """
    return f"sha256:{hashlib.sha256(text.rstrip().encode()).hexdigest()}"


def _append(path: Path, line: bytes) -> None:
    while True:
        descriptor = open_private(path, os.O_WRONLY | os.O_APPEND)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            status = os.fstat(descriptor)
            if not path.exists() or path.stat().st_ino != status.st_ino:
                # Another process has rotated the file in the meantime.
                continue
            if status.st_size + len(line) > AUDIT_BYTES_MAX:
                path.replace(_older(path))
                continue
            if os.write(descriptor, line) < len(line):
                # Only a part of the line was written; the next line would be appended to that part.
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
    """The command line, without credentials in front of the host of an address."""
    return [_CREDENTIALS.sub("***@", argument)[:_COMMAND_CHARACTERS_MAX] for argument in arguments[:100]]
