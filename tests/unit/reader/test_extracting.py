"""Event time and keys of whole frames: what is left keeps what belongs to it."""

from __future__ import annotations

from array import array

from millstream.extract import Extraction
from millstream.frame import build_frame
from millstream_connectors.shared.extracting_lane import ExtractingLane
from millstream_reader.source import SourceBatch


class _OneBatch:
    """A lane that gives one batch. See `SourceLane`."""

    replayable = False

    def __init__(self, batch: SourceBatch) -> None:
        self._batch = batch

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> SourceBatch:
        return self._batch

    async def committed(self, position: bytes) -> None:
        """Nothing waits for it."""

    def pending(self) -> int | None:
        return None

    async def drain(self) -> None:
        """Nothing is taken in."""


async def test_ids_that_were_made_up_stay_with_their_records() -> None:
    frame = build_frame([b'{"k":"a"}', b"not JSON", b'{"k":"b"}'], array("q", [1, 2, 3]), ingest_time_us=1)
    lane = ExtractingLane(_OneBatch(SourceBatch(frame, b"p", made_up=b"\1\1\0")), Extraction(key_fields=("k",)))
    batch = await lane.read(10, 1000, 0.0)
    assert batch.frame is not None
    assert (batch.frame.keys(), batch.made_up, len(batch.invalid)) == ([(b"a",), (b"b",)], b"\1\0", 1)
