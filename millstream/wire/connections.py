"""Limits the connections to one of our servers, and counts refused ones. No I/O.

Above it: `accepting`, which accepts connections. Below it: a clock.
"""

from __future__ import annotations

import ipaddress
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

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
    """Connections of one sender, and connections from one address (with IPv6, from one /64 network) whose senders are
    not known yet."""
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
        self.counts: Counter[str] = Counter()
        """Number of refusals by reason, since the listener was opened."""
        self._unreported: Counter[str] = Counter()
        self._reported_at_s: float | None = None

    def note(self, reason: str, client: str = "", *, logged: bool = True) -> None:
        """Count a refusal. `client`: the client's address; `logged`: whether to log it."""
        self.counts[reason] += 1
        if not logged:
            return
        self._unreported[reason] += 1
        now_s = self._clock.monotonic_s()
        if self._reported_at_s is not None and now_s < self._reported_at_s + REFUSALS_REPORTED_EVERY_S:
            return
        listed = ", ".join(f"{count} x {name}" for name, count in sorted(self._unreported.items()))
        last = f"; the last from {client}" if client else ""
        _log.warning("%s refuses connections: %s%s", self._where, listed, last)
        self._reported_at_s = now_s
        self._unreported.clear()


class Lease:
    """The slot of one connection. At first, its client has not shown that it is a sender."""

    def __init__(self, connections: Connections, client: str) -> None:
        self.client = client
        self.give_way: Callable[[str], object] | None = None
        """Ends the connection for the given reason; None while it must not end."""
        self._connections = connections
        self.sender: str | None = None
        """The sender that the client has shown to be; None before that."""
        self._released = False

    def show(self, identity: str) -> bool:
        """The client has shown that it is this sender, or that it needs no identity (an empty one). Its connection no
        longer gives way to new ones. Returns False if the sender has too many connections: this one has to end."""
        if self.sender is None and not self._released:
            sender = f"{self.client} {identity}"
            if not self._connections.shown(self, sender):
                return False
            self.sender = sender
        return True

    def release(self) -> None:
        """Release the slot of a connection that has ended; calling it again has no effect."""
        if not self._released:
            self._released = True
            self._connections.gone(self)


class Connections:
    """The open connections of one listener.

    Without a free slot, the oldest connection whose client has shown nothing gives way to a new one. So strangers, who
    can open any number of connections, only take slots from each other: a sender shows who it is with its first bytes.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._anonymous: dict[str, dict[Lease, None]] = {}
        """By client: the connections without a sender, the oldest first."""
        self._senders: Counter[str] = Counter()
        self.count = 0

    def admit(self, address: str) -> Lease | str:
        """A slot for a connection from that address, or why there is none: `TOO_MANY` or `TOO_MANY_OF_CLIENT`."""
        client = client_of(address)
        same = self._anonymous.get(client, {})
        if len(same) >= self._limits.client_connections_max and not self._make_way(same, TOO_MANY_OF_CLIENT):
            return TOO_MANY_OF_CLIENT
        if self.count >= self._limits.connections_max:
            most = max(self._anonymous.values(), key=len, default={})
            if not self._make_way(most, TOO_MANY):
                return TOO_MANY
        lease = Lease(self, client)
        self._anonymous.setdefault(client, {})[lease] = None
        self.count += 1
        return lease

    @staticmethod
    def _make_way(leases: Mapping[Lease, None], reason: str) -> bool:
        """End the oldest connection that may end. Returns whether there is one."""
        oldest = next((lease for lease in leases if lease.give_way is not None), None)
        if oldest is None or oldest.give_way is None:
            return False
        oldest.release()
        oldest.give_way(reason)
        return True

    def shown(self, lease: Lease, sender: str) -> bool:
        """Count a connection for its sender. Returns False if the sender has as many as it may have."""
        if self._senders[sender] >= self._limits.client_connections_max:
            return False
        self._forget(lease)
        self._senders[sender] += 1
        return True

    def gone(self, lease: Lease) -> None:
        """Release the slot of a connection."""
        self.count -= 1
        if lease.sender is None:
            self._forget(lease)
            return
        self._senders[lease.sender] -= 1
        if not self._senders[lease.sender]:
            del self._senders[lease.sender]

    def _forget(self, lease: Lease) -> None:
        same = self._anonymous[lease.client]
        del same[lease]
        if not same:
            del self._anonymous[lease.client]


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
