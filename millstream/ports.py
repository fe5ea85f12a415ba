"""Ports on the loopback for servers that are started here and may come back.

Above it: code that starts a server and remembers where it was. Below it: the system's sockets.
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
"""Where the system does not tell: no usual system gives connections lower ones."""
_GIVEN: set[int] = set()
"""Ports that `free_ports` has named in this process. Their server may be still to start, so no other gets one."""
_PROMISED: set[int] = set()
"""Ports that the user named for something this process starts later."""


def free_ports(count: int = 1) -> int:
    """The first of `count` free ports in a row, none of them given before where others are left. Raises
    `InfrastructureError` when there are none.

    They are not among those from which the system gives connections their own. A connection that is tried again and
    again while its server is away would get the server's port at last, and reach itself; any other might have it by
    chance. Either would keep the server from coming back.
    """
    low, high = _outgoing()
    places: list[int] = [*range(_FIRST, low - count + 1), *range(high + 1, _LAST - count + 2)]
    # A system may give connections any port; then there is nothing to choose.
    places = places or list(range(_FIRST, _LAST - count + 2))
    shuffled = random.sample(places, len(places))
    fresh = (first for first in shuffled if _GIVEN.isdisjoint(range(first, first + count)))
    # The servers of those given before may have ended.
    for first in chain(fresh, shuffled):
        ports = range(first, first + count)
        if all(map(is_free, ports)):
            _GIVEN.update(ports)
            return first
    raise InfrastructureError(codes.PORT_TAKEN, f"no {count} free ports in a row on 127.0.0.1")


def promise(port: int) -> None:
    """Keeps a port for what the user named it for: `free_ports` does not give it, and `is_free` denies it."""
    _PROMISED.add(port)


def is_free(port: int) -> bool:
    """Whether a server of our own choice could listen there now. Connections that have ended and linger do not take
    a port."""
    return port not in _PROMISED and why_not(port) is None


def why_not(port: int, host: str = "127.0.0.1") -> str | None:
    """Why no server could listen there now, in the system's words; None when one could."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )[0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address[:2])
    except OSError as error:
        # That of a name which is not known is not a number of the system's.
        return os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
    return None


def _outgoing() -> tuple[int, int]:
    """The first and the last port that a connection may get."""
    try:
        low, high = map(int, _OUTGOING.read_text().split())
    except (OSError, ValueError):
        return _OUTGOING_USUAL
    return low, high
