"""`format` of a source: the values of another lane, decoded to JSON.

    lane ─► batch, held ─► schemas of its values ─► JSON, or invalid with the reason
                   └─ registry away: empty batches, at the position before it

Above it: the lane that reads event times and keys off the JSON. Below it: the lane of any source whose values are
bytes, and the decoder.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from millstream.clock import Clock
from millstream.errors import MillstreamError
from millstream.formats.decoding import Decoder, open_decoder
from millstream.frame import Frame
from millstream.spec.formats import Format
from millstream_reader.source import InvalidRecord, SourceBatch, SourceLane
from millstream_reader.sources.reaching import Reaching
from millstream_udf import columns

_log = logging.getLogger(__name__)


class DecodingLane:
    """The records of another lane, decoded. See `SourceLane`."""

    def __init__(self, lane: SourceLane, decoder: Decoder, position: bytes, clock: Clock) -> None:
        self._lane = lane
        self._decoder = decoder
        self._position = position
        """Behind what was given."""
        self._held: SourceBatch | None = None
        """What was read and could not be decoded so far, because the registry is away."""
        self._reaching = Reaching(clock, _log)

    @property
    def replayable(self) -> bool:
        return self._lane.replayable

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> SourceBatch:
        if self._held is None:
            self._held = await self._lane.read(records_max, bytes_max, timeout_s)
        elif not await self._reaching.may_try(timeout_s):
            return SourceBatch(None, self._position)
        batch = self._held
        if batch.frame is not None:
            try:
                batch = await self._decoded(batch, batch.frame)
            except MillstreamError as error:
                self._reaching.failed(error)
                return SourceBatch(None, self._position)
            self._reaching.worked()
        self._held, self._position = None, batch.position
        return batch

    async def committed(self, position: bytes) -> None:
        await self._lane.committed(position)

    def pending(self) -> int | None:
        waiting = self._lane.pending()
        held = self._held.frame if self._held is not None else None
        return waiting if waiting is None or held is None else waiting + held.records

    async def drain(self) -> None:
        await self._lane.drain()

    async def _decoded(self, batch: SourceBatch, frame: Frame) -> SourceBatch:
        encoded = frame.values()
        values: list[bytes] = []
        kept: list[int] = []
        invalid: list[InvalidRecord] = []
        for row, made in enumerate(await self._decoder.decode(encoded)):
            if isinstance(made, ValueError):
                invalid.append(InvalidRecord(encoded[row], str(made)))
            else:
                values.append(made)
                kept.append(row)
        if not kept:
            return replace(batch, frame=None, invalid=(*batch.invalid, *invalid), made_up=b"")
        taken = frame if not invalid else frame.take(kept)
        return replace(
            batch,
            frame=replace(taken, values_column=columns.pack_bytes(values)),
            invalid=(*batch.invalid, *invalid),
            made_up=batch.rows_made_up(kept),
        )


@asynccontextmanager
async def decoding(
    lane: SourceLane, settings: Format, position: bytes, *, base_dir: Path, clock: Clock, where: str
) -> AsyncIterator[SourceLane]:
    """The lane with its values decoded. Errors: those of `open_decoder`."""
    async with open_decoder(settings, base_dir, clock, where) as decoder:
        yield DecodingLane(lane, decoder, position, clock)
