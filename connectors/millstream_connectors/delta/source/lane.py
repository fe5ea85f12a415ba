"""Rows of a Delta table, in the order of its versions.

    newest version: all its files, by name ─► version + 1: the files it added ─► version + 2 ─► …
                                                  └─ does not exist yet: the end, or checked again every `pollEvery`

One lane reads the table. Lanes could not share it: files are compacted and removed while they read, so all lanes would
have to begin at one version. The position has the version, the number of its files that are done, the number of rows
read from the next one, and a checksum of the version's entry in the log.

Above it: a source lane. Below it: `log`, which blocks, in one thread.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from millstream_connectors.delta.settings import DeltaSource
from millstream_connectors.delta.source.log import AddedFile, TableLog
from millstream_connectors.file.source.disk import Worker, open_worker
from millstream_connectors.lake.source_lane import TableSourceLane
from millstream_connectors.shared.positions import pack_position, unpack_position, unreadable_position
from millstream_reader.connector import SourceOwner
from millstream_reader.source import SourceLane

KIND = "delta"
_log = logging.getLogger(__name__)


class DeltaSourceLane(TableSourceLane[AddedFile]):
    """One lane of a table. See `SourceLane`."""

    def __init__(self, settings: DeltaSource, owner: SourceOwner, worker: Worker) -> None:
        poll_every_s = settings.poll_every_s if settings.follow else None
        super().__init__(owner, worker, settings.path, f"the Delta table {settings.path}", poll_every_s)
        self._settings = settings
        self._table = TableLog(settings, owner.base_dir, f"lane {owner.lane}")
        # The position.
        self._id = ""
        self._version = -1
        self._whole = True
        """Whether all files of the version are read, not only those that it added."""
        self._crc = 0
        """Checksum of the newest version from which something was read."""
        self._newest = -1
        """Number of the newest version, when the table was looked at last."""
        self._found_crc = 0
        """Checksum of the version whose files are being read."""

    def resume(self, position: bytes) -> None:
        body = unpack_position(position, KIND, self._owner.partitions, self._owner.lane)
        if body is None:
            return
        try:
            self._id, self._whole = str(body["table"]), bool(body["whole"])
            self._version, self._done, self._row = int(body["at"]), int(body["files"]), int(body["row"])
            self._crc = int(body["crc"])
        except (LookupError, TypeError, ValueError) as error:
            raise unreadable_position(f"lane {self._owner.lane}", position, "a delta source") from error

    def pending_versions(self) -> int | None:
        if self._ended:
            return 0
        return max(0, self._newest - self._version + 1) if self._checked else None

    def _later_rows(self) -> int | None:
        # Only their entries in the log would say.
        return 0 if self._version >= self._newest else None

    # Called in the thread.

    def _begin(self) -> None:
        found = self._table.open()
        if self._id and found != self._id:
            raise self._replaced(f"its id is now {found}, and was {self._id}")
        newest = self._newest = self._table.newest()
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
        """Whether the current version exists, because something of it was read."""
        return self._whole or self._done > 0 or self._row > 0

    def _advance(self) -> None:
        self._crc = self._found_crc
        self._version, self._whole, self._done, self._row = self._version + 1, False, 0, 0

    def _rows(self, file: AddedFile, skipped: int) -> Iterator[list[bytes]]:
        return self._table.rows(file, skipped)

    def _look(self) -> None:
        self._newest = self._table.newest()
        if self._whole:
            found = self._table.snapshot(self._version)
        elif self._version <= self._newest:
            found = self._table.version(self._version)
        else:
            self._at_newest()
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


@asynccontextmanager
async def open_delta_source(settings: DeltaSource, owner: SourceOwner) -> AsyncIterator[SourceLane]:
    """A lane of the table, which continues at `owner.position`."""
    async with open_worker(f"delta-{owner.lane.partition}") as worker:
        lane = DeltaSourceLane(settings, owner, worker)
        try:
            lane.resume(owner.position)
            await lane.open()
            yield lane
        finally:
            worker.finish()
