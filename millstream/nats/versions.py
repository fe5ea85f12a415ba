"""Which NATS servers can keep ledgers. Pure.

Above it: ledgers in JetStream, and connectors. It knows only what a server reports about itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from millstream import codes
from millstream.errors import InfrastructureError

VERSION_MIN = (2, 14, 6)
"""Defects of older versions with atomic batches: a refused batch takes one of 50 places permanently (2.12.1), or a
buffer counts as full after it (2.12.4); a restart does not complete a torn batch (2.14.0)."""


def is_too_old(server: Mapping[str, Any]) -> bool:
    """Whether a server reports an older version."""
    found = re.match(r"v?(\d+)\.(\d+)\.(\d+)", str(server.get("version", "")))
    return found is not None and tuple(int(part) for part in found.groups()) < VERSION_MIN


def check_version(server: Mapping[str, Any], place: str) -> None:
    """Raise `InfrastructureError` for an older server."""
    version = str(server.get("version", ""))
    if not is_too_old(server):
        return
    wanted = ".".join(map(str, VERSION_MIN))
    raise InfrastructureError(
        codes.BROKER_VERSION,
        f"the broker at {place} is NATS {version}; Millstream needs {wanted} or later: after some refused commits, "
        "older versions accept no more commits, or leave one half stored. Replace the server's program; its data "
        "can stay",
    )
