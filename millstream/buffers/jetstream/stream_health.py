"""Checks the health of a NATS server on this machine with a connection, a request about its streams, and the answer.

Above it: the supervisor of the broker. Below it: the client protocol of NATS, of which it uses four commands.

A stream can be blocked while the server answers pings: nats-server 2.15 has a deadlock if a write fails during a purge
(`fileStore.PurgeEx` holds the lock that `rebuildState` takes). It then logs nothing and does not shut down on request.
So this sends a request that needs the streams: the first 256, which is the server's page size.
"""

from __future__ import annotations

import asyncio
import json

from millstream.nats.access import BrokerAccess

_ANSWERS = "_INBOX.millstream.health"
_QUESTION = "$JS.API.STREAM.LIST"
"""The answer needs the state of each stream on the first page."""


async def answers_for_streams(port: int, access: BrokerAccess) -> bool:
    """True when the server has answered, however long that took; False if there is no server, or if it closes the
    connection."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    try:
        # The server sends INFO first, then the answers, each on a line.
        if access.tls is not None:
            await reader.readline()
            await writer.start_tls(access.tls, server_hostname="127.0.0.1")
        who = {"user": access.user, "pass": access.password}
        hello = json.dumps({"verbose": False, "name": "millstream health", **who})
        writer.write(f"CONNECT {hello}\r\nSUB {_ANSWERS} 1\r\nPUB {_QUESTION} {_ANSWERS} 0\r\n\r\n".encode())
        while line := await reader.readline():
            if line.startswith(b"MSG "):
                return True
        return False
    except (OSError, ValueError):
        return False
    finally:
        writer.close()
