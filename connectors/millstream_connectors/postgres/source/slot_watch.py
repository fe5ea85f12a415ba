"""Looks at a slot now and then: how much WAL it keeps on the server, and whether the tables are still published.

Above it: `cdc`. Below it: the server's catalog.
"""

from __future__ import annotations

import logging

from millstream import codes
from millstream.errors import UserError
from millstream.limits import POSTGRES_SLOT_LOOK_EVERY_S, POSTGRES_SLOT_REPORTED_BYTES
from millstream_connectors.postgres.client import Connection
from millstream_connectors.postgres.source import catalog, publication
from millstream_connectors.postgres.source.login import Login

_log = logging.getLogger(__name__)


class SlotWatch:
    """Of the slot of one lane."""

    def __init__(self, login: Login) -> None:
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
                self._login.spec.host,
                self._login.cdc.slot,
            )


async def check_published(login: Login, control: Connection) -> None:
    """Check that the tables that are named are still published under these names. Otherwise their changes would be
    absent without a message."""
    gone = await publication.missing(control, login.cdc)
    if gone:
        raise renamed(login, ", ".join(gone))


def renamed(login: Login, path: str, now: str | None = None) -> UserError:
    """The error for a table that is named and is not published. `now`: its present name, if that is known."""
    what = f"is now called {now}" if now is not None else "is no longer published: it was renamed, or dropped"
    return UserError(
        codes.SOURCE_CHANGED,
        f"{login.where}: the table {path} {what}, while `tables` names it. Nothing was skipped. Correct `tables`, "
        f"or the publication {login.cdc.publication}, and run again",
    )
