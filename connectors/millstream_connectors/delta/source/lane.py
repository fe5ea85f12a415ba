"""Rows of a Delta table, in the order of its versions.

    newest version: all its files, by name ─► version + 1: the files it added ─► version + 2 ─► …
                                                  └─ does not exist yet: the end, or checked again every `pollEvery`

One lane reads the table. Lanes could not share it: files are compacted and removed while they read, so all lanes would
have to begin at one version. The position has the version, the number of its files that are done, the number of rows
read from the next one, and a checksum of the version's entry in the log.

Above it: a source lane. Below it: `log`, which blocks, in one thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millstream_connectors.delta.settings import DeltaSource
from millstream_connectors.delta.source.log import AddedFile, TableLog
from millstream_connectors.file.source.disk import Worker
from millstream_connectors.lake.source_lane import TableSourceLane
from millstream_reader.connector import SourceOwner


class DeltaSourceLane(TableSourceLane[AddedFile]):
    """One lane of a table. See `SourceLane`."""

    kind = "delta"

    def __init__(self, settings: DeltaSource, owner: SourceOwner, worker: Worker) -> None:
        self._log = TableLog(settings, owner.base_dir, f"lane {owner.lane}")
        super().__init__(owner, worker, self._log, settings.path, settings.poll_every_s if settings.follow else None)
        # The position.
        self._version = -1
        self._crc = 0
        """Checksum of the newest version from which something was read."""
        self._newest = -1
        """Number of the newest version, when the table was looked at last."""
        self._found_crc = 0
        """Checksum of the version whose files are being read."""

    def pending_versions(self) -> int | None:
        if self._ended:
            return 0
        return max(0, self._newest - self._version + 1) if self._checked else None

    def _restore(self, body: Mapping[str, Any]) -> None:
        self._version, self._crc = int(body["at"]), int(body["crc"])

    def _state(self) -> dict[str, Any]:
        is_open = self._files is not None and self._begun
        return {"at": self._version, "crc": self._found_crc if is_open else self._crc}

    def _later_rows(self) -> int | None:
        # Only their entries in the log would say.
        return 0 if self._version >= self._newest else None

    # Called in the thread.

    def _begin_at_newest(self) -> None:
        self._newest = self._log.newest()
        self._version, self._whole = self._newest, True
        self._crc = self._log.crc_of(self._newest) or 0

    def _check_history(self) -> None:
        self._newest = self._log.newest()
        last = self._version if self._begun else self._version - 1
        if self._newest < last:
            raise self._replaced(f"its newest version is {self._newest}, but version {last} was already read")
        crc = self._log.crc_of(last)
        if crc is not None and crc != self._crc:
            raise self._replaced(f"version {last} has changed")

    def _advance(self) -> None:
        self._crc = self._found_crc
        self._version, self._whole, self._done, self._row = self._version + 1, False, 0, 0

    def _look(self) -> None:
        self._newest = self._log.newest()
        if self._whole:
            found = self._log.snapshot(self._version)
        elif self._version <= self._newest:
            found = self._log.version(self._version)
        else:
            self._at_newest()
            return
        if self._begun and found.crc and found.crc != self._crc:
            raise self._replaced(f"version {self._version} has changed")
        self._found_crc = found.crc
        self._use(f"version {self._version}", found)
