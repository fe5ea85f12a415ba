"""The slot of a lane: its changes as the server streams them, the confirmation of what the lane has committed, and
looks at how much WAL it keeps on the server, and whether the tables are still published.

    fill ─► start after the lane's place ─► messages wait, in order
    committed, tick ─► confirm ─► the server keeps no WAL before that position

Above it: `cdc`. Below it: a connection for replication, and the server's catalog.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from millstream import codes
from millstream.clock import Clock
from millstream.durable import step
from millstream.errors import DamageError, UserError
from millstream.limits import POSTGRES_FEEDBACK_EVERY_S, POSTGRES_SLOT_LOOK_EVERY_S, POSTGRES_SLOT_REPORTED_BYTES
from millstream_connectors.postgres.client import Connection
from millstream_connectors.postgres.replication import CdcLogin, Replication, ServerPosition, lsn_of, lsn_text
from millstream_connectors.postgres.source import catalog, publication
from millstream_connectors.postgres.source.pgoutput import Message
from millstream_connectors.shared.failing import on_failure

_log = logging.getLogger(__name__)


class SlotStream:
    """One connection at a time, opened when it is needed."""

    def __init__(self, login: CdcLogin, clock: Clock, vertex: str) -> None:
        self._login = login
        self._clock = clock
        self._vertex = vertex
        self._replication: Replication | None = None
        self.waiting: deque[bytes | ServerPosition | Message] = deque()
        """Messages that have arrived and were not taken."""
        self.timeline = 0
        """The server's timeline, which changes when a standby takes over; 0 if it is unknown."""
        self._committed_lsn = 0
        self._confirmed_lsn, self._confirmed_at_s = 0, 0.0

    @property
    def is_asked(self) -> bool:
        """Whether the server asks for a confirmation."""
        return self._replication is not None and self._replication.is_asked

    @property
    def server_lsn(self) -> int:
        """How far the server's log was at its last message; 0 if it is unknown."""
        return self._replication.server_lsn if self._replication is not None else 0

    def resume(self, lsn: int, timeline: int) -> None:
        """Continue at the place of an earlier run."""
        self._committed_lsn, self.timeline = lsn, timeline

    async def fill(self, lsn: int, timeout_s: float) -> None:
        """Wait for changes that were committed at `lsn` or later, up to the timeout. Raises what asyncpg raises, and
        Millstream errors."""
        if self._replication is None or self._replication.is_closed:
            self._replication = await self._started(lsn)
            self._confirm(asks=True)
        self.waiting.extend(await self._replication.take(timeout_s))

    def committed(self, lsn: int) -> None:
        """The lane has committed everything before this position."""
        self._committed_lsn = max(self._committed_lsn, lsn)
        if self.is_asked:
            self._confirm()

    def tick(self) -> None:
        """Confirm what was not confirmed yet, and now and then also the same again."""
        if self._committed_lsn != self._confirmed_lsn or self.is_asked:
            self._confirm()
        elif self._clock.monotonic_s() >= self._confirmed_at_s + POSTGRES_FEEDBACK_EVERY_S:
            self._confirm(asks=True)

    def close(self) -> None:
        """Close the connection. What has arrived and was not taken is sent again."""
        self._confirm()
        if self._replication is not None:
            self._replication.close()
            self._replication = None
        self.waiting.clear()

    def _confirm(self, *, asks: bool = False) -> None:
        if self._replication is not None:
            self._confirmed_lsn, self._confirmed_at_s = self._committed_lsn, self._clock.monotonic_s()
            with step("postgres_cdc.confirm", self._vertex):
                self._replication.confirm(self._committed_lsn, asks=asks)

    async def _started(self, lsn: int) -> Replication:
        replication = await self._login.open_replication()
        with on_failure(replication.close):
            async with asyncio.timeout(self._login.server.timeout_s):
                await self._check_history(replication, lsn)
                await replication.start(self._login.cdc.slot, lsn, self._login.cdc.publication)
        return replication

    async def _check_history(self, replication: Replication, lsn: int) -> None:
        """Check that a server that took over has everything that was read from the former one."""
        ((_, timeline, *_),) = await replication.ask("IDENTIFY_SYSTEM")
        now = int(timeline or 0)
        if self.timeline not in (0, now):
            ((_, history),) = await replication.ask(f"TIMELINE_HISTORY {now}")
            end = _ends_of(history or "").get(self.timeline)
            if end is None or end < lsn:
                raise DamageError(
                    codes.SOURCE_PAST_REPLACED,
                    f"{self._login.where}: PostgreSQL at {self._login.server.host} was restored from a backup, or a "
                    f"standby took over, at a point before {lsn_text(lsn)}, up to which this lane has read. The "
                    "changes that it read after that point are not those of the server. Bring the former server "
                    "back, or start over with --fresh",
                )
        self.timeline = now


