"""The PostgreSQL sink: rows and the lane's position in one transaction.

    write ─► records after the position ─► BEGIN
                                            move the lane's row, if the lane is still ours (locks it)
                                            COPY, or COPY and merge, of frames that are converted meanwhile
                                            COMMIT ─► durable

The client sends a COPY in parts of half a megabyte. While the server takes one, the frames of the next one are
converted. If a record cannot be, the transaction is rolled back, as if the database had refused the record.

The lane's row in the table of positions names the owner that opened the lane last. Only that owner can update it, so an
older one changes nothing, however late it resumes. The row is locked from the first statement of a transaction to its
end, so a new owner reads a position with nothing in flight after it. If the answer to a COMMIT is lost, the row is read
again.

Above it: the delivery. Below it: the tables (`target`) and rows (`rows`); `sinks.refusable` handles records that the
database refuses.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing
from uuid import uuid4

from millstream.durable import step
from millstream.limits import POSTGRES_LOCK_TIMEOUT_S
from millstream.plurals import counted
from millstream_connectors.postgres.client import (
    FAILURES,
    Connection,
    Login,
    is_of_a_record,
    reason_of,
    sqlstate_of,
)
from millstream_connectors.postgres.settings import PostgresSink
from millstream_connectors.postgres.sink.rows import CopyFormat
from millstream_connectors.postgres.sink.target import PostgresStatements
from millstream_connectors.postgres.sink.typed import Row, typed_rows
from millstream_connectors.shared.failing import on_failure
from millstream_connectors.shared.faults import check_fit
from millstream_connectors.shared.first_try import first_try
from millstream_connectors.shared.kept import ConvertedRecords, TargetPosition, check_kept, fenced, unknown
from millstream_connectors.shared.refusable import RefusableLane, Refusal, TransactionPart, UnfitError
from millstream_connectors.shared.tables.by_hand import inserted, moved
from millstream_writer.connector import SinkOwner
from millstream_writer.sink import SinkFrame, SinkLane

_log = logging.getLogger(__name__)

_LOCKED = "55P03"


class PostgresSinkLane(RefusableLane[bytes | Row]):
    """The lane's connection, which is opened when it is needed, and reopened when it is lost."""

    def __init__(self, settings: PostgresSink, owner: SinkOwner) -> None:
        super().__init__(owner)
        self._settings = settings
        self._format = CopyFormat(settings)
        self._target = PostgresStatements(settings, self._format.line_of)
        # The names of pipelines and lanes may be longer than the server's limit for this name.
        application = f"millstream {zlib.crc32(f'{owner.pipeline}/{owner.name}'.encode()):08x} {owner.name}"[:60]
        self._login = Login(settings, owner.base_dir, owner.where, application)
        self._token = ""
        self._connection: Connection | None = None

    def close(self) -> None:
        """Close the connection and drop its uncommitted changes."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    def _convert(self, item: SinkFrame) -> ConvertedRecords[bytes | Row]:
        return self._format.convert(item)

    def _alone(self, made: bytes | Row) -> bytes:
        # The table's types may have changed, and only for text lines does the server itself report the faulty value.
        return self._format.line_of(made)

    def _refusal(self, error: Exception) -> Refusal | None:
        return Refusal(reason_of(error), str(error)) if is_of_a_record(error) else None

    @asynccontextmanager
    async def _trying(self) -> AsyncIterator[Callable[[Sequence[bytes | Row]], Awaitable[None]]]:
        connection = self._connection
        assert connection is not None, "it is used only in a session"

        async def attempt(lines: Sequence[bytes | Row]) -> None:
            async with connection.transaction():
                await self._target.put(connection, [lines])

        async with asyncio.timeout(self._settings.timeout_s):
            transaction = connection.transaction()
            await transaction.start()
            yield attempt
            await transaction.rollback()

    async def _transact(self, part: TransactionPart[bytes | Row]) -> None:
        owner, target, connection = self._owner, self._target, self._connection
        assert connection is not None, "it is used only in a session"
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
                await target.put(connection, part.made)
                with step("postgres_sink.commit", owner.lane.vertex):
                    await transaction.commit()
            except (*FAILURES, UnfitError) as error:
                # After any other failure, the connection is closed.
                if isinstance(error, UnfitError) or is_of_a_record(error):
                    await transaction.rollback()
                raise

    # The connection

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Connection]:
        """The connection, after the lane was taken over on it. It is closed at the first failure that does not concern
        a record."""
        with on_failure(self.close), self._login.translated():
            if self._connection is None or self._connection.is_closed():
                self._connection = await self._open()
            yield self._connection

    async def _open(self) -> Connection:
        connection = await self._login.connect()
        with on_failure(connection.terminate):
            async with asyncio.timeout(self._settings.timeout_s):
                await self._target.create(connection)
                check_fit(self._owner.where, await self._target.faults(connection))
                await self._take_over(connection)
                await self._target.prepare(connection)
                self._format.arrays = await self._target.arrays(connection)
                types = await self._target.types(connection)
                self._format.json = {name for name, kind in types.items() if kind in ("json", "jsonb")}
                if self._settings.delete_when is None:
                    keys = self._settings.keys if self._format.identified else ()
                    whole = self._settings.mode == "upsert"
                    self._format.typed = typed_rows(self._settings.row, types, keys, whole=whole)
        return connection

    async def _take_over(self, connection: Connection) -> None:
        """Fence every earlier owner, and read the position in the target."""
        # The answer to an earlier attempt may be lost: what it wrote still belongs to this lane.
        owner, token = self._owner, f"{self._owner.identity}.{uuid4().hex}"
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
        await owner.note_target()
        self._token = token
        self._taken_over(kept.position, refused)

    async def _owned(self, connection: Connection, token: str) -> TargetPosition:
        """The lane's row, under this owner. Raises if this owner may not take it."""
        owner, target, table = self._owner, self._target, self._settings.table
        kept = await target.kept(connection, owner.pipeline, owner.name)
        if kept is None:
            if owner.must_be_known:
                raise unknown(owner, f"the table {table}", f"{inserted(target.positions, owner)} there")
            fresh = TargetPosition(owner.ledger_id, owner.epoch, token, owner.start, "")
            await target.begin_lane(connection, owner.pipeline, owner.name, fresh)
            kept = await target.kept(connection, owner.pipeline, owner.name)
            assert kept is not None, "this owner or another one has inserted it"
        await check_kept(owner, kept, table, moved(target.positions, owner), ours=kept.owner.startswith(owner.identity))
        await target.own(connection, owner.pipeline, owner.name, owner.epoch, token)
        return kept

    async def _end_former(self, connection: Connection) -> None:
        """Terminate a former owner that holds the lane's row: it must be hanging in a transaction, which would not take
        so long."""
        ended = await connection.fetchval(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = $1 "
            "AND pid <> pg_backend_pid() AND usename = current_user AND datname = current_database()",
            self._login.application,
        )
        _log.warning(
            "%s: a former owner of the lane did not end its transaction for %g s; ended %s of it",
            self._owner.where,
            POSTGRES_LOCK_TIMEOUT_S,
            counted(ended, "connection"),
        )


@asynccontextmanager
async def open_postgres_sink(settings: PostgresSink, owner: SinkOwner) -> AsyncIterator[SinkLane]:
    """Opens the lane's target and fences every former owner. If the server is away, the first write waits for it."""
    with closing(PostgresSinkLane(settings, owner)) as lane:
        await first_try(lane.open(), _log)
        yield lane
