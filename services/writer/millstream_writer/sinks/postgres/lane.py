"""The PostgreSQL sink: rows, and how far the lane is, in one transaction.

    write ─► what is behind the position ─► BEGIN
                                            move the lane's row, if the lane is still ours (locks it)
                                            COPY, or COPY and merge
                                            COMMIT ─► durable

The lane's row in the table of positions has the owner that opened the lane last. Only that owner can move it, so
an older one, however late it wakes up, changes nothing; and since the row is locked from the first statement of a
transaction to its end, a new owner reads a position with nothing in flight after it. A COMMIT whose answer is lost is
settled by reading that row again.

A record that the database refuses is found by halving the batch, under savepoints. Then everything before the first
such record is committed, and nothing behind it, until the delivery has said what becomes of it: if the lane stops over
it, the order of what follows is as if it had not been tried. That a record was set aside is committed with the position
that passes it, so after a crash it is refused again, and goes again to a fallback that had not stored it.

Above it: the delivery. Below it: the tables (`target`) and rows (`rows`).
"""

from __future__ import annotations

import asyncio
import logging
import sys
import zlib
from bisect import bisect_left
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import uuid4

from millstream import codes
from millstream.durable import step
from millstream.errors import UserError
from millstream.limits import POSTGRES_LOCK_TIMEOUT_S
from millstream.postgres.connecting import (
    FAILURES,
    Connection,
    connect,
    error_of,
    is_of_a_record,
    reason_of,
    sqlstate_of,
)
from millstream.record import Position
from millstream_writer.connector import SinkOwner
from millstream_writer.sink import (
    Guarantee,
    SinkFailure,
    SinkFrame,
    SinkLane,
    WriteResult,
    exact_end,
    exact_position,
    frame_at,
)
from millstream_writer.sinks.kept import Kept, check_kept, fenced
from millstream_writer.sinks.postgres.connector import PostgresSink
from millstream_writer.sinks.postgres.rows import RowFormat, line_of
from millstream_writer.sinks.postgres.target import Target
from millstream_writer.sinks.postgres.typed import Row, typed_rows
from millstream_writer.sinks.reaching import first_try

_log = logging.getLogger(__name__)

_LOCKED = "55P03"


@dataclass(frozen=True, slots=True)
class _Row:
    """A line that is to be written."""

    end: Position
    """Where the lane stands behind its record."""
    line: bytes
    item: int
    """Of its frame, in the write."""
    row: int


@dataclass(frozen=True, slots=True)
class _Part:
    """What goes into one transaction."""

    lines: Sequence[bytes | Row]
    end: Position
    frame: str
    """Name of the frame that the end lies in or behind; empty where it is not known."""
    refused: Sequence[tuple[Position, str, str]] = ()
    """Records that are set aside with it: where each ends, the reason and the detail."""


@dataclass(slots=True)
class _Write:
    """One call of `write`."""

    frames: Sequence[SinkFrame]
    end: Position
    frame: str
    new: list[tuple[int, Sequence[int], Sequence[bytes | Row]]] = field(default_factory=list)
    """What is to be written: of which frame, which records of it, and their lines or rows."""
    refused: list[tuple[Position, str, str]] = field(default_factory=list)
    failures: list[list[SinkFailure]] = field(init=False)
    """Per frame: those of `refused`, and of records that were set aside before."""

    def __post_init__(self) -> None:
        self.failures = [[] for _ in self.frames]

    def lines(self) -> list[bytes | Row]:
        """All that is to be written."""
        return [line for _, _, lines in self.new for line in lines]

    def rows(self) -> list[_Row]:
        """The same, one by one and as lines; for a batch of which something is refused. The table's types may have
        changed, and only of lines does the server itself say what it does not take."""
        return [
            _Row(
                exact_position(self.frames[number], self.frames[number].indexes()[row] + 1), line_of(line), number, row
            )
            for number, rows, lines in self.new
            for row, line in zip(rows, lines, strict=True)
        ]

    def result(self) -> WriteResult:
        """What became of it."""
        return WriteResult(self.failures if any(self.failures) else ())


def _failure(row: int, reason: str, detail: str) -> SinkFailure:
    return SinkFailure(row, reason, retryable=False, detail=detail, shows_value=True)


