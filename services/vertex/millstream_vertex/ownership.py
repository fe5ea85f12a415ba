"""Checks whether a process still owns its lanes, even while they have nothing to commit.

A commit of a replaced owner is refused. But an owner that waits for input commits nothing, and its successor may have
consumed that input. Such an owner learns of the takeover from its vertex's own OT store.

Above it: the assembly. Below it: nothing; updates are passed in.
"""

from __future__ import annotations

import asyncio
import logging

from millstream import codes
from millstream.errors import DamageError, FencedError, RetryLaterError
from millstream.ledger.marks import fenced
from millstream.ledger.protocol import Ledger
from millstream.record import LaneId
from millstream.watermark.store import OtUpdate

_log = logging.getLogger(__name__)


class Ownership:
    """Listens to the OT store of the process's own vertex."""

    def __init__(self) -> None:
        self._epochs: dict[str, tuple[LaneId, int]] = {}
        self._lost = asyncio.Event()
        self._error: FencedError | None = None

    def own(self, lane: LaneId, epoch: int) -> None:
        """Add a lane that was taken over; no owner with a newer epoch has published for it."""
        self._epochs[lane.key] = lane, epoch

    def observe(self, update: OtUpdate) -> None:
        owned = self._epochs.get(update.key)
        if owned is None or update.entry.epoch <= owned[1]:
            return
        lane, epoch = owned
        self._error = fenced(lane, update.entry.epoch, epoch)
        self._lost.set()

    async def watch(self) -> None:
        """Wait until cancelled. Raises `FencedError` once a lane has another owner."""
        await self._lost.wait()
        assert self._error is not None
        raise self._error

    async def check(self, ledger: Ledger) -> None:
        """Raise `FencedError` if a lane has another owner. `ledger`: the ledger of the process's vertex.

        This reads the marks from the leader, because a process that was suspended may not know of a takeover yet.
        """
        for lane, epoch in self._epochs.values():
            try:
                stored = await ledger.mark(lane)
            except (RetryLaterError, DamageError) as error:
                _log.warning("cannot check whether lane %s has another owner: %s", lane, error)
                continue
            if stored is not None and stored.mark.epoch > epoch:
                raise fenced(lane, stored.mark.epoch, epoch, stored.mark.owner)

    async def check_known(self, lane: LaneId, ledger: Ledger, refusal: FencedError) -> None:
        """Raise `DamageError` if an external system knows a newer owner of the lane and the lane's ledger does not.

        A takeover is stored in the ledger before it is visible elsewhere, so such a ledger has lost its latest data.
        """
        stored = await ledger.mark(lane)
        _, epoch = self._epochs[lane.key]
        if stored is None or stored.mark.epoch > epoch:
            return
        raise DamageError(
            codes.LEDGER_CUT,
            f"{refusal}. But the ledger of vertex {lane.vertex} has no newer owner: it lost its latest data or was "
            "rolled back. Restore it, or start the pipeline over. If that owner has left files of a file sink, you "
            "can instead move them all away together with .millstream, start again, and do what the message says: the "
            "records after the mark are then written as they are now",
        ) from refusal
