"""Ledgers in SQLite: rows of one vertex. A commit is one transaction.

    commit ──► transaction ──► receipt
                  ▲ └─ failed, so it may be stored: the same again. The mark has the id of the lane's last commit:
                  │      1. it is ours                        ──► receipt
                  └──────2. it belongs to the previous mark   ──► stored now, once
                         3. it is another                     ──► FencedError, or DamageError if it is older

Above it: the vertex process, through `millstream.ledger.protocol`. Below it: the file.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from functools import partial
from typing import NamedTuple
from uuid import uuid4

from google.protobuf.message import DecodeError

from millstream import codes, limits
from millstream.buffers.technology import LostMessages, TornCommit
from millstream.errors import REPAIR, BufferFullError, DamageError, FencedError, InfrastructureError, StorageFullError
from millstream.ledger.batch import check_commit, decode_ids, encode_ids, frame_numbers, frame_sequences
from millstream.ledger.marks import settled, taken_over, takeover
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
from millstream.ledger.witness import ObserverCheck, ReadCheck, name_of, witness_named
from millstream.record import BufferId, LaneId
from millstream.wire.ledger.v1 import mark_pb2
from millstream_toys.sqlite_buffers.database import RETRY_S, Database, UnansweredError

_DURABILITY = Durability(DurabilityLevel.FSYNC, True, "PRAGMA synchronous is FULL")
_PAGE_FRAMES = limits.FRAMES_IN_FLIGHT_MAX
_PAGE_BYTES = limits.READ_AHEAD_BYTES_MAX // 2
_IDS_PAGE = 16
_FRAMES_AFTER = (
    "SELECT sequence, data, name FROM frames WHERE vertex = ? AND buffer = ? AND sequence > ? ORDER BY sequence LIMIT ?"
)
_TRIM = """
DELETE FROM frames WHERE vertex = ? AND buffer = ? AND sequence <= ? AND NOT EXISTS (
  SELECT 1 FROM marks WHERE vertex = frames.vertex AND lane = frames.lane AND sequence = frames.sequence)
