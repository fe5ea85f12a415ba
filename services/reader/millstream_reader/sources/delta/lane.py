"""Rows of a Delta table, in the order of its versions.

    newest version: all its files, by name ─► version + 1: the files it added ─► version + 2 ─► …
                                                  └─ not there yet: the end, or looked for again every `pollEvery`

One lane reads the table. Lanes could not share it: files are joined and removed while they read, so they would have to
begin at one version. The position has the version, how many of its files are done, the rows
that were read of the next one, and a checksum of the version's entry in the log.

Above it: a source lane. Below it: `log`, which blocks, in one thread.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

from millstream import codes
from millstream.errors import DamageError, RetryLaterError
from millstream.frame import build_frame
from millstream.limits import RECORD_BYTES_MAX
from millstream_reader.connector import SourceOwner
from millstream_reader.source import InvalidRecord, SourceBatch, SourceLane
from millstream_reader.sources.delta.connector import DeltaSource
from millstream_reader.sources.delta.log import Added, TableLog
from millstream_reader.sources.file.disk import Worker, open_worker
from millstream_reader.sources.file.lane import owner_of
from millstream_reader.sources.positions import pack_position, unpack_position, unreadable_position
from millstream_reader.sources.reaching import Reaching

KIND = "delta"
_SHOWN_BYTES = 64 * 1024
_log = logging.getLogger(__name__)


class DeltaSourceLane:
    """One lane of a table. See `SourceLane`."""

    def __init__(self, settings: DeltaSource, owner: SourceOwner, worker: Worker) -> None:
        self._settings = settings
        self._owner = owner
        self._worker = worker
        self._table = TableLog(settings, owner.base_dir, f"lane {owner.lane}")
        self._reaching = Reaching(owner.clock, _log)
        # The position.
        self._id = ""
        self._version = -1
        self._whole = True
        """All files of the version are read, not those alone that it added."""
        self._done = 0
        self._row = 0
        self._crc = 0
        """Of the newest version of which something was read."""
        # What is in hand.
        self._files: Sequence[Added] | None = None
        """Of the version."""
        self._found_crc = 0
        """Of the version to which they belong."""
        self._blocks: Iterator[list[bytes]] | None = None
        self._values: list[bytes] = []
        self._next = 0
        self._checked = False
        self._draining = False
        self._ended = owner_of(settings.path, owner.partitions) != owner.lane.partition
        """For another lane from the beginning."""

    @property
    def replayable(self) -> bool:
        return True

    def resume(self, position: bytes) -> None:
        """Go to a position of an earlier run. Raises `DamageError` for one that is none."""
        body = unpack_position(position, KIND, self._owner.partitions, self._owner.lane)
        if body is None:
            return
        try:
            self._id, self._whole = str(body["table"]), bool(body["whole"])
            self._version, self._done, self._row = int(body["at"]), int(body["files"]), int(body["row"])
            self._crc = int(body["crc"])
        except (LookupError, TypeError, ValueError) as error:
            raise unreadable_position(f"lane {self._owner.lane}", position, "a delta source") from error

    async def open(self) -> None:
        """What shows at once. A store that is away is waited for."""
        if self._ended:
            return
        try:
            await self._worker.run(self._begin)
        except RetryLaterError as error:
            self._reaching.failed(error)

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> SourceBatch:
        # Records in memory are given without waiting, so others would never have their turn.
        await asyncio.sleep(0)
        clock = self._owner.clock
        until_s = clock.monotonic_s() + timeout_s
        while not self._draining and not self._ended:
            if self._next < len(self._values):
                return self._take(records_max, bytes_max)
            if not await self._reaching.may_try(max(0.0, until_s - clock.monotonic_s())):
                break
            try:
                await self._worker.run(self._fill)
            except RetryLaterError as error:
                self._blocks = None
                self._reaching.failed(error)
        return SourceBatch(None, self._position(), ended=self._ended)

    async def committed(self, position: bytes) -> None:
        """Nothing outside waits for it."""

    def pending(self) -> int | None:
        return None

    async def drain(self) -> None:
        self._draining = True

    # In the thread.

    def _begin(self) -> None:
        """Reach the table, and check whether it is the one of the position."""
        found = self._table.open()
        if self._id and found != self._id:
            raise self._replaced(f"its id is now {found}, and was {self._id}")
        newest = self._table.newest()
        if not self._id:
            self._id, self._version = found, newest
            self._crc = self._table.crc_of(newest) or 0
        else:
            last = self._version if self._begun else self._version - 1
            if newest < last:
                raise self._replaced(f"its newest version is {newest}, but version {last} was already read")
            crc = self._table.crc_of(last)
            if crc is not None and crc != self._crc:
                raise self._replaced(f"version {last} has changed")
        self._checked = True

    @property
    def _begun(self) -> bool:
        """The version in hand is there: something of it was looked at."""
        return self._whole or self._done > 0 or self._row > 0

    def _fill(self) -> None:
        """One step: a block of rows, the next file, or the next version."""
        if not self._checked:
            self._begin()
        if self._files is None:
            self._look()
            return
        if self._done == len(self._files):
            self._crc = self._found_crc
            self._version, self._whole, self._done, self._row = self._version + 1, False, 0, 0
            self._files = None
            return
        if self._blocks is None:
            self._blocks = self._table.rows(self._files[self._done], self._row)
        block = next(self._blocks, None)
        self._reaching.worked()
        if block is None:
            self._blocks = None
            self._done, self._row = self._done + 1, 0
        else:
            self._values, self._next = block, 0

    def _look(self) -> None:
        """The files of the version, if it is there."""
        if self._whole:
            found = self._table.snapshot(self._version)
        elif self._version <= self._table.newest():
            found = self._table.version(self._version)
        else:
            self._reaching.worked()
            if not self._settings.follow:
                self._ended = True
            else:
                self._reaching.rest(self._settings.poll_every_s)
            return
        if self._begun and found.crc and found.crc != self._crc:
            raise self._replaced(f"version {self._version} has changed")
        if found.skipped:
            _log.warning(
                "lane %s: skips version %d of %s, which changes or removes rows (%s)",
                self._owner.lane, self._version, self._settings.path, found.skipped,
            )  # fmt: skip
        self._found_crc = found.crc
        self._files = found.files
        if self._done > len(self._files):
            raise self._replaced(f"version {self._version} has fewer files than before")

    # In memory.

    def _take(self, records_max: int, bytes_max: int) -> SourceBatch:
        size, begin = 0, self._next
        values: list[bytes] = []
        invalid: list[InvalidRecord] = []
        while self._next < len(self._values) and len(values) < records_max:
            value = self._values[self._next]
            if values and size + len(value) > bytes_max:
                break
            self._next += 1
            if len(value) > RECORD_BYTES_MAX:
                assert self._files is not None, "a row comes from a file"
                row = self._row + self._next - begin
                place = f"{self._settings.path}, {self._files[self._done].path}, row {row}"
                reason = f"{place}: its JSON has {len(value)} bytes; the limit is 7 MiB"
                invalid.append(InvalidRecord(value[:_SHOWN_BYTES], reason, place))
                continue
            size += len(value) + 16
            values.append(value)
        self._row += self._next - begin
        now_us = self._owner.clock.now_us()
        frame = build_frame(values, array("q", [now_us]) * len(values), ingest_time_us=now_us) if values else None
        return SourceBatch(frame, self._position(), invalid=tuple(invalid))

    def _position(self) -> bytes:
        body = {
            "table": self._id,
            "at": self._version,
            "whole": self._whole,
            "files": self._done,
            "row": self._row,
            "crc": self._found_crc if self._files is not None and self._begun else self._crc,
        }
        return pack_position(KIND, self._owner.partitions, body) if self._id else self._owner.position

    def _replaced(self, what: str) -> DamageError:
        return DamageError(
            codes.SOURCE_FILE_CHANGED,
            f"lane {self._owner.lane}: the Delta table {self._settings.path} is not the one that was read before: "
            f"{what}. Records that were already read are kept. Put the table back as it was, or start over with "
            "--fresh",
        )


@asynccontextmanager
async def open_delta_source(settings: DeltaSource, owner: SourceOwner) -> AsyncIterator[SourceLane]:
    """A lane of the table, going on at `owner.position`."""
    async with open_worker(f"delta-{owner.lane.partition}") as worker:
        lane = DeltaSourceLane(settings, owner, worker)
        try:
            lane.resume(owner.position)
            await lane.open()
            yield lane
        finally:
            worker.finish()
