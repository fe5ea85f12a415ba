"""Ports on the loopback interface for servers that are started here and may be restarted.

Above it: code that starts a server and remembers its port. Below it: the system's sockets.
"""

from __future__ import annotations

import os
import random
import socket
from itertools import chain
from pathlib import Path

from millstream import codes
from millstream.errors import InfrastructureError

_FIRST, _LAST = 10_240, 65_535
_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
_OUTGOING_USUAL = 32_768, 65_535
"""The range if the system does not report it: common systems do not give lower ports to connections."""
_GIVEN: set[int] = set()
"""Ports that `free_ports` has returned in this process. Their servers may not have started yet, so no other server gets
them."""
_PROMISED: set[int] = set()
"""Ports that the user named for something that this process starts later."""


def free_ports(count: int = 1) -> int:
    """The first of `count` consecutive free ports. It prefers ports that it has not returned before. Raises
    `InfrastructureError` if there are none.

    They are outside the range from which the system gives connections their local ports. A client that retries a
    connection while its server is away would eventually get the server's port, and connect to itself; any other
    connection might get the port by chance. Either would prevent the server's restart.
    """
    low, high = _outgoing()
    places: list[int] = [*range(_FIRST, low - count + 1), *range(high + 1, _LAST - count + 2)]
    # A system may give any port to connections; then all ports are equal.
    places = places or list(range(_FIRST, _LAST - count + 2))
    shuffled = random.sample(places, len(places))
    fresh = (first for first in shuffled if _GIVEN.isdisjoint(range(first, first + count)))
    # The servers that used earlier ports may have ended.
    for first in chain(fresh, shuffled):
        ports = range(first, first + count)
        if all(map(is_free, ports)):
            _GIVEN.update(ports)
            return first
    raise InfrastructureError(codes.PORT_TAKEN, f"no {count} free ports in a row on 127.0.0.1")


def promise(port: int) -> None:
    """Reserves a port that the user named: `free_ports` does not return it, and `is_free` returns False for it."""
    _PROMISED.add(port)


def is_free(port: int) -> bool:
    """Whether a server whose port we choose could listen there now. Closed connections that linger do not occupy a
    port."""
    return port not in _PROMISED and why_not(port) is None


def why_not(port: int, host: str = "127.0.0.1") -> str | None:
    """Why a server could not listen there now, in the system's words; None if it could."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )[0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address[:2])
    except OSError as error:
        # If a name is unknown, the number of the error is not one of the system's.
        return os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
    return None


def _outgoing() -> tuple[int, int]:
    """The first and the last port that a connection may get."""
    try:
        low, high = map(int, _OUTGOING.read_text().split())
    except (OSError, ValueError):
        return _OUTGOING_USUAL
    return low, high