RETURNING length(data)
"""


class _Page(NamedTuple):
    """What one snapshot shows a reader."""

    sequence: int
    """The last sequence of the ledger."""
    held: StoredFrame | None
    """The last frame that was read, if it is stored."""
    frames: list[StoredFrame]


class SqliteLedger(OpenLedger):
    """`Ledger` over the rows of one vertex."""

    def __init__(self, database: Database, name: str, vertex: str, ledger_id: str, sharing: Sharing) -> None:
        """`name`: for messages."""
        super().__init__(vertex, name, ledger_id, _DURABILITY, sharing, Holds(packs=False))
        self._database = database
        self._id = ledger_id

    def is_still(self, stored_id: str) -> bool:
        """Whether the stored ledger is this one."""
        return stored_id == self._id

    async def mark(self, lane: LaneId) -> StoredMark | None:
        return await self._database.answered(partial(self._mark, lane=lane))

    async def take_over(self, lane: LaneId, owner: str) -> StoredMark:
        while True:
            stored = await self.mark(lane)
            mark = taken_over(stored, owner, uuid4().bytes)
            try:
                receipt = await self.commit(takeover(lane, mark, stored))
            except FencedError:
                # The previous owner committed, or another one took over, between our read and our write.
                continue
            return StoredMark(mark, receipt.mark_sequence)

    async def commit(self, commit: Commit) -> Receipt:
        ids = list(encode_ids(commit.ids))
        sizes = [*(len(frame.data) for frame in commit.frames), *map(len, ids)]
        check_commit(commit, sizes)
        begun_s = time.monotonic()
        sequence = await self._land(commit, ids)
        size = sum(sizes) + commit.mark.ByteSize()
        self._statistics.committed(time.monotonic() - begun_s, len(sizes) + _has_own_mark(commit), size)
        frames = len(commit.frames)
        return Receipt(sequence, frame_sequences(sequence, frames + _has_own_mark(commit), frames))

    async def _land(self, commit: Commit, ids: Sequence[bytes]) -> int:
        """Repeat the transaction until it is known to be stored. Returns the sequence of the mark."""
        while True:
            try:
                sequence, was_stored = await self._database.change(partial(self._store, commit=commit, ids=ids))
            except UnansweredError:
                await asyncio.sleep(RETRY_S)
            except (BufferFullError, StorageFullError):
                self._statistics.full_refusals += 1
                raise
            else:
                self._statistics.answers_settled += was_stored
                return sequence

    def _store(self, database: sqlite3.Connection, commit: Commit, ids: Sequence[bytes]) -> tuple[int, bool]:
        """The sequence of the mark, and whether an earlier attempt had stored it."""
        where = f"a commit of lane {commit.lane} to {self._name}"
        sequence, size, frames_max, bytes_max = self._row(database, "sequence, bytes, frames_max, bytes_max")
        landed = settled(commit, self._mark(database, commit.lane))
        if landed is not None:
            return landed, True
        key, now_s = (self.vertex, commit.lane.key), time.time()
        expired = "DELETE FROM ids WHERE vertex = ? AND lane = ? AND expires_s <= ? RETURNING length(data)"
        size -= _sizes(database.execute(expired, (*key, now_s)))
        buffers = [self._stored_as(frame.buffer) for frame in commit.frames]
        for buffer, more in Counter(buffers).items():
            of_lane = "SELECT count(*) FROM frames WHERE vertex = ? AND buffer = ? AND lane = ?"
            (there,) = database.execute(of_lane, (self.vertex, buffer, commit.lane.key)).fetchone()
            if there + more > frames_max:
                raise BufferFullError(codes.BUFFER_FULL, f"{where} was refused: buffer {buffer} is full")
        size += sum(len(frame.data) for frame in commit.frames) + sum(map(len, ids))
        if (commit.frames or ids) and size > bytes_max:
            what = f"{where} was refused: the ledger has reached its limit of {bytes_max:,} bytes"
            raise StorageFullError(codes.BROKER_STORAGE_FULL, what)
        for frame, buffer, number in zip(commit.frames, buffers, frame_numbers(commit), strict=True):
            sequence += 1
            name = name_of(commit.lane.key, number, commit.mark.commit_id) if number else ""
            row = (self.vertex, buffer, sequence, commit.lane.key, name, frame.data)
            database.execute("INSERT INTO frames VALUES (?, ?, ?, ?, ?, ?)", row)
        sequence += _has_own_mark(commit)
        database.executemany(
            "INSERT INTO ids (vertex, lane, stored_s, expires_s, data) VALUES (?, ?, ?, ?, ?)",
            ((*key, now_s, now_s + commit.ids_ttl_s, data) for data in ids),
        )
        database.execute("REPLACE INTO marks VALUES (?, ?, ?, ?)", (*key, sequence, commit.mark.SerializeToString()))
        self._update(database, "sequence = ?, bytes = ?", sequence, size)
        return sequence, False

    def _row(self, database: sqlite3.Connection, columns: str) -> tuple[int, ...]:
        """Columns of the ledger's own row. Raises `DamageError` if it is gone."""
        found = database.execute(f"SELECT id, {columns} FROM ledgers WHERE vertex = ?", (self.vertex,)).fetchone()
        if found is None or found[0] != self._id:
            what = "no longer exists" if found is None else f"was replaced by {found[0]}"
            raise DamageError(codes.LEDGER_GONE, f"the ledger {self.ledger_id} {what}. {REPAIR}")
        return tuple(found[1:])

    def _update(self, database: sqlite3.Connection, columns: str, *values: object) -> None:
        statement = f"UPDATE ledgers SET {columns} WHERE vertex = ? AND id = ?"
        if not database.execute(statement, (*values, self.vertex, self._id)).rowcount:
            raise InfrastructureError(codes.LEDGER_REMOVED, f"the ledger {self.ledger_id} no longer exists")

    def _mark(self, database: sqlite3.Connection, lane: LaneId) -> StoredMark | None:
        found = database.execute(
            "SELECT sequence, mark FROM marks WHERE vertex = ? AND lane = ?", (self.vertex, lane.key)
        ).fetchone()
        if found is None:
            return None
        try:
            return StoredMark(mark_pb2.Mark.FromString(found[1]), found[0])
        except DecodeError as error:
            raise DamageError(codes.MARK_UNREADABLE, f"the mark of lane {lane} cannot be read. {REPAIR}") from error

    async def ids(self, lane: LaneId) -> AsyncIterator[StoredIds]:
        query = (
            "SELECT number, stored_s, data FROM ids WHERE vertex = ? AND lane = ? AND expires_s > ? AND number > ? "
            "ORDER BY number LIMIT ?"
        )
        now_s, last = time.time(), 0

        def page(database: sqlite3.Connection) -> list[tuple[int, float, bytes]]:
            return database.execute(query, (self.vertex, lane.key, now_s, last, _IDS_PAGE)).fetchall()

        while found := await self._database.answered(page):
            last = found[-1][0]
            for _, stored_s, data in found:
                try:
                    digests = decode_ids(data)
                except ValueError as error:
                    what = f"remembered record ids of lane {lane} cannot be read: {error}. {REPAIR}"
                    raise DamageError(codes.IDS_UNREADABLE, what) from error
                yield StoredIds(digests, max(0.0, now_s - stored_s))

    def _subject(self, stored: BufferId) -> str:
        return f"{self._name}.{_name_of(stored)}"

    def _frames(
        self, stored: BufferId, after: int, check: ReadCheck | ObserverCheck
    ) -> AbstractAsyncContextManager[AsyncIterator[StoredFrame]]:
        return aclosing(self._arriving(stored, after, check))

    async def _arriving(
        self, buffer: BufferId, after: int, check: ReadCheck | ObserverCheck
    ) -> AsyncGenerator[StoredFrame, None]:
        news, begun = asyncio.Event(), False
        forget = self._database.on_change(news.set)
        try:
            while True:
                # Cleared first: what is stored from here on sets it again.
                news.clear()
                last = check.last.sequence if check.last is not None else 0
                page = await self._database.answered(partial(self._page, buffer=buffer, after=after, last=last))
                if page.sequence < after:
                    what = f"{self._name} was read up to {after}, but has sequences up to {page.sequence}"
                    raise DamageError(codes.LEDGER_CUT, f"{what}: it lost its latest data. {REPAIR}")
                # While frames arrive, the last one that was read may be trimmed.
                if page.held is not None or not page.frames or not begun:
                    check.stored(page.held.witness if page.held is not None else None)
                begun = True
                for frame in page.frames:
                    check.next(frame.witness, frame.sequence)
                    after = frame.sequence
                    self._statistics.read(frame)
                    yield frame
                if not page.frames:
                    await news.wait()
        finally:
            forget()

    def _page(self, database: sqlite3.Connection, buffer: BufferId, after: int, last: int) -> _Page:
        (sequence,) = self._row(database, "sequence")
        frames: list[StoredFrame] = []
        size = 0
        for row in database.execute(_FRAMES_AFTER, (self.vertex, self._stored_as(buffer), after, _PAGE_FRAMES)):
            frames.append(_frame(row))
            size += len(frames[-1].data)
            if size >= _PAGE_BYTES:
                break
        held = database.execute(_FRAMES_AFTER, (self.vertex, self._stored_as(buffer), last - 1, 1)).fetchone()
        return _Page(sequence, _frame(held) if held is not None and held[0] == last else None, frames)

    async def trim(self, through: Mapping[BufferId, int]) -> None:
        def remove(database: sqlite3.Connection) -> None:
            (size,) = self._row(database, "bytes")
            for buffer, last in through.items():
                size -= _sizes(database.execute(_TRIM, (self.vertex, self._stored_as(buffer), last)))
            self._update(database, "bytes = ?", size)

        await self._database.changed(remove)
        self._statistics.trims += 1

    async def leave(self, edges: Collection[str]) -> None:
        sharing = self.sharing.without(edges)
        await self._database.changed(lambda database: self._update(database, "shared = ?", sharing.encode()))
        self.sharing = sharing

    async def peek(self, buffer: BufferId, after: int, frames: int) -> Sequence[StoredFrame]:
        key = (self.vertex, self._stored_as(buffer), after, frames)
        return await self._database.answered(lambda database: list(map(_frame, database.execute(_FRAMES_AFTER, key))))

    async def last_sequence(self, buffer: BufferId) -> int:
        query = "SELECT max(sequence) FROM frames WHERE vertex = ? AND buffer = ?"
        key = (self.vertex, self._stored_as(buffer))
        (last,) = await self._database.answered(lambda database: database.execute(query, key).fetchone())
        return last or 0

    def _stored_as(self, buffer: BufferId) -> str:
        """The name under which the frames of a buffer are stored."""
        return _name_of(self.sharing.stored(buffer))


