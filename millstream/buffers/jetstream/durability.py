"""Determines the durability of the broker from its settings, without assumptions.

Above it: `ledger.py`. Below it: the settings that the server reports, over the connection or at its monitoring
endpoint, and the configuration of a stream.
"""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Mapping
from typing import Any

from millstream import limits
from millstream.buffers.jetstream.server_config import SETTINGS_SUBJECT
from millstream.json_parser import parse_json
from millstream.ledger.protocol import Durability, DurabilityLevel
from millstream.nats.connection import (
    AnswerLostError,
    BrokerConnection,
    NotPermittedError,
    UnansweredError,
)

_TIMEOUT_S = 5.0


async def ask_server_settings(connection: BrokerConnection) -> tuple[dict[str, Any] | None, str]:
    """The settings that the server reports over NATS, and their origin; None and the reason if it does not report them.

    The server answers only if its configuration exports this service to the account (deploy/README.md).
    """
    # A server that does not report its settings says so. If no answer arrives, the server is slow or starting.
    deadline_s = asyncio.get_running_loop().time() + limits.START_TIMEOUT_S
    while True:
        await connection.connected()
        losses = connection.losses
        subject = SETTINGS_SUBJECT.replace("*", str(connection.server.get("server_id")))
        try:
            settings: dict[str, Any] = parse_json((await connection.request(subject)).data).get("data", {})
        except UnansweredError:
            if losses == connection.losses:
                return None, f"the server does not report its settings to this account (nothing answers {subject})"
        except NotPermittedError as error:
            return None, f"the server does not report its settings: {error}"
        except (AnswerLostError, ValueError) as error:
            if asyncio.get_running_loop().time() >= deadline_s:
                return None, f"the server was asked for its settings and answered: {error}"
        else:
            return settings, f"server {connection.server.get('server_name')}, by {subject}"


def read_server_settings(monitor_url: str) -> dict[str, Any]:
    """`/varz` of the server; blocks. Raises `OSError` or `ValueError`."""
    # No proxy, because the server is our own.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{monitor_url.rstrip('/')}/varz", timeout=_TIMEOUT_S) as answer:
        settings: dict[str, Any] = parse_json(answer.read())
    return settings


def is_of(settings: Mapping[str, Any], server: Mapping[str, Any]) -> bool:
    """Whether the settings are those of the connected server, or of another server in its cluster.

    `server`: the information that the server sent at the connection. The servers of a cluster have the same
    configuration, and a connection may reach any of them.
    """
    cluster = server.get("cluster")
    same_cluster = bool(cluster) and settings.get("cluster", {}).get("name") == cluster
    return settings.get("server_id") == server.get("server_id") or same_cluster


def judge(server: Mapping[str, Any] | None, stream: Mapping[str, Any], where: str) -> Durability:
    """The durability, from the settings of the server and the stream. Pure. `server` is None if its settings could not
    be read; `where` then says why."""
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
    """Raise `DurabilityError` if the durability of the broker is below `require`, or may be."""
    durability.check(
        require,
        f"the broker at {place}",
        to_know="Let the broker report its settings to the account (see deploy/README.md), or name its monitoring "
        "endpoint in the access file (`monitor: http://HOST:8222`). If neither is possible and you know that the "
        "broker has 'sync_interval: always'",
        to_have="'sync_interval: always' in the jetstream block of its configuration",
    )
