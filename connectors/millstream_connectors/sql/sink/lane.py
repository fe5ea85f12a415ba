"""The `sql` sink: rows and the lane's position in one transaction, in any database that SQLAlchemy supports.

    write ─► records after the position ─► BEGIN
                                            move the lane's row, if the lane is still ours (locks it)
                                            INSERT, upsert or DELETE of each record, in their order
                                            COMMIT ─► durable

The lane's row in the table of positions names the owner that opened the lane last. Only that owner can update it, so an
older one changes nothing, however late it resumes. The row is locked from the first statement of a transaction to its
end, so a new owner reads a position with nothing in flight after it. If the answer to a COMMIT is lost, the row is read
again. After a deadlock, a lock timeout or a full disk, the whole transaction is repeated.

Above it: the delivery. Below it: the tables (`target`) and rows (`rows`), and the thread in which the connection is
used; `sinks.refusable` handles records that the database refuses.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import Connection

from millstream import codes
from millstream.durable import step
from millstream.errors import UserError
from millstream.limits import SQL_LOCK_TIMEOUT_S
from millstream.record import Position
from millstream_connectors.shared.failing import on_failure
from millstream_connectors.shared.faults import Fault, check_fit
from millstream_connectors.shared.first_try import first_try
from millstream_connectors.shared.kept import ConvertedRecords, TargetPosition, check_kept, fenced, unknown
from millstream_connectors.shared.refusable import RefusableLane, Refusal, TransactionPart
from millstream_connectors.shared.tables.by_hand import inserted, moved
from millstream_connectors.sql.client import (
    FAILURES,
    SqlThread,
    is_a_lock,
    is_of_a_record,
    open_sql_thread,
    reason_of,
    said,
)
from millstream_connectors.sql.settings import MYSQL, SQLITE, SqlSink
from millstream_connectors.sql.sink.rows import RowChange, SqlFormat
from millstream_connectors.sql.sink.target import SqlStatements
from millstream_writer.connector import SinkOwner
from millstream_writer.sink import SinkFrame, SinkLane

_log = logging.getLogger(__name__)


class SqlSinkLane(RefusableLane[RowChange]):
    """The lane's connection, which is opened when it is needed, and reopened when it is lost."""

    def __init__(self, settings: SqlSink, owner: SinkOwner, way: SqlThread) -> None:
        super().__init__(owner)
        self._settings = settings
        self._way = way
        self._target = SqlStatements(settings)
        self._format = SqlFormat(settings)
        self._token = ""

    def _convert(self, item: SinkFrame) -> ConvertedRecords[RowChange]:
        return self._format.convert(item)

    def _refusal(self, error: Exception) -> Refusal | None:
        return Refusal(reason_of(error), said(error)) if is_of_a_record(error) else None

    @asynccontextmanager
    async def _trying(self) -> AsyncIterator[Callable[[Sequence[RowChange]], Awaitable[None]]]:
        async def attempt(changes: Sequence[RowChange]) -> None:
            await self._way.run(lambda connection: self._attempt(connection, changes))

        await self._way.run(lambda connection: connection.begin())
        yield attempt
        await self._way.run(lambda connection: connection.rollback())

    def _attempt(self, connection: Connection, changes: Sequence[RowChange]) -> None:
        """In the thread: all of these changes or none of them, in the transaction that was begun."""
        savepoint = connection.begin_nested()
        try:
            self._target.put(connection, changes)
        except FAILURES as error:
            try:
                savepoint.rollback()
            except FAILURES:
                # A deadlock ends the whole transaction, and with it the savepoint: what counts is the deadlock.
                if is_of_a_record(error):
                    raise UserError(
                        codes.TARGET_UNFIT,
                        f"{self._owner.where}: {self._settings.table} refuses a record ({said(error)}) and rolls back "
                        "the whole transaction, so the sink cannot tell which record it is. Let the trigger or "
                        "constraint refuse the statement only, as RAISE(ABORT) and ON CONFLICT ABORT do",
                    ) from error
            raise
        savepoint.commit()

    async def _transact(self, part: TransactionPart[RowChange]) -> None:
        changes = part.records()
        if not await self._way.run(lambda connection: self._write(connection, part, changes)):
            raise fenced(self._owner, self._settings.table)

    def _write(self, connection: Connection, part: TransactionPart[RowChange], changes: Sequence[RowChange]) -> bool:
        """Runs in the thread. Whether the lane still belongs to this owner; otherwise nothing is written."""
        owner, target = self._owner, self._target
        try:
            end = max(part.end, self._durable)
            if not target.move(connection, owner.pipeline, owner.name, self._token, end, part.frame):
                return False
            if part.refused:
                target.refuse(connection, owner.pipeline, owner.name, part.refused)
            if changes:
                target.put(connection, changes)
            with step("sql_sink.commit", owner.lane.vertex):
                connection.commit()
        except FAILURES as error:
            # After any other failure, the connection is closed.
            if is_of_a_record(error):
                connection.rollback()
            raise
        return True

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[None]:
        """The connection, after the lane was taken over on it. It is closed at the first failure that does not concern
        a record."""
        with on_failure(self._way.close), self._way.translated():
            if not self._way.is_open:
                await self._open()
            yield

    async def _open(self) -> None:
        way, target, where = self._way, self._target, self._owner.where
        await way.open(create=self._settings.create_table, writes=True)
        check_fit(where, await way.run(target.faults))
        await way.run(target.create)
        check_fit(where, await way.run(target.faults))
        self._format.learn(await way.run(target.types))
        await self._take_over()

    async def _take_over(self) -> None:
        """Fence every earlier owner, and read the position in the target."""
        # The answer to an earlier attempt may be lost: what it wrote still belongs to this lane.
        owner, target, way = self._owner, self._target, self._way
        token = f"{owner.identity}.{uuid4().hex}"
        await way.run(lambda c: self._show_alive(c, token))
        fresh = None if owner.must_be_known else TargetPosition(owner.ledger_id, owner.epoch, token, owner.start, "")
        while True:
            try:
                kept = await way.run(lambda c: target.lock(c, owner.pipeline, owner.name, fresh))
                break
            except FAILURES as error:
                if is_of_a_record(error):
                    # Another owner has inserted the first row of the lane at the same moment.
                    await way.run(lambda c: c.rollback())
                elif is_a_lock(error):
                    await way.run(lambda c: c.rollback())
                    if not await self._end_former():
                        raise
                else:
                    raise
        table = self._settings.table
        if kept is None:
            raise unknown(owner, f"{table} in {self._settings.shown}", f"{inserted(target.positions, owner)} there")
        await check_kept(owner, kept, table, moved(target.positions, owner), ours=kept.owner.startswith(owner.identity))
        refused = await way.run(lambda c: self._own(c, token))
        await owner.note_target()
        self._token = token
        self._taken_over(kept.position, refused)

    def _own(self, connection: Connection, token: str) -> dict[Position, tuple[str, str]]:
        owner, target = self._owner, self._target
        with step("sql_sink.take_over", owner.lane.vertex):
            target.own(connection, owner.pipeline, owner.name, owner.epoch, token)
            refused = target.refused(connection, owner.pipeline, owner.name, owner.start)
            connection.commit()
        return refused

    def _show_alive(self, connection: Connection, token: str) -> None:
        """Lets the next owner find this connection, at a server that can end it. Its number is not enough: after a
        restart, another connection has it."""
        if self._settings.backend not in MYSQL:
            return
        try:
            with connection.begin():
                connection.execute(sa.text("SELECT GET_LOCK(:name, 0)"), {"name": _lock_name(token)})
        except exc.DBAPIError as error:
            # Some clusters have no such locks. Then the sink waits for a hanging owner.
            if error.connection_invalidated:
                raise

    async def _end_former(self) -> bool:
        """A former owner may hold the lane's row: it hangs in a transaction, since it would not take so long. Returns
        whether its connection was ended; if not, another program holds the row."""
        owner, target = self._owner, self._target
        if self._settings.backend not in MYSQL:
            return False
        former = await self._way.run(lambda c: target.owner(c, owner.pipeline, owner.name))

        def kill(connection: Connection) -> bool:
            with connection.begin():
                asked = connection.execute(sa.text("SELECT IS_USED_LOCK(:name)"), {"name": _lock_name(former)})
                number = asked.scalar_one()
                if number is not None:
                    connection.execute(sa.text(f"KILL {int(number)}"))
            return number is not None

        try:
            ended = await self._way.run(kill)
        except FAILURES as error:
            _log.warning("%s: a former owner of the lane cannot be ended: %s", owner.where, said(error))
            return False
        if ended:
            _log.warning(
                "%s: a former owner of the lane did not end its transaction for %g s; ended its connection",
                owner.where,
                SQL_LOCK_TIMEOUT_S,
            )
        return ended


def _lock_name(token: str) -> str:
    """Of the lock by name that an owner's connection holds: at most 64 characters."""
    return f"millstream.{token.split('.')[-1]}"


@asynccontextmanager
async def open_sql_sink(settings: SqlSink, owner: SinkOwner) -> AsyncIterator[SinkLane]:
    """Opens the lane's target and fences every former owner. If the server is away, the first write waits for it."""
    async with open_sql_thread(settings, owner.base_dir, owner.where, "sql-sink") as way:
        lane = SqlSinkLane(settings, owner, way)
        await first_try(lane.open(), _log)
        yield lane


async def look(settings: SqlSink, base_dir: Path) -> list[Fault]:
    """What does not fit, of a database that is reached. Raises Millstream errors where it is not."""
    async with open_sql_thread(settings, base_dir, "validate --online", "sql-look") as way:
        await way.open()
        with way.translated():
            target = SqlStatements(settings)
            faults = await way.run(target.faults)
            if not faults and settings.backend != SQLITE:
                faults = await way.run(target.rights)
            return faults
