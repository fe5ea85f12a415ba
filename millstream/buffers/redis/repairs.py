"""The operations of a repair on a ledger in Redis.

A commit is stored completely or not at all, and after a restart the server has only complete ones. So there are no torn
commits to cut, and only marks, numbers and witnesses show lost data.

Above it: the repair. Below it: the ledger's keys.
"""

from __future__ import annotations

from millstream.buffers.redis.connection import RedisConnection, changed, until_answered
from millstream.buffers.redis.keys import buffer_name, counts_key, ledger_key
from millstream.buffers.redis.scripts import REMOVE
from millstream.buffers.technology import LostMessages, TornCommit
from millstream.durable import step
from millstream.ledger.sharing import Sharing
from millstream.record import BufferId, LaneId


class RedisRepairs:
    """`Repairs` over the keys of a pipeline."""

    def __init__(self, connection: RedisConnection, pipeline: str) -> None:
        self._connection = connection
        self._pipeline = pipeline

    async def last_sequence(self, vertex: str) -> int:
        return int(await until_answered(self._connection, "HGET", ledger_key(self._pipeline, vertex), "sequence") or 0)

    async def lost(self, vertex: str) -> LostMessages | None:
        return None

    async def torn(self, lane: LaneId) -> TornCommit | None:
        return None

    async def cut(self, vertex: str, torn: TornCommit) -> None:
        """Do nothing: there are no torn commits."""

    async def holds_mark(self, vertex: str, sequence: int) -> bool:
        # Marks have separate keys.
        return False

    async def remove(self, vertex: str, buffer: BufferId, sequence: int) -> None:
        """Remove one message of a buffer."""
        ledger = ledger_key(self._pipeline, vertex)
        shared = await until_answered(self._connection, "HGET", ledger, "shared")
        name = buffer_name(Sharing.decode(shared).stored(buffer))
        with step("redis.remove"):
            await changed(self._connection, REMOVE, [ledger, counts_key(ledger)], [name, sequence])