def _ends_of(history: str) -> dict[int, int]:
    """Where each former timeline ended, from the text of a history file."""
    ends: dict[int, int] = {}
    for line in history.splitlines():
        words = line.partition("#")[0].split()
        if len(words) >= 2:
            ends[int(words[0])] = lsn_of(words[1])
    return ends


class SlotWatch:
    """Of the slot of one lane."""

    def __init__(self, login: CdcLogin) -> None:
        self._login = login
        self.flushed_lsn = 0
        """How far the server's log was at the last look."""
        self.fault: UserError | None = None
        """What the last look has found: a table that is no longer published."""
        self._looked_at_s = 0.0
        self._reported_bytes = POSTGRES_SLOT_REPORTED_BYTES
        """The next warning is due when the slot keeps that much."""
        self._warned_of_limit = False

    def is_due(self, now_s: float) -> bool:
        """Whether it is time for another look, which begins with this."""
        if now_s < self._looked_at_s + POSTGRES_SLOT_LOOK_EVERY_S:
            return False
        self._looked_at_s = now_s
        return True

    async def look(self, control: Connection) -> None:
        """Warn of WAL that grows, and note a table that is no longer published. Raises what asyncpg raises."""
        slot = await catalog.slot_of(control, self._login.cdc.slot)
        # A lane that waits for room reads no message that would say it.
        self.flushed_lsn = await catalog.flushed_lsn(control)
        try:
            await check_published(self._login, control)
        except UserError as error:
            self.fault = error
        if slot is None:
            return
        left = "" if slot.left is None else f"; the slot is lost after {max(0, slot.left) >> 20} MiB more"
        if slot.status == "unreserved" or slot.held >= self._reported_bytes:
            self._reported_bytes = max(self._reported_bytes, 2 * slot.held)
            _log.warning(
                "%s: the slot %s holds %d MiB of the server's WAL%s: this source is behind",
                self._login.where,
                self._login.cdc.slot,
                slot.held >> 20,
                left,
            )
        elif slot.held < POSTGRES_SLOT_REPORTED_BYTES // 2:
            self._reported_bytes = POSTGRES_SLOT_REPORTED_BYTES

    def warn_of_limit(self, keeps: str) -> None:
        """Warn once if the server keeps any amount of WAL for a slot. `keeps`: its setting max_slot_wal_keep_size."""
        if keeps == "-1" and not self._warned_of_limit:
            self._warned_of_limit = True
            _log.warning(
                "%s: max_slot_wal_keep_size is not set at %s: while this source is stopped, its slot %s makes the "
                "server's WAL grow until the disk is full",
                self._login.where,
                self._login.server.host,
                self._login.cdc.slot,
            )


async def check_published(login: CdcLogin, control: Connection) -> None:
    """Check that the tables that are named are still published under these names. Otherwise their changes would be
    absent without a message."""
    gone = await publication.missing(control, login.cdc)
    if gone:
        raise renamed(login, ", ".join(gone))


def renamed(login: CdcLogin, path: str, now: str | None = None) -> UserError:
    """The error for a table that is named and is not published. `now`: its present name, if that is known."""
    what = f"is now called {now}" if now is not None else "is no longer published: it was renamed, or dropped"
    return UserError(
        codes.SOURCE_CHANGED,
        f"{login.where}: the table {path} {what}, while `tables` names it. Nothing was skipped. Correct `tables`, "
        f"or the publication {login.cdc.publication}, and run again",
    )
