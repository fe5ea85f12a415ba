"""Changes of PostgreSQL tables: the existing rows, then each change, from the position in the lane's mark.

    slot, created first ─► snapshot: rows by key, part by part ─► changes that no part has seen ─► frames
         ▲                                                                                            │
         └───────────── confirm: committed changes are not needed any more ◄──── committed ◄──────┘

The slot keeps the server's WAL from before the snapshot on, so nothing is missing between the two. It follows the
lane's commits and is never trusted: the lane skips changes that it has, and a slot that is ahead has lost some. If only
other tables change, the lane commits its progress past these changes, so that the server's WAL does not grow.

Above it: a source lane. Below it: received changes (`changes`), the server's catalog (`catalog`), and connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from millstream import codes
from millstream.background import open_tasks
from millstream.durable import step
from millstream.errors import DamageError, MillstreamError, RetryLaterError, UserError
from millstream.limits import (
    POSTGRES_FEEDBACK_EVERY_S,
    POSTGRES_IDLE_BYTES,
    POSTGRES_OPEN_REPORTED_EVERY_S,
    POSTGRES_SLOT_LOOK_EVERY_S,
    POSTGRES_SLOT_REPORTED_BYTES,
    POSTGRES_SNAPSHOT_PART_S,
)
from millstream.pauses import Pauses
from millstream_connectors.postgres.client import FAILURES, Connection, connect, error_of, sqlstate_of
from millstream_connectors.postgres.replication import Passed, Replication, lsn_of, lsn_text, open_replication
from millstream_connectors.postgres.settings import PostgresCdc, PostgresSource
from millstream_connectors.postgres.source import catalog, publication
from millstream_connectors.postgres.source.changes import (
    Batch,
    Changes,
    Made,
    MustAskError,
    Table,
    Tail,
    TruncatedError,
    tail_of,
)
from millstream_connectors.postgres.source.pgoutput import (
    Begin,
    Change,
    Commit,
    Message,
    NotPgoutputError,
    Relation,
    Texts,
    Truncate,
    parse,
)
from millstream_connectors.postgres.source.snapshot import Bound, Key, Snapshot, parse_seen, unpacked
from millstream_connectors.shared.positions import pack_position, unpack_position, unreadable_position
from millstream_connectors.shared.reaching import Reaching
from millstream_reader.connector import SourceOwner
from millstream_reader.source import SourceBatch, SourceLane

KIND = "postgresCdc"
_LOOK_FIRST_S, _LOOK_LAST_S = 0.005, 0.1
"""Pause between checks of transactions that the lane waits for."""
_TICK_S = 1.0
"""Interval at which the lane confirms to the server what was committed."""
_IN_USE = "55006"
_IN_USE_S = 5.0
"""How long another process of this lane may hold the slot before its connection is terminated."""
_ASKED_AT_ONCE = 500
"""Keys."""
_FIRST_ROWS = 16
"""Rows of a page, until the size of rows is known."""

_log = logging.getLogger(__name__)


class _Row(NamedTuple):
    """A waiting row of the snapshot."""

    page: catalog.Page
    texts: Texts
    behind: Bound | None
    """The lane's position after it."""


