"""A lane of the `spool` source. Its position is the number of the last file that it has seen."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from millstream import codes
from millstream.clock import Clock
from millstream.errors import DamageError
from millstream.frame import build_frame
from millstream_reader.connector import SourceOwner
from millstream_reader.source import SourceBatch, SourceLane
from millstream_toys.spool.client import read_file
from millstream_toys.spool.settings import SpoolSource

_LOOK_S = 0.02


class _SpoolLane:
    def __init__(self, directory: Path, owner: SourceOwner, last: int, *, stop_at_end: bool) -> None:
        self._directory = directory
        self._partition, self._partitions = owner.lane.partition, owner.partitions
        self._clock: Clock = owner.clock
        self._last = last
        self._stop_at_end = stop_at_end
        self._draining = False

    @property
    def replayable(self) -> bool:
        return True

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> SourceBatch:
        until_s = self._clock.monotonic_s() + timeout_s
        while not self._draining:
            found, last = await asyncio.to_thread(self._files, records_max, bytes_max)
            ended = self._stop_at_end and not found
            self._last = last
            if found or ended or self._clock.monotonic_s() >= until_s:
                return self._batch(found, ended=ended)
            await asyncio.sleep(_LOOK_S)
        return self._batch([], ended=False)

    def _files(self, records_max: int, bytes_max: int) -> tuple[list[tuple[bytes, int]], int]:
        """What follows the position, within the limits, and the new position."""
        found: list[tuple[bytes, int]] = []
        last, size = self._last, 0
        while len(found) < records_max and (file := read_file(self._directory, last + 1)) is not None:
            if (last + 1) % self._partitions == self._partition:
                size += len(file[0])
                if found and size > bytes_max:
                    break
                found.append(file)
            last += 1
        return found, last

    def _batch(self, found: list[tuple[bytes, int]], *, ended: bool) -> SourceBatch:
        position = str(self._last).encode()
        if not found:
            return SourceBatch(None, position, ended=ended)
        values, times_us = zip(*found, strict=True)
        frame = build_frame(values, array("q", times_us), ingest_time_us=self._clock.now_us())
        return SourceBatch(frame, position)

    async def committed(self, position: bytes) -> None:
        """The files stay."""

    def pending(self) -> int | None:
        return None

    async def drain(self) -> None:
        """Files can wait."""
        self._draining = True


@asynccontextmanager
async def open_spool(settings: SpoolSource, owner: SourceOwner) -> AsyncIterator[SourceLane]:
    """Continues after the number in `owner.position`."""
    try:
        last = int(owner.position or b"0")
    except ValueError as error:
        what = f"lane {owner.lane}: {owner.position[:80]!r} is not the number of a file"
        raise DamageError(codes.POSITION_UNREADABLE, what) from error
    yield _SpoolLane(owner.base_dir / settings.path, owner, last, stop_at_end=settings.stop_at_end)
