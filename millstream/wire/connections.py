"""Limits the connections to one of our servers, and counts refused ones. No I/O.

Above it: `accepting`, which accepts connections. Below it: a clock.
"""

from __future__ import annotations

import ipaddress
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from millstream.clock import Clock
from millstream.limits import (
    HTTP_CLIENT_CONNECTIONS_MAX,
    HTTP_CONNECTIONS_MAX,
    HTTP_HEAD_TIMEOUT_S,
    HTTP_IDLE_TIMEOUT_S,
    REFUSALS_REPORTED_EVERY_S,
)

_log = logging.getLogger(__name__)

TOO_MANY = "too many connections"
TOO_MANY_OF_CLIENT = "too many connections of one client"


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of one listener."""

    connections_max: int = HTTP_CONNECTIONS_MAX
    client_connections_max: int = HTTP_CLIENT_CONNECTIONS_MAX
    """Connections from one address, or with IPv6, from one /64 network."""
    head_timeout_s: float = HTTP_HEAD_TIMEOUT_S
    """Timeout from the connection to the end of its first request's head, and for a TLS handshake."""
    idle_timeout_s: float = HTTP_IDLE_TIMEOUT_S
    """Timeout from one answer to the end of the next request's head."""

    def fitting(self, descriptors: int) -> ConnectionLimits:
        """The same limits, reduced to at most half of the file descriptors that the process may open."""
        most = max(2, min(self.connections_max, descriptors // 2))
        # One client must not use all of them.
        of_client = min(self.client_connections_max, max(1, most // 2)) if most > 2 else 1
        return ConnectionLimits(most, of_client, self.head_timeout_s, self.idle_timeout_s)


class Refusals:
    """Counts refused connections and requests, and logs them from time to time."""

    def __init__(self, where: str, clock: Clock) -> None:
        """`where` names the listener in messages."""
        self._where = where
        self._clock = clock
        self._counts: Counter[str] = Counter()
        self._untold: Counter[str] = Counter()
        self._told_s: float | None = None

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of refusals by reason, since the listener was opened."""
        return self._counts

    def note(self, reason: str, client: str = "", *, logged: bool = True) -> None:
        """Count a refusal. `client`: the client's address; `logged`: whether to log it."""
        self._counts[reason] += 1
        if not logged:
            return
        self._untold[reason] += 1
        now_s = self._clock.monotonic_s()
        if self._told_s is not None and now_s < self._told_s + REFUSALS_REPORTED_EVERY_S:
            return
        listed = ", ".join(f"{count} x {name}" for name, count in sorted(self._untold.items()))
        last = f"; the last from {client}" if client else ""
        _log.warning("%s refuses connections: %s%s", self._where, listed, last)
        self._told_s = now_s
        self._untold.clear()


@dataclass(slots=True)
class Lease:
    """The slot of one connection."""

    _connections: Connections
    client: str
    _released: bool = field(default=False)

    def release(self) -> None:
        """Release the slot of a connection that has ended; calling it again has no effect."""
        if not self._released:
            self._released = True
            self._connections.gone(self.client)


class Connections:
    """The open connections of one listener."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._open: Counter[str] = Counter()
        self._count = 0

    @property
    def count(self) -> int:
        return self._count

    def admit(self, address: str) -> Lease | str:
        """A slot for a connection from that address, or why there is none: `TOO_MANY` or `TOO_MANY_OF_CLIENT`."""
        client = client_of(address)
        if self._open[client] >= self._limits.client_connections_max:
            return TOO_MANY_OF_CLIENT
        if self._count >= self._limits.connections_max:
            return TOO_MANY
        self._open[client] += 1
        self._count += 1
        return Lease(self, client)

    def gone(self, client: str) -> None:
        """Release the slot of a connection of this client."""
        self._count -= 1
        self._open[client] -= 1
        if not self._open[client]:
            del self._open[client]


def client_of(address: str) -> str:
    """The client whose connections are counted together: an IPv4 address, or an IPv6 /64 network."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(ip) >> 64 << 64, 64)))


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return (mapped or ip).is_loopback
