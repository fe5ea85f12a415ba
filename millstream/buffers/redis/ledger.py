"""Ledgers in Redis or Valkey: one hash and a few streams per vertex.

Above it: the vertex process, through `millstream.ledger.protocol`. Below it: `scripts.py` (atomic operations of the
server), `reading.py`, `durability.py` and the connection.

    commit ──► script ──► answer ─────────────────────────────► receipt
                 ▲          └─ lost: the same script again. The server has the id of the lane's last commit:
                 │               1. it is ours                         ──► receipt
                 └───────────────2. it belongs to the previous mark    ──► stored now, once
                                 3. it is another                      ──► FencedError, or DamageError if it is older
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from uuid import uuid4

from google.protobuf.message import DecodeError

from millstream import codes, limits
from millstream.buffers.redis import durability
from millstream.buffers.redis.connection import (
    AnswerLostError,
    RedisConnection,
    changed,
    pairs,
    tries,
    until_answered,
)
from millstream.buffers.redis.keys import (
    buffer_name,
    counts_key,
    frames_key,
    ids_key,
    index_key,
    ledger_key,
    mark_key,
    vertex_prefix,
)
from millstream.buffers.redis.reading import RedisReader, frames_of, opened, passing
from millstream.buffers.redis.scripts import COMMIT, LEAVE, MAKE, TRIM
from millstream.durable import step
from millstream.errors import REPAIR, BufferFullError, DamageError, FencedError, InfrastructureError, StorageFullError
from millstream.ledger.batch import check_commit, encode_ids, frame_numbers, frame_sequences, remembered
from millstream.ledger.marks import superseded, taken_over, takeover
from millstream.ledger.opened import Holds, OpenLedger
from millstream.ledger.protocol import (
    Commit,
    Durability,
    DurabilityLevel,
    Ledger,
    LedgerLimits,
    Receipt,
    StoredFrame,
    StoredIds,
    StoredMark,
)
from millstream.ledger.sharing import Sharing
from millstream.ledger.witness import ObserverCheck, ReadCheck, name_of
from millstream.record import BufferId, LaneId
from millstream.wire.ledger.v1 import mark_pb2

_log = logging.getLogger(__name__)

LAYOUTS = ("1", "2", "3", "4")
LAYOUT_NOW = LAYOUTS[-1]
"""The layout defines the keys of a ledger and their contents. In the second layout, edges share copies of their frames,
which earlier versions would neither write nor find. In the third, they may do that, and frames may be compressed, which
earlier versions cannot read. In the fourth, a frame may have Arrow columns in place of values, too. A ledger keeps the
layout with which it was created."""
_PEEK_FRAMES = 16
_IDS_PAGE = 16
"""Number of messages of ids in one request; each is well below the size of a frame."""


class RedisLedger(OpenLedger):
    """`Ledger` over the keys of one vertex."""

    def __init__(
        self,
        connection: RedisConnection,
        pipeline: str,
        vertex: str,
        ledger_id: str,
        durability_found: Durability,
        sharing: Sharing,
        layout: int,
    ) -> None:
        self._connection = connection
        self._key = ledger_key(pipeline, vertex)
        self._id = ledger_id
        # A script stores several frames as fast as one.
        holds = Holds(packs=False, compressed=layout >= 3, arrow=layout >= 4)
        super().__init__(vertex, f"{pipeline}-{vertex}", ledger_id, durability_found, sharing, holds)

    async def mark(self, lane: LaneId) -> StoredMark | None:
        sequence, data = await until_answered(self._connection, "HMGET", mark_key(self._key, lane), "sequence", "mark")
        return None if data is None else StoredMark(self._decoded(lane, data), int(sequence))

    async def take_over(self, lane: LaneId, owner: str) -> StoredMark:
        """Write the lane's mark again under the next epoch, which fences earlier owners."""
        while True:
            stored = await self.mark(lane)
            mark = taken_over(stored, owner, uuid4().bytes)
            try:
                with step("redis.take_over", self.vertex):
                    receipt = await self._commit(takeover(lane, mark, stored))
            except FencedError:
                # Another owner took over, or the previous owner committed, between our read and our write.
                continue
            return StoredMark(mark, receipt.mark_sequence)

    async def commit(self, commit: Commit) -> Receipt:
        """Store frames, ids and mark together, or none of them, in one script."""
        with step("redis.commit", self.vertex):
            return await self._commit(commit)

    async def _commit(self, commit: Commit) -> Receipt:
        mark = commit.mark.SerializeToString()
        ids = list(encode_ids(commit.ids))
        check_commit(commit, [*(len(frame.data) for frame in commit.frames), *map(len, ids)])
        # A commit of a single frame without ids has one sequence.
        places = len(commit.frames) + (len(commit.frames) != 1 or bool(ids))
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        sequence = await self._land(commit, *self._arguments(commit, mark, ids))
        size = len(mark) + sum(len(frame.data) for frame in commit.frames) + sum(map(len, ids))
        self._statistics.committed(loop.time() - started_s, places + len(ids), size)
        return Receipt(sequence, frame_sequences(sequence, places, len(commit.frames)))

    def _arguments(
        self, commit: Commit, mark: bytes, ids: Sequence[bytes]
    ) -> tuple[list[str], list[str | int | bytes]]:
        """The keys and arguments of the commit's script."""
        stored = [self.sharing.stored(frame.buffer) for frame in commit.frames]
        buffers = {buffer: number for number, buffer in enumerate(dict.fromkeys(stored), 1)}
        keys = [self._key, mark_key(self._key, commit.lane), ids_key(self._key, commit.lane), counts_key(self._key)]
        for buffer in buffers:
            keys += [frames_key(self._key, buffer), index_key(self._key, buffer)]
        # Rounded up to at least one millisecond.
        ttl_ms = max(1, int(-(-commit.ids_ttl_s * 1000 // 1)))
        arguments: list[str | int | bytes] = [
            self._id,
            commit.lane.key,
            commit.after,
            commit.replaces,
            commit.mark.commit_id,
            mark,
            ttl_ms,
            len(ids),
            len(buffers),
            *map(buffer_name, buffers),
            len(commit.frames),
        ]
        for frame, buffer, number in zip(commit.frames, stored, frame_numbers(commit), strict=True):
            name = name_of(commit.lane.key, number, commit.mark.commit_id) if number else ""
            arguments += [buffers[buffer], name, frame.data]
        return keys, [*arguments, *ids]

    async def _land(self, commit: Commit, keys: Sequence[str], arguments: Sequence[str | int | bytes]) -> int:
        """Send the commit until it is stored. Returns the sequence of its mark."""
        pauses = tries()
        while True:
            try:
                async with asyncio.timeout(limits.COMMIT_TIMEOUT_S):
                    what, *details = await self._connection.change(COMMIT, keys, arguments)
            except (AnswerLostError, TimeoutError) as error:
                _log.info("the answer to a commit of lane %s was lost (%s); sending it again", commit.lane, error)
                await pauses.wait()
                continue
            except StorageFullError:
                self._statistics.full_refusals += 1
                raise
            if what == b"ok":
                return int(details[0])
            if what == b"landed":
                self._statistics.answers_settled += 1
                return int(details[0])
            self._refuse(commit, what, details)

    def _refuse(self, commit: Commit, what: bytes, details: Sequence[bytes]) -> None:
        """Raise the error that the server's refusal means."""
        where = f"a commit of lane {commit.lane} to {self._name}"
        if what == b"full":
            self._statistics.full_refusals += 1
            raise BufferFullError(codes.BUFFER_FULL, f"{where} was refused: buffer {details[0].decode()} is full")
        if what == b"storage":
            self._statistics.full_refusals += 1
            raise StorageFullError(
                codes.BROKER_STORAGE_FULL,
                f"{where} was refused: the ledger has reached its limit of {int(details[0]):,} bytes",
            )
        if what == b"gone":
            raise DamageError(
                codes.LEDGER_GONE,
                f"{where}: the ledger {self._id} at {self._connection.place} no longer exists"
                + (f", and {details[0].decode()} is in its place" if details[0] else "")
                + f". {REPAIR}",
            )
        sequence, data = int(details[0]), details[1]
        raise superseded(commit, StoredMark(self._decoded(commit.lane, data), sequence) if data else None)

    def _decoded(self, lane: LaneId, data: bytes) -> mark_pb2.Mark:
        try:
            return mark_pb2.Mark.FromString(data)
        except DecodeError as error:
            raise DamageError(
                codes.MARK_UNREADABLE,
                f"the mark of lane {lane} ({mark_key(self._key, lane)}) cannot be read, so the position of the lane "
                f"is not known. {REPAIR}",
            ) from error

    async def ids(self, lane: LaneId) -> AsyncIterator[StoredIds]:
        seconds, microseconds = await until_answered(self._connection, "TIME")
        # The time is read before the ids, so an age is rather too low than too high.
        now_ms = int(seconds) * 1000 + int(microseconds) // 1000
        key, after = ids_key(self._key, lane), "-"
        while page := await until_answered(self._connection, "XRANGE", key, after, "+", "COUNT", _IDS_PAGE):
            for entry_id, fields in page:
                stored_ms, expires_ms, data = int(fields[1]), int(fields[3]), fields[5]
                if expires_ms > now_ms:
                    digests = remembered(data, key, entry_id.decode())
                    yield StoredIds(digests, max(0.0, (now_ms - stored_ms) / 1000))
            after = f"({page[-1][0].decode()}"

    def _subject(self, stored: BufferId) -> str:
        return f"{self._name}.{buffer_name(stored)}"

    def _frames(
        self, stored: BufferId, after: int, check: ReadCheck | ObserverCheck
    ) -> AbstractAsyncContextManager[AsyncIterator[StoredFrame]]:
        if isinstance(check, ObserverCheck):
            return aclosing(passing(self._connection, frames_key(self._key, stored), after))
        name = self._subject(stored)
        return opened(RedisReader(self._connection, self._key, self._id, name, stored, after, self._statistics, check))

    async def trim(self, through: Mapping[BufferId, int]) -> None:
        """Remove the frames that every reader has passed."""
        arguments: list[str | int] = [self._id]
        for buffer, last in through.items():
            arguments += [buffer_name(self.sharing.stored(buffer)), last]
        with step("redis.trim", self.vertex):
            if await changed(self._connection, TRIM, [self._key, counts_key(self._key)], arguments) == b"gone":
                raise self._removed()
        self._statistics.trims += 1

    async def leave(self, edges: Collection[str]) -> None:
        sharing = self.sharing.without(edges)
        with step("redis.leave", self.vertex):
            if await changed(self._connection, LEAVE, [self._key], [self._id, sharing.encode()]) == b"gone":
                raise self._removed()
        self.sharing = sharing

    def _removed(self) -> InfrastructureError:
        return InfrastructureError(
            codes.LEDGER_REMOVED,
            f"the ledger {self._name} at {self._connection.place} no longer exists. Restore it, or start the pipeline "
            "over",
        )

    async def peek(self, buffer: BufferId, after: int, frames: int) -> Sequence[StoredFrame]:
        found: list[StoredFrame] = []
        key = frames_key(self._key, self.sharing.stored(buffer))
        while len(found) < frames:
            count = min(_PEEK_FRAMES, frames - len(found))
            page = await until_answered(self._connection, "XRANGE", key, after + 1, "+", "COUNT", count)
            if not page:
                break
            found += frames_of(page)
            after = found[-1].sequence
        return found

    async def last_sequence(self, buffer: BufferId) -> int:
        key = index_key(self._key, self.sharing.stored(buffer))
        last = await until_answered(self._connection, "XREVRANGE", key, "+", "-", "COUNT", 1)
        return int(last[0][0].partition(b"-")[0]) if last else 0


class RedisBroker:
    """`Broker` over one server."""

    def __init__(self, connection: RedisConnection, pipeline: str, require: DurabilityLevel) -> None:
        self._connection = connection
        self._pipeline = pipeline
        self._require = require
        self._ledgers: dict[str, RedisLedger] = {}

    async def ledger(self, vertex: str, limits: LedgerLimits) -> Ledger:
        """Open the ledger of a vertex; create it if it is missing."""
        found = await durability.ask_durability(self._connection)
        durability.check(found, self._require, self._connection.place)
        with step("redis.make", vertex):
            ledger_id, layout, shared = await changed(
                self._connection,
                MAKE,
                [ledger_key(self._pipeline, vertex)],
                [
                    uuid4().hex,
                    LAYOUT_NOW,
                    limits.frames_per_buffer_max,
                    limits.bytes_max,
                    limits.sharing.encode() if limits.sharing else "",
                ],
            )
        return self._opened(vertex, ledger_id.decode(), layout.decode(), found, Sharing.decode(shared))

    async def existing_ledger(self, vertex: str) -> Ledger | None:
        known = pairs(await until_answered(self._connection, "HGETALL", ledger_key(self._pipeline, vertex)))
        if "id" not in known:
            return None
        found = await durability.ask_durability(self._connection)
        return self._opened(
            vertex, known["id"].decode(), known["layout"].decode(), found, Sharing.decode(known.get("shared"))
        )

    async def delete(self, vertex: str | None = None) -> None:
        """Delete the ledgers of a pipeline, or of one of its vertices."""
        vertices = f"{vertex_prefix(self._pipeline, vertex or '*')}l"
        with step("redis.delete"):
            for pattern in (vertices, f"{vertices}:*"):
                await remove_matching(self._connection, pattern)
        self._ledgers.clear()

    def _opened(self, vertex: str, ledger_id: str, layout: str, found: Durability, sharing: Sharing) -> RedisLedger:
        if layout not in LAYOUTS:
            raise InfrastructureError(
                codes.LEDGER_LAYOUT,
                f"the ledger of vertex {vertex} at {self._connection.place} has the layout of another version of "
                f"Millstream (layout {layout}; this one reads {LAYOUTS[0]} to {LAYOUT_NOW}). Continue with that "
                "version, or start the pipeline over",
            )
        known = self._ledgers.get(vertex)
        if known is None or known.ledger_id.partition(" ")[2] != ledger_id:
            known = self._ledgers[vertex] = RedisLedger(
                self._connection, self._pipeline, vertex, ledger_id, found, sharing, int(layout)
            )
        return known


async def remove_matching(connection: RedisConnection, pattern: str) -> None:
    """Remove all keys that match. Repeating it is harmless."""
    cursor = b"0"
    while True:
        cursor, keys = await until_answered(connection, "SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
        if keys:
            await until_answered(connection, "UNLINK", *keys)
        if cursor == b"0":
            return
