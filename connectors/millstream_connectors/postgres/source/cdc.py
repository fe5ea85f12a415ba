"""Changes of PostgreSQL tables: the existing rows, then each change, from the position in the lane's mark.

    slot, created first ─► snapshot: rows by key, part by part ─► changes that no part has seen ─► frames
         ▲                                                                                            │
         └───────────── confirm: committed changes are not needed any more ◄──── committed ◄──────┘

The slot keeps the server's WAL from before the snapshot on, so nothing is missing between the two. It follows the
lane's commits and is never trusted: the lane skips changes that it has, and a slot that is ahead has lost some. If only
other tables change, the lane commits its progress past these changes, so that the server's WAL does not grow.

Above it: a source lane. Below it: the rows of the snapshot (`snapshot_reader`), the changes of the slot
(`slot`, `changes`), the server's catalog (`catalog`), and a connection for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from typing import NamedTuple

from millstream import codes
from millstream.background import beside
from millstream.errors import DamageError, MillstreamError, RetryLaterError, UserError
from millstream.limits import POSTGRES_FEEDBACK_EVERY_S, POSTGRES_IDLE_BYTES, POSTGRES_OPEN_REPORTED_EVERY_S
from millstream.pauses import Pauses
from millstream_connectors.postgres.client import FAILURES, Connection, sqlstate_of
from millstream_connectors.postgres.replication import CdcLogin, ServerPosition, lsn_text
from millstream_connectors.postgres.settings import PostgresCdc, PostgresSource
from millstream_connectors.postgres.source import catalog, publication
from millstream_connectors.postgres.source.changes import (
    ChangeRecord,
    MustAskError,
    SlotChanges,
    Table,
    TruncatedError,
)
from millstream_connectors.postgres.source.pgoutput import (
    Begin,
    Message,
    NotPgoutputError,
    Relation,
    ReplicatedChange,
    TransactionEnd,
    Truncate,
    parse,
)
from millstream_connectors.postgres.source.slot import SlotStream, SlotWatch, check_published, renamed
from millstream_connectors.postgres.source.snapshot import Key, Snapshot, SnapshotTable, unpacked
from millstream_connectors.postgres.source.snapshot_reader import SnapshotReader, key_of
from millstream_connectors.shared.failing import on_failure
from millstream_connectors.shared.faults import check_fit
from millstream_connectors.shared.reaching import RemoteLane
from millstream_connectors.shared.record_batch import RecordBatch
from millstream_reader.connector import SourceOwner
from millstream_reader.source import SourceBatch, SourceLane

_LOOK_FIRST_S, _LOOK_LAST_S = 0.005, 0.1
"""Pause between checks of transactions that the lane waits for."""
_TICK_S = 1.0
"""Interval at which the lane confirms to the server what was committed."""
_IN_USE = "55006"
_IN_USE_S = 5.0
"""How long another process of this lane may hold the slot before its connection is terminated."""
_ASKED_AT_ONCE = 500
"""Keys."""

_log = logging.getLogger(__name__)


class _Returned(NamedTuple):
    """The last position that was returned."""

    position: bytes
    lsn: int
    at_s: float


class PostgresCdcLane(RemoteLane):
    """One lane. See `SourceLane`."""

    kind = "postgresCdc"
    noun = "a postgres source with `cdc`"

    def __init__(self, spec: PostgresSource, cdc: PostgresCdc, owner: SourceOwner) -> None:
        super().__init__(owner, _log)
        self._spec = spec
        self._cdc = cdc
        self._login = CdcLogin(spec, owner.base_dir, self._where, f"millstream {owner.lane} {cdc.slot}"[:63], cdc)
        self._system = ""
        self._changes = SlotChanges(0, 0, None)
        self._snapshot: SnapshotReader | None = None
        """The snapshot that is being read; None if there is none."""
        self._since_us = 0
        """The event time of its rows: all changes that follow were committed later."""
        self._stream = SlotStream(self._login, owner.clock, owner.lane.vertex)
        self._watch = SlotWatch(self._login)
        self._end_lsn: int | None = None
        self._control: Connection | None = None
        self._lock = asyncio.Lock()
        """Closes `_control`."""
        self._names: dict[int, str] = {}
        """The tables that are named, by their ids, which they keep when they are renamed."""
        self._created: list[Callable[[Connection, PostgresCdc], Awaitable[None]]] = []
        """How to remove what this lane has created on the server."""
        self._returned = _Returned(b"", 0, 0.0)
        self._in_use_since_s: float | None = None

    async def open(self) -> None:
        """Errors: those of `SourceConnector.open`."""
        if self._is_idle:
            return
        self._restore()
        try:
            await self._connected()
        except MillstreamError:
            await self._undo()
            raise

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> SourceBatch:
        if self._is_idle or self._draining or self._is_ended():
            ended = self._is_idle or (self._is_ended() and not self._draining)
            return SourceBatch(None, self._returned.position, ended=ended)
        if self._watch.fault is not None:
            raise self._watch.fault
        try:
            return await self._read(records_max, bytes_max, timeout_s)
        except UserError:
            await self._undo()
            raise

    async def _read(self, records_max: int, bytes_max: int, timeout_s: float) -> SourceBatch:
        into = RecordBatch("its JSON")
        try:
            with on_failure(self.close), self._login.translated():
                await self._fill(timeout_s)
                await self._take(into, records_max, bytes_max)
        except RetryLaterError as error:
            self._reaching.failed(error)
        except NotPgoutputError as error:
            raise UserError(
                codes.TARGET_UNFIT, f"{self._where}: cannot read a message of the slot {self._cdc.slot}: {error}"
            ) from error
        frame = into.frame(self._owner.clock.now_us())
        ended = self._is_ended()
        if frame is not None or into.invalid or ended or self._is_due():
            self._returned = _Returned(self._position(), self._changes.lsn, self._now_s())
        return SourceBatch(frame, self._returned.position, ended=ended, invalid=tuple(into.invalid))

    async def committed(self, position: bytes) -> None:
        if self._is_idle:
            return
        body = self._unpacked(position)
        if body is not None:
            self._stream.committed(int(body["lsn"]))

    def pending_bytes(self) -> int | None:
        """Of the server's log that were not read, those of other tables and databases among them."""
        at = max(self._watch.flushed_lsn, self._stream.server_lsn)
        return max(0, at - self._changes.lsn) if at else None

    def close(self) -> None:
        """Close the connections. What was fetched and not read is fetched again."""
        self._stream.close()
        if self._snapshot is not None:
            self._snapshot.close()
        if self._control is not None:
            self._control.terminate()
            self._control = None
        self._changes.tail = None
        self._changes.tables.clear()

    async def tick(self) -> None:
        """Confirm the lane's position to the server, and check the WAL that it keeps, even while nothing is read."""
        while True:
            await asyncio.sleep(_TICK_S)
            self._stream.tick()
            if self._watch.is_due(self._now_s()):
                await self._look_at_slot()

    # The lane's position

    @property
    def _is_idle(self) -> bool:
        """A slot has one stream; further partitions have nothing to read."""
        return self._owner.lane.partition > 0

    def _restore(self) -> None:
        position = self._owner.position
        body = self._unpacked(position)
        if body is None:
            return
        with self._restoring():
            snapshot = None if body["snapshot"] is None else unpacked(body["snapshot"])
            self._changes = SlotChanges(int(body["lsn"]), int(body["index"]), snapshot)
            self._system, self._since_us = str(body["system"]), int(body["since"])
            self._stream.resume(self._changes.lsn, int(body["timeline"]))
            self._snapshot = self._reader_of(snapshot)
            self._end_lsn = None if body["end"] is None else int(body["end"])
            slot = str(body["slot"])
        if slot != self._cdc.slot:
            raise UserError(
                codes.SOURCE_CHANGED,
                f"{self._where}: the slot is now {self._cdc.slot}, and was {slot} in earlier runs. Change it back, "
                "or start over with --fresh",
            )
        if not self._spec.stop_at_end:
            self._end_lsn = None
        self._returned = _Returned(position, self._changes.lsn, 0.0)

    def _reader_of(self, snapshot: Snapshot | None) -> SnapshotReader | None:
        if snapshot is None:
            return None
        return SnapshotReader(self._login, self._owner.clock, snapshot, self._since_us)

    def _position(self) -> bytes:
        changes = self._changes
        snapshot = changes.snapshot
        if snapshot is not None and snapshot.is_over(changes.lsn):
            snapshot = None
        return self._packed(
            {
                "lsn": changes.lsn,
                "index": changes.index,
                "slot": self._cdc.slot,
                "system": self._system,
                "timeline": self._stream.timeline,
                "since": self._since_us,
                "end": self._end_lsn,
                "snapshot": None if snapshot is None else snapshot.packed(),
            }
        )

    def _is_due(self) -> bool:
        """Whether to commit a position without records: the first one, or progress past other changes."""
        if not self._returned.position:
            return True
        passed = self._changes.lsn - self._returned.lsn
        waited = self._now_s() >= self._returned.at_s + POSTGRES_FEEDBACK_EVERY_S
        return passed >= POSTGRES_IDLE_BYTES or (passed > 0 and (waited or self._stream.is_asked))

    def _is_ended(self) -> bool:
        if self._snapshot is not None and not self._snapshot.is_done:
            return False
        return self._end_lsn is not None and self._changes.lsn >= self._end_lsn

    # The server

    async def _connected(self) -> Connection:
        """The control connection, after all settings were checked on it."""
        if self._control is not None and not self._control.is_closed():
            return self._control
        self.close()
        control = await self._login.connect()
        with on_failure(control.terminate), self._login.translated():
            async with asyncio.timeout(self._spec.timeout_s):
                await self._check(control)
        self._control = control
        return control

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[Connection]:
        """The control connection, for one task at a time and for a limited time."""
        control = await self._connected()
        async with self._lock, asyncio.timeout(self._spec.timeout_s):
            yield control

    async def _check(self, control: Connection) -> None:
        cdc, spec = self._cdc, self._spec
        server = await catalog.server_of(control)
        if server.is_standby:
            raise RetryLaterError(
                codes.TARGET_AWAY,
                f"{self._where}: PostgreSQL at {spec.host} is a standby, but changes can only be read from the primary",
            )
        if self._system not in ("", server.system):
            raise UserError(
                codes.SOURCE_CHANGED,
                f"{self._where}: PostgreSQL at {spec.host} is a different server ({server.system}) from the one "
                f"that was read ({self._system}). Connect to that one, or start over with --fresh",
            )
        check_fit(self._where, await catalog.faults_of(control, spec, cdc))
        self._watch.warn_of_limit(server.keeps)
        is_new = not self._returned.position
        if cdc.create_publication and not await publication.exists(control, cdc):
            # Before the slot, which does not see publications that were created after it.
            self._created.append(publication.drop)
            await publication.create(control, cdc)
            # What was found for each table may have become wrong meanwhile.
            check_fit(self._where, await catalog.faults_of(control, spec, cdc))
        slot = await catalog.slot_of(control, cdc.slot)
        if is_new:
            if slot is None:
                _log.info("%s: creates the slot %s", self._where, cdc.slot)
                self._created.append(catalog.drop_slot)
                await catalog.create_slot(control, cdc)
                slot = await catalog.slot_of(control, cdc.slot)
            elif slot.active_pid is not None:
                what = f"{self._where}: another process ({slot.active_pid}) is reading the slot {cdc.slot}"
                raise RetryLaterError(codes.TARGET_AWAY, what)
        self._check_slot(slot)
        assert slot is not None, "it was checked"
        self._system = server.system
        self._names = await publication.ids_of(control, cdc.table_paths)
        if is_new:
            await self._begin(control, slot.confirmed_lsn)

    async def _undo(self) -> None:
        """Remove what this lane has created on the server, if it has given no position yet: after a start that failed,
        a publication would stay in force, and a slot would make the server's WAL grow."""
        if self._returned.position or not self._created:
            return
        try:
            async with asyncio.timeout(self._spec.timeout_s):
                control = await self._login.connect()
                try:
                    while self._created:
                        await self._created[-1](control, self._cdc)
                        self._created.pop()
                finally:
                    control.terminate()
        except (*FAILURES, MillstreamError) as error:
            _log.warning(
                "%s: the publication %s and the slot %s may still exist after a start that failed; check with "
                "`SELECT slot_name FROM pg_replication_slots`: %s",
                self._where,
                self._cdc.publication,
                self._cdc.slot,
                error,
            )

    def _check_slot(self, slot: catalog.Slot | None) -> None:
        """Check that the slot still has everything after the lane's position."""
        lsn = self._changes.lsn
        if slot is None:
            raise self._lost(f"the slot {self._cdc.slot} no longer exists")
        if slot.status == "lost":
            raise self._lost(f"the slot {self._cdc.slot} is lost: the server has removed the WAL that it needs")
        if self._returned.position and slot.confirmed_lsn > lsn:
            raise self._lost(
                f"the slot {self._cdc.slot} is at {lsn_text(slot.confirmed_lsn)}, but the lane is at "
                f"{lsn_text(lsn)}: another reader has advanced the slot"
            )

    def _lost(self, what: str) -> DamageError:
        return DamageError(
            codes.SOURCE_RECORDS_REMOVED,
            f"{self._where}: {what}. Changes after {lsn_text(self._changes.lsn)} can no longer be read. Nothing was "
            f"skipped. Drop the slot if it exists (`SELECT pg_drop_replication_slot('{self._cdc.slot}')`), and "
            "start over with --fresh, which reads the tables again. Let max_slot_wal_keep_size cover the longest "
            "time for which the pipeline may be stopped, and give each source its own slot",
        )

    async def _begin(self, control: Connection, lsn: int) -> None:
        """Start the snapshot of a first run, after its slot was created."""
        self._since_us = await control.fetchval("SELECT (extract(epoch FROM clock_timestamp()) * 1e6)::bigint")
        snapshot = None
        if self._cdc.snapshot == "initial":
            # Transactions committed before the slot may not be visible yet, for example while they wait for a standby.
            await self._wait_for(control, await catalog.running(control))
            tables = await catalog.published(control, self._cdc)
            await check_published(self._login, control)
            snapshot = Snapshot([SnapshotTable(table.schema, table.name, table.keys) for table in tables])
            if not tables:
                _log.warning("%s: the publication %s has no tables yet", self._where, self._cdc.publication)
                snapshot = None
        self._changes = SlotChanges(lsn, 0, snapshot)
        self._snapshot = self._reader_of(snapshot)
        if self._spec.stop_at_end:
            self._end_lsn = await catalog.flushed_lsn(control)

    async def _wait_for(self, control: Connection, names: set[str]) -> None:
        look = Pauses(_LOOK_FIRST_S, _LOOK_LAST_S)
        reported_s = self._now_s()
        while names := names & await catalog.running(control):
            await look.wait()
            if self._now_s() >= reported_s + POSTGRES_OPEN_REPORTED_EVERY_S:
                reported_s = self._now_s()
                shown = ", ".join(sorted(names)[:10])
                _log.warning("%s: the snapshot waits for open transactions: %s", self._where, shown)

    async def _look_at_slot(self) -> None:
        if self._control is None or self._lock.locked():
            return
        try:
            async with self._lock, asyncio.timeout(self._spec.timeout_s):
                await self._watch.look(self._control)
        except FAILURES:
            # The next read finds out.
            return

    async def _end_older(self) -> None:
        """Terminate the connection of a hanging process of this lane, or one whose end the server has not noticed."""
        now_s = self._now_s()
        if self._in_use_since_s is None:
            self._in_use_since_s = now_s
        elif now_s >= self._in_use_since_s + _IN_USE_S and self._control is not None:
            async with self._lock:
                await self._control.execute(
                    "SELECT pg_terminate_backend(a.pid) FROM pg_replication_slots s JOIN pg_stat_activity a "
                    "ON a.pid = s.active_pid WHERE s.slot_name = $1 AND a.application_name = $2",
                    self._cdc.slot,
                    self._login.application,
                )

    # Reading

    async def _fill(self, timeout_s: float) -> None:
        """Wait for rows or changes, up to the timeout."""
        if not await self._reaching.may_try(timeout_s):
            return
        await self._connected()
        if self._snapshot is not None and not self._snapshot.is_done:
            async with asyncio.timeout(self._spec.timeout_s):
                await self._snapshot.fill()
        elif not self._stream.waiting:
            await self._fill_from_slot(timeout_s)
        self._reaching.worked()

    async def _fill_from_slot(self, timeout_s: float) -> None:
        try:
            await self._stream.fill(self._changes.lsn, timeout_s)
        except FAILURES as error:
            if sqlstate_of(error) == _IN_USE:
                await self._end_older()
            else:
                self._in_use_since_s = None
            raise
        self._in_use_since_s = None

    async def _take(self, into: RecordBatch, records_max: int, bytes_max: int) -> None:
        """Add the next rows of the snapshot, or changes, to a batch."""
        if self._snapshot is not None:
            self._snapshot.take(into, records_max, bytes_max)
        waiting = self._stream.waiting
        while waiting and len(into.values) < records_max and not self._is_ended():
            self._changes.insertions(waiting, into, records_max, bytes_max)
            if not waiting or len(into.values) >= records_max:
                return
            item = waiting[0]
            message = parse(item) if isinstance(item, bytes) else item
            if isinstance(message, Truncate) and len(message.relations) > 1:
                waiting.popleft()
                waiting.extendleft(Truncate((relation,)) for relation in reversed(message.relations))
                continue
            if isinstance(message, ReplicatedChange | Truncate):
                change = (
                    await self._made(message) if isinstance(message, ReplicatedChange) else self._truncated(message)
                )
                if change is not None and not into.fits(len(change.value), bytes_max):
                    return
                self._changes.took()
                if change is not None and self._changes.tail is not None:
                    place = f"a change at {lsn_text(self._changes.lsn)}"
                    time_us, size = self._changes.tail.time_us, len(change.value)
                    into.add(change.value, time_us, place, size=size, keys=change.keys)
            else:
                await self._hear(message)
            waiting.popleft()

    async def _hear(self, message: Message | ServerPosition | None) -> None:
        """Handle a message that is not a record."""
        if isinstance(message, ServerPosition):
            self._changes.passed(message.lsn)
        elif isinstance(message, Begin):
            self._changes.begin(message)
        elif isinstance(message, TransactionEnd):
            self._changes.commit(message)
        elif isinstance(message, Relation):
            self._changes.tables[message.oid] = await self._table(message) if await self._wants(message) else None

    async def _wants(self, relation: Relation) -> bool:
        """Whether the source reads this table. A relation has the name that the table had at the time of the change."""
        if not self._cdc.tables or f"{relation.schema}.{relation.name}" in self._cdc.table_paths:
            return True
        await self._connected()
        known = self._names.get(relation.oid)
        if known is None:
            return False
        async with self._asking() as control:
            now = await publication.path_of(control, relation.oid)
        if now not in self._cdc.table_paths:
            raise renamed(self._login, known, now)
        return True

    async def _table(self, relation: Relation) -> Table:
        async with self._asking() as control:
            types = await catalog.user_types(control, [column.type_oid for column in relation.columns])
            keys = await catalog.keys_of(control, relation)
        return Table(relation, keys, types)

    async def _made(self, message: ReplicatedChange) -> ChangeRecord | None:
        while True:
            try:
                return self._changes.made(message)
            except MustAskError as unknown:
                await self._ask(unknown.table, unknown.key)

    async def _ask(self, table: int, key: Key) -> None:
        """Find the part of the snapshot that has a key, and those of the keys of following changes."""
        snapshot = self._changes.snapshot
        assert snapshot is not None, "the change is in a snapshot"
        wanted = dict.fromkeys([key])
        for item in list(self._stream.waiting)[: 2 * _ASKED_AT_ONCE]:
            message = parse(item) if isinstance(item, bytes) else None
            shape = self._changes.tables.get(message.relation) if isinstance(message, ReplicatedChange) else None
            if shape is None or not isinstance(message, ReplicatedChange):
                continue
            if snapshot.number_of(shape.relation.schema, shape.relation.name) != table:
                continue
            for texts in (message.old, message.new):
                found = key_of(texts, shape.keys) if texts is not None else ()
                if len(found) == len(key) and len(wanted) < _ASKED_AT_ONCE:
                    wanted[found] = None
        async with self._asking() as control:
            numbers = await catalog.regions(control, snapshot, table, list(wanted))
        if len(self._changes.regions) > 100 * _ASKED_AT_ONCE:
            self._changes.regions.clear()
        self._changes.regions.update(((table, one), number) for one, number in zip(wanted, numbers, strict=True))

    def _truncated(self, message: Truncate) -> ChangeRecord | None:
        try:
            return self._changes.truncated(message.relations[0]) if message.relations else None
        except TruncatedError as table:
            raise DamageError(
                codes.SOURCE_PAST_REPLACED,
                f"{self._where}: {table} was truncated while its snapshot was interrupted, so it is unknown which "
                "of its rows had been read before. Start over with --fresh",
            ) from None


@asynccontextmanager
async def open_cdc(spec: PostgresSource, cdc: PostgresCdc, owner: SourceOwner) -> AsyncIterator[SourceLane]:
    """The lane at `owner.position`."""
    with closing(PostgresCdcLane(spec, cdc, owner)) as lane:
        await lane.open()
        async with beside(lane.tick(), f"slot {owner.lane}"):
            yield lane