class SqliteBroker:
    """`Broker` over one file."""

    def __init__(self, database: Database, pipeline: str) -> None:
        self._database = database
        self._pipeline = pipeline
        self._ledgers: dict[str, SqliteLedger] = {}

    async def ledger(self, vertex: str, limits: LedgerLimits) -> Ledger:
        bounds = (limits.frames_per_buffer_max, limits.bytes_max)

        def make(database: sqlite3.Connection) -> None:
            row = (vertex, uuid4().hex, limits.sharing.encode(), *bounds)
            database.execute("INSERT OR IGNORE INTO ledgers VALUES (?, ?, ?, 0, 0, ?, ?)", row)
            database.execute("UPDATE ledgers SET frames_max = ?, bytes_max = ? WHERE vertex = ?", (*bounds, vertex))

        await self._database.changed(make)
        found = await self._found(vertex)
        assert found is not None, "it was made a moment ago"
        return found

    async def existing_ledger(self, vertex: str) -> Ledger | None:
        return await self._found(vertex)

    async def _found(self, vertex: str) -> SqliteLedger | None:
        query = "SELECT id, shared FROM ledgers WHERE vertex = ?"
        found = await self._database.answered(lambda database: database.execute(query, (vertex,)).fetchone())
        if found is None:
            return None
        known = self._ledgers.get(vertex)
        if known is None or not known.is_still(found[0]):
            name = f"{self._pipeline}-{vertex}"
            known = SqliteLedger(self._database, name, vertex, found[0], Sharing.decode(found[1]))
            self._ledgers[vertex] = known
        return known

    async def delete(self, vertex: str | None = None) -> None:
        def remove(database: sqlite3.Connection) -> None:
            for table in ("ledgers", "marks", "frames", "ids"):
                database.execute(f"DELETE FROM {table} WHERE vertex = coalesce(?, vertex)", (vertex,))

        await self._database.changed(remove)
        self._ledgers.clear()


