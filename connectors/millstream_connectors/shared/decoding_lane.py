"""`format` and `keyFormat` of a source: the values and keys of another lane, decoded to JSON.

    lane ─► batch, held ─► schemas of its values and keys ─► JSON, or invalid with the reason
                   └─ registry away: empty batches, at the position before it

Above it: the lane that extracts event times and keys from the JSON. Below it: the lane of any source whose values are
bytes, and the decoder.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

from millstream.clock import Clock
from millstream.errors import MillstreamError
from millstream.frame import Frame
from millstream.json_parser import parse_json
from millstream.spec.sources import Source
from millstream.values import Values
from millstream_connectors.shared.formats.decoding import Decoder, open_decoder
from millstream_connectors.shared.reaching import Reaching
from millstream_connectors.shared.wrapped_lane import WrappedLane
from millstream_reader.source import InvalidRecord, SourceBatch, SourceLane
from millstream_udf import columns

_log = logging.getLogger(__name__)

_Keys = tuple[bytes, ...]


class DecodingLane(WrappedLane):
    """The records of another lane, decoded. See `SourceLane`."""

    def __init__(
        self, lane: SourceLane, values: Decoder | None, keys: Decoder | None, position: bytes, clock: Clock
    ) -> None:
        super().__init__(lane)
        self._values = values
        self._keys = keys
        self._position = position
        """The position after the records that were returned."""
        self._held: SourceBatch | None = None
        """A batch that was read and could not be decoded yet, because the registry is away."""
        self._reaching = Reaching(clock, _log)

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

    def pending(self) -> int | None:
        waiting = super().pending()
        held = self._held.frame if self._held is not None else None
        return waiting if waiting is None or held is None else waiting + held.records

    def is_held_up(self) -> bool:
        return self._held is not None or super().is_held_up()

    async def _decoded(self, batch: SourceBatch, frame: Frame) -> SourceBatch:
        encoded = frame.values()
        values = list(encoded) if self._values is None else await self._values.decode(encoded)
        keys = await self._decoded_keys(frame)
        kept: list[int] = []
        invalid: list[InvalidRecord] = []
        for row, made in enumerate(values):
            key = keys[row] if keys is not None else ()
            if isinstance(made, ValueError):
                invalid.append(InvalidRecord(encoded[row], str(made)))
            elif isinstance(key, ValueError):
                invalid.append(InvalidRecord(encoded[row], f"the key: {key}"))
            else:
                kept.append(row)
        if not kept:
            return replace(batch, frame=None, invalid=(*batch.invalid, *invalid), made_up=b"")
        taken = frame if not invalid else frame.take(kept)
        if self._values is not None:
            taken = replace(taken, contents=Values.of([cast("bytes", values[row]) for row in kept]))
        if keys is not None:
            taken = replace(taken, keys_column=columns.pack_lists([cast("_Keys", keys[row]) for row in kept]))
        return replace(batch, frame=taken, invalid=(*batch.invalid, *invalid), made_up=batch.rows_made_up(kept))

    async def _decoded_keys(self, frame: Frame) -> list[_Keys | ValueError] | None:
        """Of each record; None where no record has one."""
        if self._keys is None or not frame.keys_column:
            return None
        given = frame.keys()
        made = iter(await self._keys.decode([parts[0] for parts in given if parts]))
        return [_text_of(next(made)) if parts else () for parts in given]


def _text_of(decoded: bytes | ValueError) -> _Keys | ValueError:
    """The key of a record: a JSON text is the text itself, anything else stays JSON."""
    if isinstance(decoded, ValueError):
        return decoded
    if not decoded.startswith(b'"'):
        return (decoded,)
    try:
        return (parse_json(decoded).encode(),)
    except UnicodeEncodeError as error:
        return ValueError(f"it is not text: {error}")


@asynccontextmanager
async def decoding(
    lane: SourceLane, source: Source, position: bytes, *, base_dir: Path, clock: Clock, where: str
) -> AsyncIterator[SourceLane]:
    """The lane with its values and keys decoded. Errors: those of `open_decoder`."""
    async with AsyncExitStack() as stack:
        values, keys = [
            await stack.enter_async_context(open_decoder(form, base_dir, clock, where)) if form is not None else None
            for form in (source.format, source.key_format)
        ]
        yield DecodingLane(lane, values, keys, position, clock)
