"""Asks a NATS server on this machine whether it is well: a connection, a ping, its answer.

Above it: the supervisor of the broker. Below it: the client protocol of NATS, of which it needs three words.
"""

from __future__ import annotations

import asyncio
import json

from millstream.buffers.jetstream.access import BrokerAccess

_PONG = b"PONG\r\n"


async def answers_ping(port: int, access: BrokerAccess) -> bool:
    """True when the server has answered, however long that took; False when there is none, or it hangs up."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    try:
        # It greets, and answers what it was asked, a line each.
        if access.tls is not None:
            await reader.readline()
            await writer.start_tls(access.tls, server_hostname="127.0.0.1")
        who = {"user": access.user, "pass": access.password}
        hello = json.dumps({"verbose": False, "name": "millstream health", **who})
        writer.write(f"CONNECT {hello}\r\nPING\r\n".encode())
        while line := await reader.readline():
            if line == _PONG:
                return True
        return False
    except (OSError, ValueError):
        return False
    finally:
        writer.close()
