"""The text of a NATS server's configuration, with the durability and the sizes a ledger needs. Pure.

Above it: the local runner, the test server and the commands that deploy a broker. It starts nothing and reads nothing.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from millstream import limits

LOG_FILE_BYTES_MAX = 8 * limits.MIB
"""A log file is rotated at this size, and one older is kept."""
PENDING_BYTES_MAX = 4 * limits.BYTES_IN_FLIGHT_MAX
"""What the server holds for one slow connection before it closes it."""

SETTINGS_SUBJECT = "$SYS.REQ.SERVER.*.VARZ"
"""Where a server answers with its settings, in its system account; the star stands for the server's id."""
SYSTEM_ACCOUNT = "SYS"
ACCOUNT = "millstream"
USER = "millstream"
PASSWORD_VARIABLE = "MILLSTREAM_BROKER_PASSWORD"
"""Environment variable of the server with the user's password: the configuration itself holds no secret."""

_PASSWORD_BYTES = 32

# A connection carries several lanes, and each may have asked for as many bytes as it may have in flight.
assert PENDING_BYTES_MAX >= 2 * limits.BYTES_IN_FLIGHT_MAX


def server_config(
    *,
    store_dir: Path,
    port: int,
    host: str = "127.0.0.1",
    name: str = "millstream",
    sync_always: bool = True,
    file_store_bytes_max: int | None = None,
    ports_dir: Path | None = None,
    log_file: Path | None = None,
    tls: tuple[Path, Path] | None = None,
) -> str:
    """A configuration for one server with JetStream, one account and one user, whose password the server finds in its
    environment. Nothing listens but the client port: the server tells its settings over NATS.

    Once it takes connections there is a file with its ports below `ports_dir`. Without `sync_always` a
    commit survives the death of any process, but not that of the operating system. `file_store_bytes_max` None: what
    the disk has. `tls`: certificate and key of the server, which then takes encrypted connections alone.
    """
    jetstream = {
        "store_dir": _quoted(store_dir),
        # Every write is on the disk before it is acknowledged. The default is two minutes.
        "sync_interval": "always" if sync_always else '"2m"',
        "max_file_store": None if file_store_bytes_max is None else str(file_store_bytes_max),
    }
    server = {
        "server_name": json.dumps(name),
        "listen": json.dumps(f"{host}:{port}"),
        "max_payload": str(limits.MESSAGE_BYTES_MAX),
        "max_pending": str(PENDING_BYTES_MAX),
        # A process that was stopped for a while keeps its connection.
        "write_deadline": '"30s"',
        "ports_file_dir": None if ports_dir is None else _quoted(ports_dir),
        "log_file": None if log_file is None else _quoted(log_file),
        "logfile_size_limit": None if log_file is None else str(LOG_FILE_BYTES_MAX),
        "logfile_max_num": None if log_file is None else "2",
        "tls": None if tls is None else f"{{ cert_file: {_quoted(tls[0])}, key_file: {_quoted(tls[1])} }}",
    }
    return "\n".join([*_lines(server, ""), "jetstream {", *_lines(jetstream, "  "), "}", *_ACCOUNTS, ""])


def new_password() -> str:
    """A random one, which a server's configuration takes for a text also where a variable of the environment holds it:
    letters and digits, no digit first."""
    return f"k{secrets.token_hex(_PASSWORD_BYTES)}"


# The settings of the server are lent to the account by the one that has them.
_ACCOUNTS = (
    f"system_account: {SYSTEM_ACCOUNT}",
    "accounts {",
    f'  {SYSTEM_ACCOUNT} {{ exports: [{{service: "{SETTINGS_SUBJECT}", accounts: [{ACCOUNT}]}}] }}',
    f"  {ACCOUNT} {{",
    "    jetstream: enabled",
    f"    users: [{{user: {USER}, password: ${PASSWORD_VARIABLE}}}]",
    f'    imports: [{{service: {{account: {SYSTEM_ACCOUNT}, subject: "{SETTINGS_SUBJECT}"}}}}]',
    "  }",
    "}",
)


def _lines(settings: dict[str, str | None], indent: str) -> list[str]:
    return [f"{indent}{key}: {value}" for key, value in settings.items() if value is not None]


def _quoted(path: Path) -> str:
    return json.dumps(str(path.absolute()), ensure_ascii=False)