class PostgresCdcLane:
    """One lane. See `SourceLane`."""

    def __init__(self, spec: PostgresSource, cdc: PostgresCdc, owner: SourceOwner) -> None:
        self._spec = spec
        self._cdc = cdc
        self._owner = owner
        self._where = f"lane {owner.lane}"
        self._application = f"millstream {owner.lane} {cdc.slot}"[:63]
        self._system = ""
        self._timeline = 0
        self._changes = Changes(0, 0, None)
        self._snapshot: Snapshot | None = None
        """The snapshot that is being read; None when it is done."""
        self._since_us = 0
        """The event time of its rows: all changes that follow were committed later."""
        self._end_lsn: int | None = None
        self._control: Connection | None = None
        self._lock = asyncio.Lock()
        """Closes `_control`."""
        self._reading: Connection | None = None
        """The connection with the transaction of the snapshot's part."""
        self._part_tail: Tail | None = None
        self._part_since_s = 0.0
        self._pages: dict[int, catalog.Page] = {}
        self._rows: deque[_Row] = deque()
        self._read_upto: Bound | None = None
        """Where the next page begins."""
        self._page_rows = _FIRST_ROWS
        self._stream: Replication | None = None
        self._waiting: deque[bytes | Passed | Message] = deque()
        self._committed_lsn = 0
        self._names: dict[int, str] = {}
        """The tables that are named, by their ids, which they keep when they are renamed."""
        self._created: list[Callable[[Connection, PostgresCdc], Awaitable[None]]] = []
        """How to remove what this lane has created on the server."""
        self._fault: UserError | None = None
        """What the last look at the server has found."""
        self._checked_lsn = 0
        """How far the server's log was when the lane last asked."""
        self._given = b""
        """The last position that was returned."""
        self._given_lsn, self._given_s = 0, 0.0
        self._reported_lsn, self._reported_at_s = 0, 0.0
        self._checked_at_s = 0.0
        self._reported_bytes = POSTGRES_SLOT_REPORTED_BYTES
        self._in_use_since_s: float | None = None
        self._warned_of_limit = False
        self._reaching = Reaching(owner.clock, _log)
        self._draining = False

    @property
    def replayable(self) -> bool:
        return True

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
            return SourceBatch(None, self._given, ended=self._is_idle or (self._is_ended() and not self._draining))
        if self._fault is not None:
            raise self._fault
        try:
            return await self._read(records_max, bytes_max, timeout_s)
        except UserError:
            await self._undo()
            raise

    async def _read(self, records_max: int, bytes_max: int, timeout_s: float) -> SourceBatch:
        into = Batch()
        try:
            await self._fill(timeout_s)
            await self._take(into, records_max, bytes_max)
        except FAILURES as error:
            self.close()
            self._reaching.failed(error_of(error, self._spec, self._where))
        except RetryLaterError as error:
            self.close()
            self._reaching.failed(error)
        except NotPgoutputError as error:
            self.close()
            what = f"{self._where}: cannot read a message of the slot {self._cdc.slot}: {error}"
            raise UserError(codes.TARGET_UNFIT, what) from error
        except BaseException:
            self.close()
            raise
        frame = into.frame(self._owner.clock.now_us())
        ended = self._is_ended()
        if frame is not None or into.invalid or ended or self._is_due():
            self._given, self._given_lsn, self._given_s = self._position(), self._changes.lsn, self._now_s()
        return SourceBatch(frame, self._given, ended=ended, invalid=tuple(into.invalid))

    async def committed(self, position: bytes) -> None:
        if self._is_idle:
            return
        body = unpack_position(position, KIND, self._owner.partitions, self._owner.lane)
        if body is not None:
            self._committed_lsn = max(self._committed_lsn, int(body["lsn"]))
        if self._stream is not None and self._stream.is_asked:
            self._confirm()

    def pending(self) -> int | None:
        """The server does not report how many changes wait."""
        return None

    def pending_bytes(self) -> int | None:
        """Of the server's log that were not read, those of other tables and databases among them."""
        at = max(self._checked_lsn, self._stream.server_lsn if self._stream is not None else 0)
        return max(0, at - self._changes.lsn) if at else None

    def is_held_up(self) -> bool:
        return self._reaching.is_away

    async def drain(self) -> None:
        self._draining = True

    def close(self) -> None:
        """Close the connections. What was fetched and not read is fetched again."""
        if self._stream is not None:
            self._confirm()
            self._stream.close()
            self._stream = None
        for connection in (self._control, self._reading):
            if connection is not None:
                connection.terminate()
        self._control = self._reading = None
        self._waiting.clear()
        self._rows.clear()
        self._changes.tail = None
        self._changes.tables.clear()

    async def tick(self) -> None:
        """Confirm the lane's position to the server, and check the WAL that it keeps, even while nothing is read."""
        while True:
            await asyncio.sleep(_TICK_S)
            now_s = self._now_s()
            if self._stream is not None:
                if self._committed_lsn != self._reported_lsn or self._stream.is_asked:
                    self._confirm()
                elif now_s >= self._reported_at_s + POSTGRES_FEEDBACK_EVERY_S:
                    self._confirm(asks=True)
            if now_s >= self._checked_at_s + POSTGRES_SLOT_LOOK_EVERY_S:
                self._checked_at_s = now_s
                await self._look_at_slot()

    # The lane's position

    @property
    def _is_idle(self) -> bool:
        """A slot has one stream; further partitions have nothing to read."""
        return self._owner.lane.partition > 0

    def _restore(self) -> None:
        owner = self._owner
        body = unpack_position(owner.position, KIND, owner.partitions, owner.lane)
        if body is None:
            return
        try:
            snapshot = None if body["snapshot"] is None else unpacked(body["snapshot"])
            self._changes = Changes(int(body["lsn"]), int(body["index"]), snapshot)
            self._snapshot = snapshot if snapshot is not None and snapshot.at is not None else None
            self._system, self._timeline = str(body["system"]), int(body["timeline"])
            self._since_us = int(body["since"])
            self._end_lsn = None if body["end"] is None else int(body["end"])
            slot = str(body["slot"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise unreadable_position(self._where, owner.position, "a postgres source with `cdc`") from error
        if slot != self._cdc.slot:
            raise UserError(
                codes.SOURCE_CHANGED,
                f"{self._where}: the slot is now {self._cdc.slot}, and was {slot} in earlier runs. Change it back, "
                "or start over with --fresh",
            )
        if not self._spec.stop_at_end:
            self._end_lsn = None
        self._given, self._given_lsn = owner.position, self._changes.lsn
        self._committed_lsn = self._changes.lsn

    def _position(self) -> bytes:
        changes = self._changes
        snapshot = changes.snapshot
        if snapshot is not None and snapshot.is_over(changes.lsn):
            snapshot = None
        body = {
            "lsn": changes.lsn,
            "index": changes.index,
            "slot": self._cdc.slot,
            "system": self._system,
            "timeline": self._timeline,
            "since": self._since_us,
            "end": self._end_lsn,
            "snapshot": None if snapshot is None else snapshot.packed(),
        }
        return pack_position(KIND, self._owner.partitions, body)

    def _is_due(self) -> bool:
        """Whether to commit a position without records: the first one, or progress past other changes."""
        if not self._given:
            return True
        passed = self._changes.lsn - self._given_lsn
        waited = self._now_s() >= self._given_s + POSTGRES_FEEDBACK_EVERY_S
        asked = self._stream is not None and self._stream.is_asked
        return passed >= POSTGRES_IDLE_BYTES or (passed > 0 and (waited or asked))

    def _is_ended(self) -> bool:
        return self._snapshot is None and self._end_lsn is not None and self._changes.lsn >= self._end_lsn

    def _confirm(self, *, asks: bool = False) -> None:
        if self._stream is not None:
            self._reported_lsn, self._reported_at_s = self._committed_lsn, self._now_s()
            with step("postgres_cdc.confirm", self._owner.lane.vertex):
                self._stream.confirm(self._committed_lsn, asks=asks)

    # The server

    async def _connected(self) -> Connection:
        """The control connection, after all settings were checked on it."""
        if self._control is not None and not self._control.is_closed():
            return self._control
        self.close()
        control = await connect(self._spec, self._owner.base_dir, self._where, self._application)
        try:
            async with asyncio.timeout(self._spec.timeout_s):
                await self._check(control)
        except FAILURES as error:
            control.terminate()
            raise error_of(error, self._spec, self._where) from error
        except BaseException:
            control.terminate()
            raise
        self._control = control
        return control

    async def _check(self, control: Connection) -> None:
        cdc, spec = self._cdc, self._spec
        server = await catalog.server_of(control)
        if server.is_standby:
            what = (
                f"{self._where}: PostgreSQL at {spec.host} is a standby, but changes can only be read from the primary"
            )
            raise RetryLaterError(codes.TARGET_AWAY, what)
        if self._system not in ("", server.system):
            raise UserError(
                codes.SOURCE_CHANGED,
                f"{self._where}: PostgreSQL at {spec.host} is a different server ({server.system}) from the one "
                f"that was read ({self._system}). Connect to that one, or start over with --fresh",
            )
        await self._check_tables(control)
        self._warn_of_limit(server.keeps)
        is_new = not self._given
        if cdc.create_publication and not await publication.exists(control, cdc):
            # Before the slot, which does not see publications that were created after it.
            self._created.append(publication.drop)
            await publication.create(control, cdc)
            # What was found for each table may have become wrong meanwhile.
            await self._check_tables(control)
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

    async def _check_tables(self, control: Connection) -> None:
        faults = await catalog.faults_of(control, self._spec, self._cdc)
        if faults:
            what = "; ".join(f"{fault.what} (expected: {fault.expected})" for fault in faults)
            raise UserError(codes.TARGET_UNFIT, f"{self._where}: {what}")

    async def _undo(self) -> None:
        """Remove what this lane has created on the server, if it has given no position yet: after a start that failed,
        a publication would stay in force, and a slot would make the server's WAL grow."""
        if self._given or not self._created:
            return
        try:
            async with asyncio.timeout(self._spec.timeout_s):
                control = await connect(self._spec, self._owner.base_dir, self._where, self._application)
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
        if self._given and slot.confirmed_lsn > lsn:
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

    def _warn_of_limit(self, keeps: str) -> None:
        if keeps == "-1" and not self._warned_of_limit:
            self._warned_of_limit = True
            _log.warning(
                "%s: max_slot_wal_keep_size is not set at %s: while this source is stopped, its slot %s makes the "
                "server's WAL grow until the disk is full",
                self._where,
                self._spec.host,
                self._cdc.slot,
            )

    async def _begin(self, control: Connection, lsn: int) -> None:
        """Start the snapshot of a first run, after its slot was created."""
        self._since_us = await control.fetchval("SELECT (extract(epoch FROM clock_timestamp()) * 1e6)::bigint")
        snapshot = None
        if self._cdc.snapshot == "initial":
            # Transactions committed before the slot may not be visible yet, for example while they wait for a standby.
            await self._wait_for(control, await catalog.running(control))
            tables = await catalog.published(control, self._cdc)
            await self._check_missing(control)
            snapshot = Snapshot(catalog.snapshot_tables(tables))
            if not tables:
                _log.warning("%s: the publication %s has no tables yet", self._where, self._cdc.publication)
                snapshot = None
        self._changes = Changes(lsn, 0, snapshot)
        self._snapshot = snapshot
        if self._spec.stop_at_end:
            self._end_lsn = await catalog.flushed_lsn(control)

    async def _check_missing(self, control: Connection) -> None:
        """Check that the tables that are named are still published under these names. Otherwise their changes would
        be absent without a message."""
        gone = await publication.missing(control, self._cdc)
        if gone:
            raise self._renamed(", ".join(gone))

    def _renamed(self, path: str, now: str | None = None) -> UserError:
        what = f"is now called {now}" if now is not None else "is no longer published: it was renamed, or dropped"
        return UserError(
            codes.SOURCE_CHANGED,
            f"{self._where}: the table {path} {what}, while `tables` names it. Nothing was skipped. Correct `tables`, "
            f"or the publication {self._cdc.publication}, and run again",
        )

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
        """Check the server's position, and warn of WAL that grows."""
        if self._control is None or self._lock.locked():
            return
        try:
            async with self._lock, asyncio.timeout(self._spec.timeout_s):
                slot = await catalog.slot_of(self._control, self._cdc.slot)
                # A lane that waits for room reads no message that would say it.
                self._checked_lsn = await catalog.flushed_lsn(self._control)
                await self._check_missing(self._control)
        except UserError as error:
            # The next read raises it.
            self._fault = error
            return
        except FAILURES:
            # The next read finds out.
            return
        if slot is None:
            return
        left = "" if slot.left is None else f"; the slot is lost after {max(0, slot.left) >> 20} MiB more"
        if slot.status == "unreserved" or slot.held >= self._reported_bytes:
            self._reported_bytes = max(self._reported_bytes, 2 * slot.held)
            _log.warning(
                "%s: the slot %s holds %d MiB of the server's WAL%s: this source is behind",
                self._where,
                self._cdc.slot,
                slot.held >> 20,
                left,
            )
        elif slot.held < POSTGRES_SLOT_REPORTED_BYTES // 2:
            self._reported_bytes = POSTGRES_SLOT_REPORTED_BYTES

    async def _streaming(self) -> Replication:
        """The connection for changes."""
        if self._stream is not None and not (self._stream.is_closed and not self._waiting):
            return self._stream
        stream = await open_replication(self._spec, self._owner.base_dir, self._where, self._application)
        try:
            async with asyncio.timeout(self._spec.timeout_s):
                await self._check_history(stream)
                await stream.start(self._cdc.slot, self._changes.lsn, self._cdc.publication)
        except FAILURES as error:
            stream.close()
            if sqlstate_of(error) == _IN_USE:
                await self._end_older()
            raise
        except BaseException:
            stream.close()
            raise
        self._in_use_since_s = None
        self._stream = stream
        self._confirm(asks=True)
        return stream

    async def _check_history(self, stream: Replication) -> None:
        """Check that a server that took over has everything that was read from the former one."""
        ((_, timeline, *_),) = await stream.ask("IDENTIFY_SYSTEM")
        now = int(timeline or 0)
        if self._timeline not in (0, now):
            ((_, history),) = await stream.ask(f"TIMELINE_HISTORY {now}")
            ends = _ends_of(history or "")
            end = ends.get(self._timeline)
            if end is None or end < self._changes.lsn:
                raise DamageError(
                    codes.SOURCE_PAST_REPLACED,
                    f"{self._where}: PostgreSQL at {self._spec.host} was restored from a backup, or a standby took "
                    f"over, at a point before {lsn_text(self._changes.lsn)}, up to which this lane has read. The "
                    "changes that it read after that point are not those of the server. Bring the former server "
                    "back, or start over with --fresh",
                )
        self._timeline = now

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
                    self._application,
                )

    # Reading

    async def _fill(self, timeout_s: float) -> None:
        """Wait for rows or changes, up to the timeout."""
        if not await self._reaching.may_try(timeout_s):
            return
        await self._connected()
        if self._snapshot is not None:
            if not self._rows:
                async with asyncio.timeout(self._spec.timeout_s):
                    await self._read_page(self._snapshot)
        elif not self._waiting:
            self._waiting.extend(await (await self._streaming()).take(timeout_s))
        self._reaching.worked()

    async def _read_page(self, snapshot: Snapshot) -> None:
        if self._reading is not None and self._now_s() >= self._part_since_s + POSTGRES_SNAPSHOT_PART_S:
            self._reading.terminate()
            self._reading = None
        if self._reading is None or self._reading.is_closed():
            self._reading = await self._begin_part(snapshot)
        at = self._read_upto
        assert at is not None, "the snapshot is not complete"
        page = self._pages[at.table]
        found = await page.read(self._reading, at.key, self._page_rows)
        size = sum(len(text) for texts in found for text in texts if isinstance(text, bytes))
        behind: Bound | None = None
        for texts in found:
            behind = Bound(at.table, _key_of(texts, page.places))
            self._rows.append(_Row(page, texts, behind))
        is_all = len(found) < self._page_rows
        if is_all:
            behind = catalog.bound_of(snapshot, at.table + 1, None)
        if found and is_all:
            self._rows[-1] = self._rows[-1]._replace(behind=behind)
        elif is_all:
            self._moved(snapshot, behind)
        self._read_upto = behind
        self._page_rows = catalog.rows_within(self._page_rows, size) if found and not is_all else _FIRST_ROWS

    async def _begin_part(self, snapshot: Snapshot) -> Connection:
        """Begin a transaction that sees one state, for the rows from here on."""
        reading = await connect(self._spec, self._owner.base_dir, self._where, self._application)
        try:
            await reading.execute("SET idle_in_transaction_session_timeout TO 0; SET statement_timeout TO 0")
            await reading.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            seen = await reading.fetchval("SELECT pg_current_snapshot()::text")
            until = lsn_of(await reading.fetchval("SELECT pg_current_wal_insert_lsn()::text"))
            tables = {table.path: table for table in await catalog.published(reading, self._cdc)}
            self._pages = {}
            for number, table in enumerate(snapshot.tables):
                now = tables.get(f"{table.schema}.{table.name}")
                if snapshot.at is not None and number < snapshot.at.table:
                    continue
                if now is None or now.keys != table.keys:
                    raise UserError(
                        codes.SOURCE_CHANGED,
                        f"{self._where}: {table.schema}.{table.name} is no longer published, or its primary key has "
                        "changed, while its rows are being read. Change it back, or start over with --fresh",
                    )
                self._pages[number] = await catalog.page_of(reading, now)
            for number, page in self._pages.items():
                types = await catalog.user_types(reading, [column.type_oid for column in page.relation.columns])
                keys = [name for name, _ in snapshot.tables[number].keys]
                page.shape = Table(page.relation, keys, types)
        except BaseException:
            reading.terminate()
            raise
        snapshot.begin(parse_seen(seen), until)
        self._part_tail = tail_of(until, self._since_us, None)
        self._part_since_s = self._now_s()
        self._read_upto = snapshot.at
        self._page_rows = _FIRST_ROWS
        return reading

    def _moved(self, snapshot: Snapshot, at: Bound | None) -> None:
        """Set the lane's place in the snapshot."""
        snapshot.at = at
        if at is None:
            self._snapshot = None
            if self._reading is not None:
                self._reading.terminate()
                self._reading = None

    async def _take(self, into: Batch, records_max: int, bytes_max: int) -> None:
        """Adds the next rows of the snapshot to a batch."""
        while self._rows and self._snapshot is not None and len(into.values) < records_max:
            row = self._rows[0]
            assert self._part_tail is not None, "a part was begun"
            assert row.page.shape is not None, "a part was begun"
            made = row.page.shape.record("r", None, False, row.texts, self._part_tail, 0)
            if not into.fits(made, bytes_max):
                return
            self._rows.popleft()
            self._moved(self._snapshot, row.behind)
            into.add(made, self._part_tail.time_us, f"a row of {row.page.table.path}")
        while self._waiting and len(into.values) < records_max and not self._is_ended():
            self._changes.insertions(self._waiting, into, records_max, bytes_max)
            if not self._waiting or len(into.values) >= records_max:
                return
            item = self._waiting[0]
            message = parse(item) if isinstance(item, bytes) else item
            if isinstance(message, Truncate) and len(message.relations) > 1:
                self._waiting.popleft()
                self._waiting.extendleft(Truncate((relation,)) for relation in reversed(message.relations))
                continue
            if isinstance(message, Change | Truncate):
                change = await self._made(message) if isinstance(message, Change) else self._truncated(message)
                if change is not None and not into.fits(change, bytes_max):
                    return
                self._changes.took()
                if change is not None and self._changes.tail is not None:
                    into.add(change, self._changes.tail.time_us, f"a change at {lsn_text(self._changes.lsn)}")
            else:
                await self._hear(message)
            self._waiting.popleft()

    async def _hear(self, message: Message | Passed | None) -> None:
        """Handle a message that is not a record."""
        if isinstance(message, Passed):
            self._changes.passed(message.lsn)
        elif isinstance(message, Begin):
            self._changes.begin(message)
        elif isinstance(message, Commit):
            self._changes.commit(message)
        elif isinstance(message, Relation):
            self._changes.tables[message.oid] = await self._table(message) if await self._wants(message) else None

    async def _wants(self, relation: Relation) -> bool:
        """Whether the source reads this table. A relation has the name that the table had at the time of the change."""
        path = f"{relation.schema}.{relation.name}"
        if not self._cdc.tables or path in self._cdc.table_paths:
            return True
        control = await self._connected()
        known = self._names.get(relation.oid)
        if known is None:
            return False
        async with self._lock, asyncio.timeout(self._spec.timeout_s):
            now = await publication.path_of(control, relation.oid)
        if now not in self._cdc.table_paths:
            raise self._renamed(known, now)
        return True

    async def _table(self, relation: Relation) -> Table:
        control = await self._connected()
        async with self._lock, asyncio.timeout(self._spec.timeout_s):
            types = await catalog.user_types(control, [column.type_oid for column in relation.columns])
            keys = await catalog.keys_of(control, relation)
        return Table(relation, keys, types)

    async def _made(self, message: Change) -> Made | None:
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
        for item in list(self._waiting)[: 2 * _ASKED_AT_ONCE]:
            message = parse(item) if isinstance(item, bytes) else None
            shape = self._changes.tables.get(message.relation) if isinstance(message, Change) else None
            if shape is None or not isinstance(message, Change):
                continue
            if snapshot.number_of(shape.relation.schema, shape.relation.name) != table:
                continue
            for texts in (message.old, message.new):
                found = _key_of(texts, shape.keys) if texts is not None else ()
                if len(found) == len(key) and len(wanted) < _ASKED_AT_ONCE:
                    wanted[found] = None
        control = await self._connected()
        async with self._lock, asyncio.timeout(self._spec.timeout_s):
            numbers = await catalog.regions(control, snapshot, table, list(wanted))
        if len(self._changes.regions) > 100 * _ASKED_AT_ONCE:
            self._changes.regions.clear()
        self._changes.regions.update(((table, one), number) for one, number in zip(wanted, numbers, strict=True))

    def _truncated(self, message: Truncate) -> Made | None:
        try:
            return self._changes.truncated(message.relations[0]) if message.relations else None
        except TruncatedError as table:
            raise DamageError(
                codes.SOURCE_PAST_REPLACED,
                f"{self._where}: {table} was truncated while its snapshot was interrupted, so it is unknown which "
                "of its rows had been read before. Start over with --fresh",
            ) from None

    def _now_s(self) -> float:
        return self._owner.clock.monotonic_s()


def _key_of(texts: Texts, places: Sequence[int]) -> Key:
    found = [texts[place] for place in places]
    return tuple(text.decode("utf-8", "surrogateescape") for text in found if isinstance(text, bytes))


def _ends_of(history: str) -> dict[int, int]:
    """Where each former timeline ended, from the text of a history file."""
    ends: dict[int, int] = {}
    for line in history.splitlines():
        words: Any = line.partition("#")[0].split()
        if len(words) >= 2:
            ends[int(words[0])] = lsn_of(words[1])
    return ends


@asynccontextmanager
async def open_cdc(spec: PostgresSource, cdc: PostgresCdc, owner: SourceOwner) -> AsyncIterator[SourceLane]:
    """The lane at `owner.position`."""
    lane = PostgresCdcLane(spec, cdc, owner)
    try:
        await lane.open()
        async with open_tasks() as tasks:
            ticking = tasks.create_task(lane.tick(), name=f"slot {owner.lane}")
            try:
                yield lane
            finally:
                ticking.cancel()
    finally:
        lane.close()
