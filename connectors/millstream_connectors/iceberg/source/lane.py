"""Rows of an Iceberg table, in the order of its snapshots.

    newest snapshot: all its files, by name ─► its child: the files it added ─► the child of that one ─► …

One lane reads the table, as for Delta. The position has the table's id, the snapshot, the number of its files that are
done, and the number of rows read from the next one. Snapshots have random ids, so a different history has different
ones: a snapshot that is not an ancestor of the newest one is not part of the table any more.

Above it: a source lane. Below it: `snapshots`, which blocks, in one thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millstream_connectors.file.source.disk import Worker
from millstream_connectors.iceberg.settings import IcebergSource
from millstream_connectors.iceberg.source.snapshots import AddedFile, Snapshots
from millstream_connectors.lake.source_lane import TableSourceLane
from millstream_reader.connector import SourceOwner


class IcebergSourceLane(TableSourceLane[AddedFile]):
    """One lane of a table. See `SourceLane`."""

    kind, noun = "iceberg", "an iceberg source"

    def __init__(self, settings: IcebergSource, owner: SourceOwner, worker: Worker) -> None:
        self._snapshots = Snapshots(settings, owner.base_dir, f"lane {owner.lane}")
        poll_every_s = settings.poll_every_s if settings.follow else None
        super().__init__(owner, worker, self._snapshots, settings.table, poll_every_s)
        # The position.
        self._last: int | None = None
        """The newest snapshot that was read to its end."""
        self._at: int | None = None
        """The snapshot that is being read."""
        self._later: list[int] = []
        """The snapshots after it, when the table was looked at last."""
        self._later_count: int | None = 0
        """Rows that they add."""

    def pending_versions(self) -> int | None:
        if self._ended:
            return 0
        return len(self._later) + (self._at is not None) if self._checked else None

    def _restore(self, body: Mapping[str, Any]) -> None:
        self._last, self._at = (None if body[name] is None else int(body[name]) for name in ("last", "at"))

    def _state(self) -> dict[str, Any]:
        # A snapshot that was only inspected is not part of its history.
        return {"last": self._last, "at": self._at if self._begun else None}

    def _later_rows(self) -> int | None:
        return self._later_count

    # Called in the thread.

    def _begin_at_newest(self) -> None:
        self._at = self._snapshots.newest()
        self._whole = self._at is not None

    def _check_history(self) -> None:
        if self._at is not None and not self._whole and self._at not in self._after(self._last):
            raise self._replaced(f"snapshot {self._at} was rolled back")

    def _after(self, last: int | None) -> list[int]:
        found = self._snapshots.after(last)
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
            self._later_count = self._snapshots.rows_added(self._later)
        found = self._snapshots.whole(self._at) if self._whole else self._snapshots.added(self._at)
        self._use(f"snapshot {self._at}", found)

    def _advance(self) -> None:
        self._last, self._at, self._whole, self._done, self._row = self._at, None, False, 0, 0
