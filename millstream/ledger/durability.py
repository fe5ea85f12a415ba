"""What the broker really keeps: read from its settings, not assumed.

Above it: `jetstream.py`. Below it: the server's monitoring endpoint and the configuration of a stream.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Mapping
from typing import Any

from millstream.errors import DurabilityError
from millstream.ledger.protocol import Durability, DurabilityLevel

_TIMEOUT_S = 5.0
_STRENGTH = {DurabilityLevel.MEMORY: 0, DurabilityLevel.PROCESS: 1, DurabilityLevel.FSYNC: 2}


async def read_server_settings(monitor_url: str) -> dict[str, Any]:
    """`/varz` of the server. Raises `OSError` or `ValueError`."""
    return await asyncio.to_thread(_get_json, f"{monitor_url.rstrip('/')}/varz")


def judge(server: Mapping[str, Any] | None, stream: Mapping[str, Any], where: str) -> Durability:
    """Durability, from the server's settings (None: not readable, `where` says why) and the stream's. Pure."""
    if stream.get("storage") != "file":
        return Durability(DurabilityLevel.MEMORY, True, f"the stream is kept in {stream.get('storage')}")
    if stream.get("persist_mode") == "async":
        return Durability(
            DurabilityLevel.MEMORY, True, "the stream has persist_mode async: acknowledged before it is written"
        )
    if server is None:
        return Durability(DurabilityLevel.PROCESS, False, where)
    config = server.get("jetstream", {}).get("config", {})
    if config.get("sync_always") is True:
        return Durability(DurabilityLevel.FSYNC, True, f"{where}: jetstream.config.sync_always is true")
    return Durability(
        DurabilityLevel.PROCESS, True, f"{where}: jetstream.config.sync_always is not true; writes reach the disk later"
    )


def check(durability: Durability, require: DurabilityLevel, place: str) -> None:
    """Raise `DurabilityError` when it is known that the broker keeps less than `require`."""
    if durability.verified and _STRENGTH[durability.level] < _STRENGTH[require]:
        raise DurabilityError(
            f"the broker at {place} would not keep what it acknowledges: durability is {durability.level.value!r}, "
            f"{require.value!r} is required ({durability.evidence}). Set 'sync_interval: always' in the jetstream "
            "block of its "
            "configuration, or ask for a weaker durability by name"
        )


def _get_json(url: str) -> dict[str, Any]:
    # No proxy: the server is ours.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=_TIMEOUT_S) as answer:
        settings: dict[str, Any] = json.load(answer)
    return settings
