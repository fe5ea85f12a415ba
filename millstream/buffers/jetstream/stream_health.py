"""Asks a NATS server on this machine whether it is well: a connection, a question about its streams, its answer.

Above it: the supervisor of the broker. Below it: the client protocol of NATS, of which it needs four words.

A stream can stand still while the server answers pings: nats-server 2.15 waits for itself when a purge meets a write
that fails (`fileStore.PurgeEx` holds the lock that `rebuildState` takes), says nothing, and does not end when asked.
So the question is one that the streams have to answer: the first 256, which is what the server puts on a page.
"""

from __future__ import annotations

import asyncio
import json

from millstream.nats.access import BrokerAccess

_ANSWERS = "_INBOX.millstream.health"
_QUESTION = "$JS.API.STREAM.LIST"
"""Needs the state of each stream of the first page."""


async def answers_for_streams(port: int, access: BrokerAccess) -> bool:
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
        writer.write(f"CONNECT {hello}\r\nSUB {_ANSWERS} 1\r\nPUB {_QUESTION} {_ANSWERS} 0\r\n\r\n".encode())
        while line := await reader.readline():
            if line.startswith(b"MSG "):
                return True
        return False
    except (OSError, ValueError):
        return False
    finally:
        writer.close()
