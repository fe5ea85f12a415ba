"""Checks the health of a server on this machine with a connection, a ping, and the answer.

Above it: the supervisor of the embedded server. Below it: the protocol of Redis, of which it uses two commands.
"""

from __future__ import annotations

import asyncio

from millstream.buffers.redis.access import RedisAccess

_PONG = b"+PONG\r\n"


async def answers_ping(port: int, access: RedisAccess) -> bool:
    """True when the server has answered, however long that took; False if there is no server, if it closes the
    connection, or if it is still loading its data."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    try:
        who = [access.password or ""] if access.user is None else [access.user, access.password or ""]
        writer.write(_command("AUTH", *who) + _command("PING"))
        await reader.readline()
        return await reader.readline() == _PONG
    except (OSError, ValueError):
        return False
    finally:
        writer.close()


def _command(*words: str) -> bytes:
    parts = [f"*{len(words)}\r\n", *(f"${len(word.encode())}\r\n{word}\r\n" for word in words)]
    return "".join(parts).encode()
