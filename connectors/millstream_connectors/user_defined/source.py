"""A source written by the user, behind the source protocol of a sidecar.

Above it: a source lane. Below it: the stream to the function (`millstream.udf.streams`), which has checked that the
function's answers are consistent. It does not know processes.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from millstream import codes
from millstream.errors import UdfError
from millstream.limits import SIDECAR_BACKOFF_FIRST_S, SIDECAR_BACKOFF_LAST_S
from millstream.pauses import Pauses
from millstream.tracebacks import raised, shortened
from millstream.udf.protocol import StreamName, UdfClient
from millstream.udf.streams import SourceStream
from millstream_reader.connector import SourceOwner
from millstream_reader.source import SourceBatch

_log = logging.getLogger(__name__)

_FAILURES_MAX = 5
"""How often in a row the function may fail, to open, to read or to acknowledge, until the lane stops: 0.1 + 0.2 + 0.4 +
0.8 s of pauses between them."""


@asynccontextmanager
async def open_user_defined(client: UdfClient, name: StreamName, owner: SourceOwner) -> AsyncIterator[UserDefinedLane]:
    """A lane of the function behind `client`, which continues at `owner.position`."""
    async with client.open_source(
        name, position=owner.position, partition=owner.lane.partition, partitions=owner.partitions
    ) as stream:
        yield UserDefinedLane(stream, owner)


class UserDefinedLane:
    """One lane of a user-defined source. See `SourceLane`."""

    def __init__(self, stream: SourceStream, owner: SourceOwner) -> None:
        self._stream = stream
        self._owner = owner
        self._position = owner.position
        self._gives_ids = False
        self._pending: int | None = None
        self._failures = 0
        self._pauses = Pauses(SIDECAR_BACKOFF_FIRST_S, SIDECAR_BACKOFF_LAST_S)
        self._ended = False
        self._draining = False

    @property
    def replayable(self) -> bool:
        """Whether the function is replayable: one that gives ids may repeat records; any other relies on positions."""
        return not self._gives_ids

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> SourceBatch:
        """One read from the function. A read that it reports as failed is repeated a few times, after pauses."""
        if self._draining or self._ended:
            return SourceBatch(None, self._position, self._ended)
        batch = await self._stream.read(records_max, bytes_max, timeout_s)
        if batch.error:
            await self._bear_failure(batch.error, batch.attempts)
            return SourceBatch(None, self._position)
        self._failures = 0
        self._pauses.begin_again()
        self._pending = batch.pending
        frame = batch.frame
        if frame is not None and not frame.ingest_time_us:
            frame = replace(frame, ingest_time_us=self._owner.clock.now_us())
        self._gives_ids = self._gives_ids or bool(frame is not None and frame.ids_column)
        self._position = batch.position
        self._ended = batch.ended
        return SourceBatch(frame, self._position, self._ended)

    async def committed(self, position: bytes) -> None:
        await self._stream.committed(position)

    def pending(self) -> int | None:
        return self._pending

    def is_held_up(self) -> bool:
        return self._failures > 0 or self._stream.is_away

    async def drain(self) -> None:
        self._draining = True

    async def _bear_failure(self, reason: str, attempts: int) -> None:
        self._failures += attempts
        if self._failures >= _FAILURES_MAX:
            short = "\n".join(shortened(reason)) if raised(reason) else reason
            raise UdfError(
                codes.SOURCE_FUNCTION_FAILED,
                f"{self._owner.where}: the source function failed {self._failures} times in a row: {short}\n"
                "Fix the function or the system that it reads from; nothing was lost.",
                detail=reason if short != reason else "",
            )
        _log.warning(
            "lane %s: the source function failed; next attempt in %.1f s: %s",
            self._owner.lane,
            self._pauses.next_s,
            # The traceback is shown when the read is not repeated any more.
            raised(reason) or reason,
        )
        await self._pauses.wait()
