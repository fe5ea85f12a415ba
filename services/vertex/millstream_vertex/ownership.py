"""Whether the lanes of a process are still its own, also while they have nothing to commit.

A commit of an owner that was replaced is refused. One that waits for input commits nothing, and what it waits for its
successor may have consumed: it hears of the takeover from its vertex's own OT store instead.

Above it: the assembly. Below it: nothing; updates are handed in.
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
        """A lane was taken over; no owner of a newer epoch has published for it."""
        self._epochs[lane.key] = lane, epoch

    def observe(self, update: OtUpdate) -> None:
        owned = self._epochs.get(update.key)
        if owned is None or update.entry.epoch <= owned[1]:
            return
        lane, epoch = owned
        self._error = fenced(lane, update.entry.epoch, epoch)
        self._lost.set()

    async def watch(self) -> None:
        """Until cancelled. Raises `FencedError` once a lane has another owner."""
        await self._lost.wait()
        assert self._error is not None
        raise self._error

    async def check(self, ledger: Ledger) -> None:
        """Raise `FencedError` when a lane has another owner. `ledger`: that of the process's vertex.

        Asks the leader for the marks: a process that was stopped has not heard of a takeover yet.
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
        """Raise `DamageError` when something outside knows a newer owner of the lane, and its ledger does not.

        A takeover is in the ledger before it is anywhere else, so such a ledger is older than it was.
        """
        stored = await ledger.mark(lane)
        _, epoch = self._epochs[lane.key]
        if stored is None or stored.mark.epoch > epoch:
            return
        raise DamageError(
            codes.LEDGER_CUT,
            f"{refusal}. But the ledger of vertex {lane.vertex} has no newer owner: it lost its latest data or was "
            "rolled back. Restore it, or start the pipeline over. If that owner has left files of a file sink, you "
            "can instead move them all away together with .millstream: the records after the mark are then written "
            "as they are now",
        ) from refusal
