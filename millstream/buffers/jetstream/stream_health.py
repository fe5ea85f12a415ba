"""Checks the health of a NATS server on this machine with a connection, two requests about its streams, and answers.

Above it: the supervisor of the broker. Below it: the client protocol of NATS, of which it uses four commands.

- *Do the streams answer?* A stream can be blocked while the server answers pings: nats-server 2.15 has a deadlock if a
  write fails during a purge (`fileStore.PurgeEx` holds the lock that `rebuildState` takes). It then logs nothing and
  does not shut down on request. So the first request needs the streams: the first 256, which is the server's page size.
- *Has every write succeeded?* After a write or an fsync of a stream's file has failed, once and for whatever reason (an
  input/output error, a read-only file system, a short write), the server stores no more messages of that stream, does
  not answer those who send them, and answers everything else. It keeps the error for each stream until it ends. So a
  write to another stream would show nothing, and one more to that stream is not needed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from millstream.buffers.jetstream.server_config import HEALTH_SUBJECT
from millstream.json_parser import parse_json
from millstream.nats.access import BrokerAccess

_STREAMS, _WRITES = b"1", b"2"
"""The subscriptions for the two answers."""
_INBOX = "_INBOX.millstream.health"
_QUESTIONS = {_STREAMS: ("$JS.API.STREAM.LIST", ""), _WRITES: (HEALTH_SUBJECT.replace("*", "PING"), '{"details":true}')}
_WRITE_ERROR = "write error"
"""In the text of an error that says that a write has failed. Other errors, such as of a stream that is being restored,
are not for the supervisor."""


async def ask_for_streams(port: int, access: BrokerAccess) -> Sequence[str] | None:
    """What the server says of failed writes, once it has answered, however long that took. None if there is no server,
    or if it closes the connection."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with closing(writer):
            # The server sends INFO first, then the answers, each after a line of its own.
            if access.tls is not None:
                await reader.readline()
                await writer.start_tls(access.tls, server_hostname="127.0.0.1")
            who = {"user": access.user, "pass": access.password}
            commands = [f"CONNECT {json.dumps({'verbose': False, 'name': 'millstream health', **who})}"]
            for number, (subject, payload) in _QUESTIONS.items():
                inbox = f"{_INBOX}.{number.decode()}"
                commands += [f"SUB {inbox} {number.decode()}", f"PUB {subject} {inbox} {len(payload)}", payload]
            writer.write("".join(f"{command}\r\n" for command in commands).encode())
            answers: dict[bytes, bytes] = {}
            while len(answers) < len(_QUESTIONS) and (line := await reader.readline()):
                if line.startswith(b"MSG "):
                    _, _, number_of_answer, *_, size = line.split()
                    answers[number_of_answer] = await reader.readexactly(int(size))
            return failed_writes(answers[_WRITES]) if len(answers) == len(_QUESTIONS) else None
    except (OSError, ValueError, EOFError):
        return None


def failed_writes(answer: bytes) -> Sequence[str]:
    """The failed writes in the server's answer about its health. Raises `ValueError` if it is not one."""
    members: Any = parse_json(answer)
    if not isinstance(members, dict) or not isinstance(data := members.get("data"), dict):
        raise ValueError("not an answer about the health of a server")
    errors = [str(one.get("error", "")) for one in data.get("errors") or ()]
    return [error for error in errors if _WRITE_ERROR in error]
