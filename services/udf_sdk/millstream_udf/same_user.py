"""TCP connections of this machine, by the user at their other end.

Above it: debuggers. Below it: the kernel's tables of connections, which only Linux has. It imports nothing of the
package, because another program runs it, too (`debug_adapter`).
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterable, Iterator

_ESTABLISHED = "01"
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")


def is_supported() -> bool:
    """Whether this system tells whose connections there are."""
    return os.access(_TABLES[0], os.R_OK)


def only_accept_own_connections(accepted: Callable[[], object] = lambda: None) -> None:
    """From now on, `accept` of this process closes TCP connections of other users than this one and root, and waits for
    the next one. `accepted` is called for each other one."""
    accept = socket.socket.accept

    def accept_own(self: socket.socket) -> tuple[socket.socket, object]:
        while True:
            connection, address = accept(self)
            if self.family not in (socket.AF_INET, socket.AF_INET6) or is_own(connection):
                accepted()
                return connection, address
            connection.close()

    socket.socket.accept = accept_own  # type: ignore[method-assign]  # of all sockets: that is the point


def is_own(connection: socket.socket) -> bool:
    """Whether a process of this user, or of root, on this machine is at the other end of a connection. False if that is
    not known."""
    try:
        ends = _written(connection.getpeername()), _written(connection.getsockname())
        lines = [line for table in _TABLES if os.path.exists(table) for line in _lines(table)]
    except (OSError, ValueError):
        return False
    return user_of(lines, *ends) in (0, os.geteuid())


def user_of(lines: Iterable[str], peer: str, own: str) -> int | None:
    """The user of the connection from `peer` to `own` in the kernel's table; None if it is not there.

    One that its process has closed is not there either: the kernel gives it to root.
    """
    for line in lines:
        _, local, remote, state, _, _, _, user, _, inode, *_ = line.split()
        if (local[-_PLAIN:], remote[-_PLAIN:]) != (peer, own) or state != _ESTABLISHED or inode == "0":
            continue
        # An IPv4 address has a prefix in the table of IPv6; any other address must not end like one.
        if all(one[:-_PLAIN] in ("", _MAPPED) for one in (local, remote)):
            return int(user)
    return None


_PLAIN = len("0100007F:0000")
_MAPPED = "".join(f"{part:08X}" for part in struct.unpack("=III", socket.inet_pton(socket.AF_INET6, "::ffff:0:0")[:12]))


def _written(address: tuple[str, int]) -> str:
    """An IPv4 address as it is in the table: the number that its bytes are on this machine."""
    return "{:08X}:{:04X}".format(*struct.unpack("=I", socket.inet_aton(address[0])), address[1])


def _lines(table: str) -> Iterator[str]:
    with open(table, encoding="ascii") as file:
        next(file)
        yield from file
