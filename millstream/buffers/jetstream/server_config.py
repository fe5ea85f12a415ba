"""The text of a NATS server's configuration, with the durability and the sizes that a ledger needs. Pure.

Above it: the server of a run, and whatever needs the names in it. It starts nothing and reads nothing.
"""

from __future__ import annotations

import json
from pathlib import Path

from millstream import limits

PENDING_BYTES_MAX = 4 * limits.BYTES_IN_FLIGHT_MAX
"""Bytes that the server holds for one slow connection before it closes the connection."""

SETTINGS_SUBJECT = "$SYS.REQ.SERVER.*.VARZ"
"""Subject in the system account at which a server answers with its settings; the star stands for the server's id."""
HEALTH_SUBJECT = "$SYS.REQ.SERVER.*.HEALTHZ"
"""The same for its health."""
SYSTEM_ACCOUNT = "SYS"
ACCOUNT = "millstream"
USER = "millstream"
PASSWORD_VARIABLE = "MILLSTREAM_BROKER_PASSWORD"
"""Environment variable of the server with the user's password, so that the configuration contains no secret."""

# Several lanes share a connection, and each may have requested as many bytes as it may have in flight.
assert PENDING_BYTES_MAX >= 2 * limits.BYTES_IN_FLIGHT_MAX


def server_config(
    *,
    store_dir: Path,
    port: int,
    ports_dir: Path,
    sync_always: bool,
    file_store_bytes_max: int | None,
    tls: tuple[Path, Path] | None,
) -> str:
    """A configuration for one server with JetStream, one account and one user, whose password the server reads from its
    environment. The server listens only on the client port of the loopback interface, and reports its settings and its
    health over NATS.

    When the server accepts connections, it writes a file with its ports below `ports_dir`. Without `sync_always` a
    commit survives a crash of any process, but not of the operating system. `file_store_bytes_max`: None stands for the
    space on the disk. `tls`: certificate and key of the server, which then accepts only encrypted connections.
    """
    jetstream = {
        "store_dir": _quoted(store_dir),
        # "always": every write is on the disk before it is acknowledged. The server's default is two minutes.
        "sync_interval": "always" if sync_always else '"2m"',
        "max_file_store": None if file_store_bytes_max is None else str(file_store_bytes_max),
    }
    server = {
        "server_name": json.dumps("millstream"),
        "listen": json.dumps(f"127.0.0.1:{port}"),
        "max_payload": str(limits.MESSAGE_BYTES_MAX),
        "max_pending": str(PENDING_BYTES_MAX),
        # A process that was stopped for a while keeps its connection.
        "write_deadline": '"30s"',
        "ports_file_dir": _quoted(ports_dir),
        "tls": None if tls is None else f"{{ cert_file: {_quoted(tls[0])}, key_file: {_quoted(tls[1])} }}",
    }
    return "\n".join([*_lines(server, ""), "jetstream {", *_lines(jetstream, "  "), "}", *_ACCOUNTS, ""])


# The system account exports the settings and the health of the server to the account.
_ACCOUNTS = (
    f"system_account: {SYSTEM_ACCOUNT}",
    "accounts {",
    f"  {SYSTEM_ACCOUNT} {{ exports: [",
    *(f'    {{service: "{subject}", accounts: [{ACCOUNT}]}}' for subject in (SETTINGS_SUBJECT, HEALTH_SUBJECT)),
    "  ] }",
    f"  {ACCOUNT} {{",
    "    jetstream: enabled",
    f"    users: [{{user: {USER}, password: ${PASSWORD_VARIABLE}}}]",
    "    imports: [",
    *(
        f'      {{service: {{account: {SYSTEM_ACCOUNT}, subject: "{subject}"}}}}'
        for subject in (SETTINGS_SUBJECT, HEALTH_SUBJECT)
    ),
    "    ]",
    "  }",
    "}",
)


def _lines(settings: dict[str, str | None], indent: str) -> list[str]:
    return [f"{indent}{key}: {value}" for key, value in settings.items() if value is not None]


def _quoted(path: Path) -> str:
    return json.dumps(str(path.absolute()), ensure_ascii=False)
