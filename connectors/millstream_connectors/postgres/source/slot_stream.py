"""The changes of a slot as the server streams them, and the confirmation of what the lane has committed.

    fill ─► start after the lane's place ─► messages wait, in order
    committed, tick ─► confirm ─► the server keeps no WAL before that position

Above it: `cdc`. Below it: a connection for replication.
"""

from __future__ import annotations

import asyncio
from collections import deque

from millstream import codes
from millstream.clock import Clock
from millstream.durable import step
from millstream.errors import DamageError
from millstream.limits import POSTGRES_FEEDBACK_EVERY_S
from millstream_connectors.postgres.replication import Replication, ServerPosition, lsn_of, lsn_text
from millstream_connectors.postgres.source.login import Login
from millstream_connectors.postgres.source.pgoutput import Message


class SlotStream:
    """One connection at a time, opened when it is needed."""

    def __init__(self, login: Login, clock: Clock, vertex: str) -> None:
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
        try:
            async with asyncio.timeout(self._login.spec.timeout_s):
                await self._check_history(replication, lsn)
                await replication.start(self._login.cdc.slot, lsn, self._login.cdc.publication)
        except BaseException:
            replication.close()
            raise
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
                    f"{self._login.where}: PostgreSQL at {self._login.spec.host} was restored from a backup, or a "
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
