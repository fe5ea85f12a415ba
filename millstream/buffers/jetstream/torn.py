"""Handles commits that a server stored in part.

A server that fails to write in the middle of a batch (because its disk is full) stops there, and completes the batch
when it is restarted. Until then, nothing may be written after the incomplete batch, or it would stay incomplete. If the
server was restarted and has not completed the batch, or if another owner has written after it, the batch will never be
completed. That is damage.

    the lane's last message has no mark ─► written after it?        ─► DamageError
                                           server restarted since?  ─► DamageError
                                           otherwise                ─► wait for the restart

Above it: `ledger.py`. Below it: the stream, through functions that are passed in.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from millstream import codes
from millstream.buffers.jetstream.requests import Get, message_headers, tries
from millstream.buffers.jetstream.sending import BATCH_COMMIT, BATCH_ID, BATCH_SEQUENCE
from millstream.errors import DamageError
from millstream.ledger.subjects import lane_filter_of

_log = logging.getLogger(__name__)


LastStored = Callable[[], Awaitable[int]]
"""Sequence of the last message of the stream."""
ServerStart = Callable[[], Awaitable[datetime | None]]
"""When the server was started; None if that cannot be read."""


class TornBatch(NamedTuple):
    """The stored part of a batch that was not completed."""

    lane: str
    """Key of the lane that wrote it."""
    first: int
    last: int
    """First and last stream sequence of the stored part."""
    at: datetime
    """When its last message was stored."""


class TornEnds:
    """Detects torn batches of one stream."""

    def __init__(self, name: str, last_stored: LastStored, get: Get, server_start: ServerStart) -> None:
        self._name = name
        self._last_stored = last_stored
        self._get = get
        self._server_start = server_start

    async def find(self) -> TornBatch | None:
        """The incomplete batch at the end of the stream; None if there is none."""
        last = await self._last_stored()
        message = await self._get({"seq": last}) if last else None
        if message is None:
            return None
        headers = message_headers(message)
        if BATCH_ID not in headers or BATCH_COMMIT in headers:
            return None
        # The server does not answer requests for messages while it applies a batch. So if more messages follow now, the
        # batch was not torn.
        if await self._last_stored() != last:
            return None
        return torn_batch(message)

    async def wait(self, what: str) -> None:
        """Return when the stream does not end in the middle of a batch. Raises `DamageError` if the batch will not be
        completed."""
        pauses = tries()
        warned = False
        while (torn := await self.find()) is not None:
            await self._check(torn)
            if not warned:
                _log.error("%s waits: %s", what, self.advice(torn))
                warned = True
            await pauses.wait()

    async def check_lane(self, message: Mapping[str, Any]) -> TornBatch:
        """The torn batch that ends with `message`, the last message of its lane, which has no mark. Raises
        `DamageError` if the batch will not be completed."""
        torn = torn_batch(message)
        if await self._last_stored() != torn.last:
            newest = await self._get({"last_by_subj": lane_filter_of(message["subject"])})
            # The messages of a batch have consecutive sequences. So if this lane has not written more, the later
            # messages are not part of the batch.
            if newest is not None and newest["seq"] == torn.last:
                raise self._damage(torn, "other lanes wrote after it, or its last messages are lost")
            return torn
        await self._check(torn)
        return torn

    def advice(self, torn: TornBatch) -> str:
        return (
            f"stream {self._name} ends in the middle of a batch of lane {torn.lane}, sequences {torn.first} to "
            f"{torn.last}, which happens when the broker cannot write. Free some space on its disk and restart it; "
            "it then completes the batch. If it was restarted since, see the advice of `millstream repair`"
        )

    async def _check(self, torn: TornBatch) -> None:
        started = await self._server_start()
        if started is None or started <= torn.at:
            return
        # The batch may have been seen before the restart, which completed it.
        if await self.find() == torn:
            raise self._damage(torn, f"it was restarted since, at {started:%Y-%m-%d %H:%M:%S} UTC")

    def _damage(self, torn: TornBatch, why: str) -> DamageError:
        return DamageError(
            codes.COMMIT_TORN,
            f"the broker stored a part of a commit of lane {torn.lane}, sequences {torn.first} to {torn.last} of "
            f"{self._name}, and {why}: it will not be completed. So the lane's mark cannot be read, and readers of "
            "its buffers may have seen records that were not committed. Restore the stream, see the advice of "
            "`millstream repair` (with --accept-loss it removes the incomplete part), or start the pipeline over",
        )


def torn_batch(message: Mapping[str, Any]) -> TornBatch:
    """The batch that ends with this message. Pure."""
    last, headers = int(message["seq"]), message_headers(message)
    number = int(headers.get(BATCH_SEQUENCE, "1"))
    _, lane_input, partition, *_ = message["subject"].split(".")
    return TornBatch(f"{lane_input}.{partition}", last - number + 1, last, datetime.fromisoformat(message["time"]))
