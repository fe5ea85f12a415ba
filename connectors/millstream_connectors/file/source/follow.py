"""Files that grow: read to their end, and further as they are written, rotated and truncated and as new ones appear.

Above it: a source lane. Below it: `text_file`. A file is identified by its inode and its first bytes, not by its name:
a file that is rotated by renaming is read to its end under its new name. A truncated file is read from its beginning. A
line is complete with its newline. When a file has been rotated away and has not grown for a while, its last line counts
without one.

A lane owns the files whose inode modulo the number of partitions is its number, because inodes survive renaming.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

from millstream import codes
from millstream.errors import UserError
from millstream_connectors.file.source.disk import FilePatterns, Worker
from millstream_connectors.file.source.text_file import FileMark, TextFile, TextFormat, open_text_file
from millstream_connectors.shared.positioned_lane import PositionedLane
from millstream_reader.connector import SourceOwner
from millstream_reader.source import SourceBatch

FOLLOWED_FILES_MAX = 500
"""Files that a lane follows at a time. Each is an open file and takes about 100 bytes of every position."""
_POLL_INTERVAL_S = 0.05
"""Interval between checks of files that were read to their end."""
SCAN_INTERVAL_S = 1.0
"""Interval between expansions of the patterns."""
ROTATED_WAIT_S = 5.0
"""How long a rotated file must not have grown before it is closed. Its writer may keep it open for a while."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Followed:
    """One file, with its state besides its text."""

    file: TextFile
    name: str
    inode: int
    silent_since_s: float
    """When the file last grew."""
    rotated: bool = False
    """Whether its name is gone, or belongs to another file."""


