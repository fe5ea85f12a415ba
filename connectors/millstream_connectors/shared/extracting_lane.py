"""`eventTime` and `keys` for a source that returns whole frames.

Above it: a source lane. Below it: another lane, of a generator or of a source of the user's own. Lanes of files and
HTTP requests extract event times and keys themselves and do not need it.
"""

from __future__ import annotations

from array import array
from dataclasses import replace

from millstream.extract import Extraction
from millstream.frame import Frame
from millstream_connectors.shared.parsing import checked_json
from millstream_connectors.shared.wrapped_lane import WrappedLane
from millstream_reader.source import InvalidRecord, SourceBatch, SourceLane
from millstream_udf import columns


class ExtractingLane(WrappedLane):
    """The records of another lane, with the event time and keys that the spec asks for. See `SourceLane`."""

    def __init__(self, lane: SourceLane, extraction: Extraction) -> None:
        super().__init__(lane)
        self._extraction = extraction

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> SourceBatch:
        batch = await self._lane.read(records_max, bytes_max, timeout_s)
        if batch.frame is None:
            return batch
        frame, invalid, kept = extract(batch.frame, self._extraction)
        made_up = batch.rows_made_up(kept) if invalid else batch.made_up
        return replace(batch, frame=frame, invalid=(*batch.invalid, *invalid), made_up=made_up)


def extract(frame: Frame, extraction: Extraction) -> tuple[Frame | None, list[InvalidRecord], list[int]]:
    """The frame with event times and keys extracted from its records, the records without valid ones, and the remaining
    rows. Pure."""
    times = frame.event_times_us()
    keys = frame.keys()
    headers = frame.headers()
    kept: list[int] = []
    invalid: list[InvalidRecord] = []
    for index, value in enumerate(frame.values()):
        try:
            item = checked_json(value) if extraction.reads_value else None
            if extraction.time_field is not None:
                times[index] = extraction.event_time_us(item)
            elif extraction.time_header is not None:
                times[index] = extraction.header_time_us(headers[index])
            if extraction.key_fields:
                keys[index] = extraction.keys(item)
        except ValueError as error:
            invalid.append(InvalidRecord(value, str(error)))
        else:
            kept.append(index)
    if not kept:
        return None, invalid, kept
    if invalid:
        frame = frame.take(kept)
        times = array("q", [times[index] for index in kept])
        keys = [keys[index] for index in kept]
    return (
        replace(
            frame,
            event_time_min_us=min(times),
            event_time_max_us=max(times),
            event_times_column=columns.pack_times(times),
            keys_column=columns.pack_lists(keys),
        ),
        invalid,
        kept,
    )
