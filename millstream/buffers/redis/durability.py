"""Determines the durability of the server from its settings, without assumptions.

Above it: `ledger.py`. Below it: the settings that the server reports.

With `appendfsync always` a commit is written to the append-only file and fsynced before the answer. With `no` it is
written before the answer, so it survives a crash of the process, but not of the machine. With `everysec` the server may
delay the write itself by two seconds while the disk is busy, so a crash of the process may lose acknowledged data.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from millstream import codes
from millstream.buffers.redis.connection import RedisConnection, pairs, until_answered
from millstream.errors import InfrastructureError
from millstream.ledger.protocol import Durability, DurabilityLevel

VERSION_MIN = (7, 0)
"""From this version on, scripts log their effects, and the append-only log consists of several files."""
_SETTINGS = ("appendonly", "appendfsync", "no-appendfsync-on-rewrite", "maxmemory", "maxmemory-policy")


async def check_server(connection: RedisConnection) -> None:
    """Raise `InfrastructureError` for a server that cannot keep ledgers: too old, a replica, or one of a cluster."""
    try:
        info = _info(await until_answered(connection, "INFO"))
    except InfrastructureError:
        # The server does not report it. The first commit shows whether the server can keep ledgers.
        return
    version = info.get("redis_version", "")
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is not None and (int(found[1]), int(found[2])) < VERSION_MIN:
        wanted = ".".join(map(str, VERSION_MIN))
        raise InfrastructureError(
            codes.BROKER_VERSION,
            f"the server at {connection.place} is Redis {version}; Millstream needs {wanted} or later",
        )
    if info.get("cluster_enabled") == "1":
        raise InfrastructureError(
            codes.BROKER_ROLE,
            f"the server at {connection.place} belongs to a Redis cluster; ledgers need a single server "
            "(docs/guarantees.md)",
        )
    if info.get("role", "master") != "master":
        raise InfrastructureError(
            codes.BROKER_ROLE, f"the server at {connection.place} is a replica. Name the primary, which accepts writes"
        )


async def ask_durability(connection: RedisConnection) -> Durability:
    """The durability of the server, according to its settings."""
    try:
        settings = {
            name: value.decode()
            for name, value in pairs(await until_answered(connection, "CONFIG", "GET", *_SETTINGS)).items()
        }
    except InfrastructureError as error:
        return Durability(DurabilityLevel.PROCESS, False, str(error))
    return judge(settings)


def judge(settings: Mapping[str, str]) -> Durability:
    """The durability, from the server's settings. Pure."""
    policy, fsync = settings.get("maxmemory-policy"), settings.get("appendfsync")
    judgements = (
        (
            settings.get("maxmemory", "0") != "0" and policy != "noeviction",
            DurabilityLevel.MEMORY,
            f"maxmemory-policy is {policy}: it removes keys when memory is full",
        ),
        (
            settings.get("appendonly") != "yes",
            DurabilityLevel.MEMORY,
            "appendonly is not yes: writes are acknowledged before they reach the disk",
        ),
        (
            fsync == "everysec",
            DurabilityLevel.MEMORY,
            "appendfsync is everysec: a write may reach the disk up to two seconds after it was acknowledged",
        ),
        (fsync != "always", DurabilityLevel.PROCESS, f"appendfsync is {fsync}: writes reach the disk later"),
        (
            settings.get("no-appendfsync-on-rewrite") != "no",
            DurabilityLevel.PROCESS,
            "no-appendfsync-on-rewrite is yes: it does not fsync while it rewrites its log",
        ),
        (True, DurabilityLevel.FSYNC, "appendfsync is always"),
    )
    level, why = next((level, why) for applies, level, why in judgements if applies)
    return Durability(level, True, f"by CONFIG GET: {why}")


def check(durability: Durability, require: DurabilityLevel, place: str) -> None:
    """Raise `DurabilityError` if the durability of the server is below `require`, or may be."""
    wanted = "appendonly yes, appendfsync always, no-appendfsync-on-rewrite no and maxmemory-policy noeviction"
    durability.check(
        require,
        f"the server at {place}",
        to_know=f"Let its user run CONFIG GET. If that is not possible and you know that it has {wanted}",
        to_have=wanted,
    )


def _info(answer: bytes) -> Mapping[str, str]:
    lines = answer.decode(errors="replace").splitlines()
    return {name: value for name, colon, value in (line.partition(":") for line in lines) if colon}