class SqliteRepairs:
    """`Repairs` over one file: no transaction is stored in part, so there is no torn commit."""

    def __init__(self, database: Database, broker: SqliteBroker) -> None:
        self._database = database
        self._broker = broker

    async def last_sequence(self, vertex: str) -> int:
        query = "SELECT coalesce(max(sequence), 0) FROM ledgers WHERE vertex = ?"
        found = await self._database.answered(lambda database: database.execute(query, (vertex,)).fetchone())
        return int(found[0])

    async def lost(self, vertex: str) -> LostMessages | None:
        return None

    async def torn(self, lane: LaneId) -> TornCommit | None:
        return None

    async def cut(self, vertex: str, torn: TornCommit) -> None:
        """Do nothing: no commit is torn."""

    async def holds_mark(self, vertex: str, sequence: int) -> bool:
        # Marks have rows of their own.
        return False

    async def remove(self, vertex: str, buffer: BufferId, sequence: int) -> None:
        ledger = await self._broker.existing_ledger(vertex)
        if ledger is None:
            return
        statement = "DELETE FROM frames WHERE vertex = ? AND buffer = ? AND sequence = ? RETURNING length(data)"
        key = (vertex, _name_of(ledger.sharing.stored(buffer)), sequence)

        def remove(database: sqlite3.Connection) -> None:
            size = _sizes(database.execute(statement, key))
            database.execute("UPDATE ledgers SET bytes = bytes - ? WHERE vertex = ?", (size, vertex))

        await self._database.changed(remove)


def _has_own_mark(commit: Commit) -> bool:
    """Whether the mark has a sequence of its own. That of a single frame without ids is the frame's."""
    return len(commit.frames) != 1 or bool(commit.ids)


def _frame(row: tuple[int, bytes, str]) -> StoredFrame:
    sequence, data, name = row
    return StoredFrame(sequence, data, witness_named(sequence, name))


def _name_of(buffer: BufferId) -> str:
    return f"{buffer.edge}.{buffer.partition}"


def _sizes(rows: Iterable[tuple[int]]) -> int:
    return sum(size for (size,) in rows)
