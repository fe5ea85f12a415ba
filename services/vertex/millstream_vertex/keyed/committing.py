"""Commits of a lane that no process runs, to one buffer of its own: its changelog, or its inbox.

    take over ─► a committer for the buffer ─► COMMIT ─► COMMIT ─► ...

Above it: whoever changes, fills or repairs a state from outside, or hands an edit over. Below it: the committer.
"""

from __future__ import annotations

import asyncio

from millstream import codes
from millstream.compression import Compression
from millstream.errors import InfrastructureError
from millstream.ledger.protocol import Ledger, StoredMark
from millstream.limits import REPLAY_TIMEOUT_S
from millstream.record import BufferId, LaneId
from millstream_writer.backpressure import Backpressure
from millstream_writer.committer import Committer, Unit
from millstream_writer.routing import Router


async def committer_to(
    ledger: Ledger, lane: LaneId, taken_over: StoredMark, buffer: BufferId, compression: Compression
) -> Committer:
    """Commits for a lane that was taken over, of which only this buffer is written: no other lane writes to it, and it
    has no soft bound."""
    sequences = {buffer: await ledger.last_sequence(buffer)}
    return Committer(ledger, lane, taken_over, sequences, Router([]), Backpressure({}), compression=compression)


async def commit_in_time(committer: Committer, lane: LaneId, unit: Unit, remedy: str) -> None:
    """Commit a unit with no other effect on the mark. Raises `InfrastructureError`, with the remedy, if the ledger
    takes nothing for long."""
    mark = committer.mark
    try:
        async with asyncio.timeout(REPLAY_TIMEOUT_S):
            await committer.commit([unit], watermark_us=mark.watermark_us, ended=mark.ended)
    except TimeoutError:
        raise InfrastructureError(
            codes.BUFFERS_TAKE_NOTHING,
            f"the ledger of lane {lane} accepts nothing: it is full, or the broker does not answer. {remedy}",
        ) from None