class FollowLane(PositionedLane):
    """One lane of files that grow. See `SourceLane`."""

    kind, noun = "follow", "a file source"

    def __init__(self, patterns: FilePatterns, text: TextFormat, owner: SourceOwner, worker: Worker) -> None:
        super().__init__(owner)
        self._patterns = patterns
        self._text = text
        self._clock = owner.clock
        self._worker = worker
        self._files: deque[_Followed] = deque()
        """Files take turns: one that has returned records moves to the end."""
        self._scanned_s: float | None = None

    async def open(self) -> None:
        body = self._unpacked(self._owner.position)
        if body is not None:
            with self._restoring():
                entries = [(str(name), int(inode), FileMark(*mark)) for name, inode, *mark in body["files"]]
            await self._worker.run(self._go_on, entries)

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> SourceBatch:
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        while not self._draining:
            batch = self._take(records_max, bytes_max)
            if batch is not None:
                return batch
            if await self._worker.run(self._fill):
                continue
            left_s = deadline_s - loop.time()
            if left_s <= 0:
                break
            await asyncio.sleep(min(_POLL_INTERVAL_S, left_s))
        return SourceBatch(None, self._position())

    def pending_bytes(self) -> int | None:
        """Of the files as they were when they were looked at last."""
        return sum(max(0, entry.file.size - entry.file.mark.offset) for entry in self._files)

    def close(self) -> None:
        while self._files:
            self._files.pop().file.close()

    def _position(self) -> bytes:
        # Sorted, so that the position does not depend on the order of turns.
        return self._packed({"files": sorted([entry.name, entry.inode, *entry.file.mark] for entry in self._files)})

    def _take(self, records_max: int, bytes_max: int) -> SourceBatch | None:
        for entry in list(self._files):
            closing = self._is_over(entry)
            while (
                taken := entry.file.take(records_max, bytes_max, now_us=self._clock.now_us(), closing=closing)
            ) is not None:
                if taken.frame is not None or taken.invalid:
                    self._files.remove(entry)
                    self._files.append(entry)
                    return SourceBatch(taken.frame, self._position(), invalid=taken.invalid)
            if closing:
                self._files.remove(entry)
                entry.file.close()
        return None

    def _is_over(self, entry: _Followed) -> bool:
        silent_s = self._clock.monotonic_s() - entry.silent_since_s
        return entry.rotated and entry.file.at_end and silent_s >= ROTATED_WAIT_S

    # On the disk: these methods block.

    def _go_on(self, entries: list[tuple[str, int, FileMark]]) -> None:
        """Find the files of an earlier run again, whatever their names are now."""
        for name, inode, mark in entries:
            file = self._reopen(name, inode, mark)
            if file is None and mark.offset > 0:
                _log.warning(
                    "lane %s: %s was removed or overwritten before all of it was read; anything written to it "
                    "after byte %d is lost",
                    self._owner.lane, name, mark.offset,
                )  # fmt: skip
            elif file is not None:
                self._add(file, name)

    def _reopen(self, name: str, inode: int, mark: FileMark) -> TextFile | None:
        path = self._patterns.path(name)
        candidates: list[str] = []
        with suppress(FileNotFoundError), os.scandir(os.path.dirname(path) or ".") as found:
            candidates = [item.path for item in found if item.inode() == inode]
        if mark.offset > 0:
            # On a moved disk, inodes differ: the text decides.
            candidates.append(path)
        followed = {entry.inode for entry in self._files}
        for candidate in candidates:
            file = self._open(candidate, name, mark)
            if file is None:
                continue
            # The inode may belong to another file by now.
            if file.stat().st_ino not in followed and file.fault() is None:
                file.begin()
                return file
            file.close()
        return None

    def _open(self, path: str, name: str, mark: FileMark) -> TextFile | None:
        try:
            return open_text_file(path, name, self._text, mark)
        except FileNotFoundError:
            return None

    def _add(self, file: TextFile, name: str) -> None:
        if len(self._files) >= FOLLOWED_FILES_MAX:
            file.close()
            raise UserError(
                codes.TOO_MANY_FILES,
                f"lane {self._owner.lane}: more than {FOLLOWED_FILES_MAX} files match {self._patterns}. "
                "Use narrower `paths` or more `partitions`",
            )
        self._files.append(_Followed(file, name, file.stat().st_ino, self._clock.monotonic_s()))

    def _fill(self) -> bool:
        """Check every file, and read those that have grown. True if there is something to take."""
        now_s = self._clock.monotonic_s()
        if self._scanned_s is None or now_s - self._scanned_s >= SCAN_INTERVAL_S:
            self._scanned_s = now_s
            self._scan()
        filled = False
        for entry in list(self._files):
            self._begin_anew_if_truncated(entry)
            if entry.file.fill():
                entry.silent_since_s = now_s
                filled = True
                break
            filled = filled or self._is_over(entry)
        return filled

    def _begin_anew_if_truncated(self, entry: _Followed) -> None:
        file = entry.file
        fault = file.fault(whole=False)
        if fault is None:
            return
        _log.warning(
            "lane %s: %s was truncated: %s; reading continues at its new beginning%s",
            self._owner.lane, entry.name, fault, "; the incomplete last line is lost" if file.open_line else "",
        )  # fmt: skip
        entry.file = file.begun_anew()
        entry.file.begin()

    def _scan(self) -> None:
        known = {(status.st_dev, status.st_ino): entry for entry in self._files for status in [entry.file.stat()]}
        here: set[tuple[int, int]] = set()
        for name in self._patterns.find():
            if name.endswith((".gz", ".zst")):
                # Compressed files do not grow; those beside a log contain what was already read.
                continue
            file = None
            try:
                status = os.stat(self._patterns.path(name))
            except FileNotFoundError:
                continue
            key = (status.st_dev, status.st_ino)
            if key in known:
                here.add(key)
                known[key].name = known[key].file.name = name
            elif status.st_ino % self._owner.partitions == self._owner.lane.partition:
                file = self._open(self._patterns.path(name), name, FileMark())
            # Renamed in between: the next scan finds it.
            if file is not None and file.stat().st_ino != status.st_ino:
                file.close()
            elif file is not None:
                file.begin()
                self._add(file, name)
                known[key] = self._files[-1]
                here.add(key)
        for key, entry in known.items():
            if key not in here and not entry.rotated:
                entry.silent_since_s = self._clock.monotonic_s()
            entry.rotated = key not in here