class PostgresSinkLane:
    """The lane's connection, which is opened when it is needed, and again when it is lost."""

    def __init__(self, settings: PostgresSink, owner: SinkOwner) -> None:
        self._settings = settings
        self._owner = owner
        self._target = Target(settings)
        self._format = RowFormat(settings)
        # The names of pipelines and lanes may be longer than what the server keeps of this one.
        self._application = f"millstream {zlib.crc32(f'{owner.pipeline}/{owner.name}'.encode()):08x} {owner.name}"[:60]
        self._identity = uuid4().hex
        self._token = ""
        self._connection: Connection | None = None
        self._durable = owner.start
        self._refused: dict[Position, tuple[str, str]] = {}
        self._rest: _Part | None = None

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.AT_LEAST_ONCE if self._owner.fallback else Guarantee.EXACTLY_ONCE_TRANSACTIONAL

    @property
    def durable(self) -> Position | None:
        return self._durable

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        async with self._session() as connection:
            await self._finish(connection)
            # Only now it is known how far the target is.
            write = _Write(frames, *self._reached(frames, end))
            for number, item in enumerate(frames):
                self._sort(write, number, item)
            if write.refused or not await self._tried(connection, write):
                await self._without_refused(connection, write)
        return write.result()

    @property
    def collects(self) -> bool:
        return False

    @property
    def is_ripe(self) -> bool:
        return self._rest is not None

    @property
    def delivery_records_max(self) -> int:
        return sys.maxsize

    async def reach(self) -> Position:
        async with self._session():
            return self._durable

    async def flush(self) -> None:
        if self._rest is not None:
            async with self._session() as connection:
                await self._finish(connection)

    async def tick(self) -> None:
        await self.flush()

    async def open(self) -> None:
        """Connect, and take the lane over."""
        async with self._session():
            pass

    def close(self) -> None:
        """Ends the connection; what was not committed is gone."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    # What is written

    def _sort(self, write: _Write, number: int, item: SinkFrame) -> None:
        """What of a frame is to be written, and what is refused."""
        converted = self._format.convert(item)
        indexes = item.indexes()
        for row, index in enumerate(indexes if self._refused else ()):
            end = exact_position(item, index + 1)
            if end in self._refused and not self._is_new(end):
                reason, detail = self._refused[end]
                write.failures[number].append(_failure(row, reason, detail))
        for failure in converted.failures:
            end = exact_position(item, indexes[failure.index] + 1)
            if self._is_new(end):
                write.failures[number].append(failure)
                write.refused.append((end, failure.reason, failure.detail))
        rows = converted.rows
        start = bisect_left(rows, True, key=lambda row: self._is_new(exact_position(item, indexes[row] + 1)))
        write.new.append((number, rows[start:], converted.lines[start:]))

    def _is_new(self, end: Position) -> bool:
        # A fallback gets some records only, and maybe others when they are offered again.
        return self._owner.fallback or end > self._durable

    def _reached(self, frames: Sequence[SinkFrame], end: Position) -> tuple[Position, str]:
        """Where the lane stands behind a write, and the name of the frame that it stands in or behind."""
        reached = exact_end(frames, end)
        is_last = bool(frames) and frames[-1].sequence == frame_at(reached)
        if reached <= self._durable:
            return self._durable, ""
        return reached, frames[-1].name if is_last else ""

    async def _tried(self, connection: Connection, write: _Write) -> bool:
        """Whether all of it is committed; False when the database refuses something of it, and nothing is."""
        try:
            await self._commit(connection, _Part(write.lines(), write.end, write.frame))
        except FAILURES as error:
            if not is_of_a_record(error):
                raise
            return False
        return True

    async def _without_refused(self, connection: Connection, write: _Write) -> None:
        """Find what the database refuses; commit what comes before, and keep the rest until the next call."""
        rows = write.rows()
        bad = await self._find(connection, rows)
        for row, error in bad:
            reason, detail = reason_of(error), str(error)
            write.failures[row.item].append(_failure(row.row, reason, detail))
            write.refused.append((row.end, reason, detail))
        if not write.refused:
            # What was in the way has gone meanwhile, or is not in the way of lines.
            await self._commit(connection, _Part([row.line for row in rows], write.end, write.frame))
            return
        # A whole delivery is one transaction, which is not made before it is known what becomes of these.
        first = Position(0) if self._owner.whole else min(end for end, _, _ in write.refused)
        before = [row for row in rows if row.end < first]
        if before:
            last = before[-1]
            lines = [row.line for row in before]
            await self._commit(connection, _Part(lines, last.end, write.frames[last.item].name))
        refused = {id(row) for row, _ in bad}
        behind = [row.line for row in rows if row.end >= first and id(row) not in refused]
        self._rest = _Part(behind, write.end, write.frame, write.refused)

    async def _find(self, connection: Connection, rows: Sequence[_Row]) -> list[tuple[_Row, BaseException]]:
        """The rows that the database refuses behind those before them. Nothing of the attempt stays."""
        found: list[tuple[_Row, BaseException]] = []
        async with asyncio.timeout(self._settings.timeout_s):
            transaction = connection.transaction()
            await transaction.start()
            open_ = [rows] if rows else []
            while open_:
                part = open_.pop()
                try:
                    async with connection.transaction():
                        await self._target.put(connection, [row.line for row in part])
                except FAILURES as error:
                    if not is_of_a_record(error):
                        raise
                    if len(part) == 1:
                        found.append((part[0], error))
                    else:
                        half = len(part) // 2
                        open_ += [part[half:], part[:half]]
            await transaction.rollback()
        return found

    async def _finish(self, connection: Connection) -> None:
        """What a write left: its records that were refused have been dealt with."""
        if self._rest is None:
            return
        rest = self._rest
        try:
            if rest.end > self._durable:
                await self._commit(connection, rest)
        except FAILURES as error:
            if is_of_a_record(error):
                # It was taken before; the lane continues from its mark, and meets the record as the first time.
                what = f"{self._owner.where}: the database refuses a record that it would have taken before: {error}"
                raise UserError(codes.SINK_REFUSED, what) from error
            raise
        self._refused.update({at: (reason, detail) for at, reason, detail in rest.refused})
        self._rest = None

    async def _commit(self, connection: Connection, part: _Part) -> None:
        """One transaction: rows and the position after them."""
        owner, target = self._owner, self._target
        if part.end <= self._durable and not part.lines:
            return
        async with asyncio.timeout(self._settings.timeout_s):
            transaction = connection.transaction()
            await transaction.start()
            try:
                if not await target.move(
                    connection, owner.pipeline, owner.name, self._token, max(part.end, self._durable), part.frame
                ):
                    raise fenced(owner, self._settings.table)
                if part.refused:
                    await target.refuse(connection, owner.pipeline, owner.name, part.refused)
                if part.lines:
                    await target.put(connection, part.lines)
                with step("postgres_sink.commit", owner.lane.vertex):
                    await transaction.commit()
            except FAILURES as error:
                # After any other failure the connection is given up.
                if is_of_a_record(error):
                    await transaction.rollback()
                raise
        self._durable = max(self._durable, part.end)

    # The connection

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Connection]:
        """The connection, the lane taken over on it. It is given up at the first failure that is not a record's."""
        try:
            if self._connection is None or self._connection.is_closed():
                self._connection = await self._open()
            yield self._connection
        except FAILURES as error:
            self.close()
            raise error_of(error, self._settings, self._owner.where) from error
        except BaseException:
            self.close()
            raise

    async def _open(self) -> Connection:
        connection = await connect(self._settings, self._owner.base_dir, self._owner.where, self._application)
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                await self._target.create(connection)
                faults = await self._target.faults(connection)
                if faults:
                    what = "; ".join(f"{fault.what} (expected: {fault.expected})" for fault in faults)
                    raise UserError(codes.TARGET_UNFIT, f"{self._owner.where}: {what}")
                await self._take_over(connection)
                await self._target.prepare(connection)
                if self._settings.delete_when is None:
                    types = await self._target.types(connection)
                    self._format.typed = typed_rows(self._settings.row, types)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _take_over(self, connection: Connection) -> None:
        """Fence every earlier owner, and read the target's position."""
        # The answer to an earlier attempt may be lost: what it left is still this lane's own.
        owner, token = self._owner, f"{self._identity}.{uuid4().hex}"
        await connection.execute(f"SET lock_timeout TO {int(POSTGRES_LOCK_TIMEOUT_S * 1000)}")
        while True:
            try:
                with step("postgres_sink.take_over", owner.lane.vertex):
                    async with connection.transaction():
                        kept = await self._owned(connection, token)
                        refused = await self._target.refused(connection, owner.pipeline, owner.name, owner.start)
                break
            except FAILURES as error:
                if sqlstate_of(error) != _LOCKED:
                    raise
                await self._end_former(connection)
        await connection.execute("SET lock_timeout TO DEFAULT")
        self._token = token
        if owner.fallback:
            return
        self._durable = max(self._durable, kept.position)
        self._refused = refused
        if self._rest is not None and self._rest.end <= self._durable:
            self._rest = None

    async def _owned(self, connection: Connection, token: str) -> Kept:
        """The lane's row, under this owner. Raises where it is not this owner's to take."""
        owner, target, table = self._owner, self._target, self._settings.table
        kept = await target.kept(connection, owner.pipeline, owner.name)
        if kept is None:
            fresh = Kept(owner.ledger_id, owner.epoch, token, owner.start, "")
            await target.begin_lane(connection, owner.pipeline, owner.name, fresh)
            kept = await target.kept(connection, owner.pipeline, owner.name)
            assert kept is not None, "it was made, or another owner had made it"
        remedy = f"`DELETE FROM {target.positions} WHERE pipeline = '{owner.pipeline}' AND lane = '{owner.name}'`"
        await check_kept(owner, kept, table, remedy, ours=kept.owner.startswith(self._identity))
        await target.own(connection, owner.pipeline, owner.name, owner.epoch, token)
        return kept

    async def _end_former(self, connection: Connection) -> None:
        """A former owner holds the lane's row: it hangs in a transaction, since it would not take so long."""
        ended = await connection.fetchval(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = $1 "
            "AND pid <> pg_backend_pid() AND usename = current_user AND datname = current_database()",
            self._application,
        )
        _log.warning(
            "%s: a former owner of the lane did not end its transaction for %g s; ended %d connection(s) of it",
            self._owner.where,
            POSTGRES_LOCK_TIMEOUT_S,
            ended,
        )


@asynccontextmanager
async def open_postgres_sink(settings: PostgresSink, owner: SinkOwner) -> AsyncIterator[SinkLane]:
    """The lane's target, every former owner fenced. A server that is away is waited for by the first write."""
    lane = PostgresSinkLane(settings, owner)
    try:
        await first_try(lane.open(), _log)
        yield lane
    finally:
        lane.close()
