"""Waits until a Spark master or server can be reached at all.

Spark itself tries a master for a minute and then speaks of "all masters unresponsive"; here it is said at once what
refuses, and where. Above it: the session. Below it: TCP.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time

from millstream.errors import EnvironmentFault

_log = logging.getLogger(__name__)

WAIT_S = 30.0
"""How long a server that cannot be reached is tried again: it may just be starting anew."""
_RETRY_S = 0.5
_CONNECT_TIMEOUT_S = 3.0
_DEFAULT_PORTS = {"spark": 7077, "sc": 15002, "https": 443, "http": 80}
_PLACE = re.compile(r"(?:k8s://)?(?P<scheme>[a-z][a-z0-9]*)://(?P<hosts>[^/;]+)")


def addresses_of(place: str) -> list[tuple[str, int]]:
    """Hosts and ports of a master or server; of several masters any will do. Empty for one that has none (yarn)."""
    if place.startswith("k8s://") and "://" not in place.removeprefix("k8s://"):
        place = "k8s://https://" + place.removeprefix("k8s://")
    match = _PLACE.match(place)
    if match is None:
        return []
    found = []
    for text in match["hosts"].split(","):
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdigit():
            host, port = text, str(_DEFAULT_PORTS.get(match["scheme"], 0))
        found.append((host.strip("[]"), int(port)))
    return found


async def await_server(place: str, *, wait_s: float = WAIT_S) -> None:
    """Return when one of its addresses takes a connection; raise `EnvironmentFault` after `wait_s`."""
    addresses = addresses_of(place)
    if not addresses:
        return
    deadline_s = time.monotonic() + wait_s
    warned = False
    while True:
        trouble = ""
        for host, port in addresses:
            try:
                async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                    _, writer = await asyncio.open_connection(host, port)
            except (OSError, TimeoutError) as error:
                trouble = f"{host}:{port}: {_reason(error)}"
                continue
            writer.close()
            return
        if time.monotonic() >= deadline_s:
            raise EnvironmentFault(
                f"Spark cannot be reached at {place} ({trouble}): start it, or correct `spec.spark` of the pipeline"
            )
        if not warned:
            warned = True
            _log.warning("Spark cannot be reached at %s (%s); trying again for %.0f s", place, trouble, wait_s)
        await asyncio.sleep(_RETRY_S)


def _reason(error: OSError | TimeoutError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, TimeoutError):
        return "no answer"
    return error.strerror or str(error)
