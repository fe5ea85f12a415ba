"""Reads all record ids that a lane has stored.

Above it: `ledger.py`. Below it: pages of the stream, and the stream's leader.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from datetime import datetime

from millstream.buffers.jetstream.pages import PageMessage, read_page
from millstream.buffers.jetstream.requests import Get, tries
from millstream.ledger.batch import remembered
from millstream.ledger.protocol import StoredIds
from millstream.nats.connection import AnswerLostError, BrokerConnection

_log = logging.getLogger(__name__)


async def stored_ids(
    connection: BrokerConnection, stream: str, lane: str, ids: str, ask_leader: Get
) -> AsyncIterator[StoredIds]:
    """The ids of a lane under the subject `ids` that have not expired. The caller has taken the lane over, so no more
    will follow."""
    last, newest = await ask_leader({"last_by_subj": ids}), await ask_leader({"last_by_subj": lane})
    if last is None or newest is None:
        return
    # The takeover was stored a moment ago, and its time is from the same clock as the times of the ids.
    now_s = _seconds(newest["time"])
    page: list[tuple[int, StoredIds]] = []

    def take(message: PageMessage) -> None:
        age_s = now_s - _seconds(message.time)
        digests = remembered(message.data, stream, f"{message.subject}, sequence {message.sequence}")
        page.append((message.sequence, StoredIds(digests, max(0.0, age_s))))

    after, pauses = 0, tries()
    while after < int(last["seq"]):
        await connection.connected()
        remaining: int | None = None
        try:
            remaining = await read_page(connection, stream, ids, after, take)
        except AnswerLostError as error:
            # Silence says nothing about what is stored.
            _log.info("reading %s continues after %d: %s", ids, after, error)
        for sequence, stored in page:
            after = sequence
            yield stored
        page.clear()
        if remaining:
            continue
        # The last ids may have expired, or the server that answered may not have them yet. The leader knows.
        if remaining == 0 and await ask_leader({"seq": after + 1, "next_by_subj": ids}) is None:
            return
        await pauses.wait()


def _seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()
