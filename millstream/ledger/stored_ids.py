"""Reads the record ids that a lane has stored, to the last one.

Above it: `jetstream.py`. Below it: pages of the stream, and the stream's leader.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from millstream.ledger import batch
from millstream.ledger.requests import RETRY_FIRST_S, pause
from millstream.wire.nats import AnswerLostError, BrokerConnection
from millstream.wire.pages import read_page

_log = logging.getLogger(__name__)

AskLeader = Callable[[Mapping[str, object]], Awaitable[Mapping[str, Any] | None]]
"""One message from the stream's leader; None when it has none like that."""


async def stored_ids(connection: BrokerConnection, stream: str, subject: str, ask_leader: AskLeader) -> set[str]:
    """The ids under `subject` that have not expired. Whoever asks has taken the lane over: no more will follow."""
    last = await ask_leader({"last_by_subj": subject})
    end = int(last["seq"]) if last is not None else 0
    found: set[str] = set()
    after = 0

    def take(sequence: int, _: str, data: bytes) -> None:
        nonlocal after
        found.update(batch.decode_ids(data))
        after = sequence

    wait_s = RETRY_FIRST_S
    while after < end:
        await connection.connected()
        try:
            if await read_page(connection, stream, subject, after, take):
                continue
        except AnswerLostError as error:
            # Silence says nothing about what is stored.
            _log.info("reading %s goes on after %d: %s", subject, after, error)
        else:
            # The last ones may have expired, or whoever answered has not got them yet: the leader knows.
            if await ask_leader({"seq": after + 1, "next_by_subj": subject}) is None:
                break
        wait_s = await pause(wait_s)
    return found
