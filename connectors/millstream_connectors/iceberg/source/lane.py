"""Rows of an Iceberg table, in the order of its snapshots.

    newest snapshot: all its files, by name ─► its child: the files it added ─► the child of that one ─► …

One lane reads the table, as for Delta. The position has the table's id, the snapshot, the number of its files that are
done, and the number of rows read from the next one. Snapshots have random ids, so a different history has different
ones: a snapshot that is not an ancestor of the newest one is not part of the table any more.

Above it: a source lane. Below it: `snapshots`, which blocks, in one thread.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from millstream_connectors.file.source.disk import Worker, open_worker
from millstream_connectors.iceberg.settings import IcebergSource
from millstream_connectors.iceberg.source.snapshots import AddedFile, Snapshots
from millstream_connectors.lake.source_lane import TableSourceLane
from millstream_connectors.shared.positions import pack_position, unpack_position, unreadable_position
from millstream_reader.connector import SourceOwner
from millstream_reader.source import SourceLane

KIND = "iceberg"
_log = logging.getLogger(__name__)


class IcebergSourceLane(TableSourceLane[AddedFile]):
    """One lane of a table. See `SourceLane`."""

    def __init__(self, settings: IcebergSource, owner: SourceOwner, worker: Worker) -> None:
        poll_every_s = settings.poll_every_s if settings.follow else None
        super().__init__(owner, worker, settings.table, f"the Iceberg table {settings.table}", poll_every_s)
        self._table = Snapshots(settings, owner.base_dir, f"lane {owner.lane}")
        # The position.
        self._id = ""
        self._last: int | None = None
        """The newest snapshot that was read to its end."""
        self._at: int | None = None
        """The snapshot that is being read."""
        self._whole = False
        """Whether all its files are read, not only those that it added."""
        self._later: list[int] = []
        """The snapshots after it, when the table was looked at last."""
        self._later_count: int | None = 0
        """Rows that they add."""

    def resume(self, position: bytes) -> None:
        body = unpack_position(position, KIND, self._owner.partitions, self._owner.lane)
        if body is None:
            return
        try:
            self._id, self._whole = str(body["table"]), bool(body["whole"])
            self._last, self._at = (None if body[name] is None else int(body[name]) for name in ("last", "at"))
            self._done, self._row = int(body["files"]), int(body["row"])
        except (LookupError, TypeError, ValueError) as error:
            raise unreadable_position(f"lane {self._owner.lane}", position, "an iceberg source") from error

    def close(self) -> None:
        """Called when the worker has ended."""
        self._table.close()

    def pending_versions(self) -> int | None:
        if self._ended:
            return 0
        return len(self._later) + (self._at is not None) if self._checked else None

    def _later_rows(self) -> int | None:
        return self._later_count

    def _begin(self) -> None:
        found = self._table.open()
        if self._id and found != self._id:
            raise self._replaced(f"its id is now {found}, and was {self._id}")
        if not self._id:
            self._id, self._at = found, self._table.newest()
            self._whole = self._at is not None
        elif self._at is not None and not self._whole and self._at not in self._after(self._last):
            raise self._replaced(f"snapshot {self._at} was rolled back")
        self._checked = True

    def _after(self, last: int | None) -> list[int]:
        found = self._table.after(last)
        if found is None:
            raise self._replaced(f"snapshot {last} was rolled back" if last is not None else "it has an older history")
        return found

    def _look(self) -> None:
        if self._at is None:
            later = self._after(self._last)
            if not later:
                self._at_newest()
                return
            self._at, self._later = later[0], later[1:]
            self._later_count = self._table.rows_added(self._later)
        found = self._table.whole(self._at) if self._whole else self._table.added(self._at)
        if found.skipped:
            _log.warning(
                "lane %s: skips snapshot %d of %s, which changes or removes rows (%s)",
                self._owner.lane, self._at, self._place, found.skipped,
            )  # fmt: skip
        if self._done > len(found.files):
            raise self._replaced(f"snapshot {self._at} has fewer files than before")
        self._files = found.files

    def _advance(self) -> None:
        self._last, self._at, self._whole, self._done, self._row = self._at, None, False, 0, 0

    def _rows(self, file: AddedFile, skipped: int) -> Iterator[list[bytes]]:
        return self._table.rows(file, skipped)

    def _position(self) -> bytes:
        # A snapshot that was only inspected is not part of its history.
        begun = self._whole or self._done > 0 or self._row > 0
        body = {
            "table": self._id,
            "last": self._last,
            "at": self._at if begun else None,
            "whole": self._whole,
            "files": self._done,
            "row": self._row,
        }
        return pack_position(KIND, self._owner.partitions, body) if self._id else self._owner.position


@asynccontextmanager
async def open_iceberg_source(settings: IcebergSource, owner: SourceOwner) -> AsyncIterator[SourceLane]:
    """A lane of the table, which continues at `owner.position`."""
    async with open_worker(f"iceberg-{owner.lane.partition}") as worker:
        lane = IcebergSourceLane(settings, owner, worker)
        try:
            lane.resume(owner.position)
            await lane.open()
            yield lane
        finally:
            worker.finish()
            lane.close()
