"""Files that end: each is read once, from its beginning to its end, one after the other in the order of their names.

Above it: a source lane. Below it: `text_file` and `table_file`. A lane owns the files whose names hash to its number.
The set of files is fixed when the lane opens. Its position is the current file and the place in it. All files that sort
before it are done, so a position has the same few bytes for any number of files.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable

from millstream import codes
from millstream.errors import DamageError, UserError
from millstream.plurals import counted
from millstream_connectors.file.source.disk import FilePatterns, Worker
from millstream_connectors.file.source.table_file import SourceFile, open_any_file
from millstream_connectors.file.source.text_file import FileMark, TextFormat
from millstream_connectors.shared.failing import on_failure
from millstream_connectors.shared.positioned_lane import PositionedLane
from millstream_reader.connector import SourceOwner
from millstream_reader.source import SourceBatch

_log = logging.getLogger(__name__)


def bytes_read(file: SourceFile | None) -> int:
    """Bytes of an open file that were read. A file that is compressed, or has no lines, counts as a whole."""
    return 0 if file is None or file.name.endswith((".gz", ".zst")) else file.mark.offset


def begun(file: SourceFile, damaged: Callable[[str], DamageError]) -> SourceFile:
    """Blocks. The file, at its mark. `damaged`: the error if it is not the file that the mark belongs to."""
    with on_failure(file.close):
        fault = file.fault()
        if fault is not None:
            raise damaged(fault)
        file.begin()
    return file


class FileSourceLane(PositionedLane):
    """One lane of the files that exist when it is opened. See `SourceLane`."""

    kind = "file"

    def __init__(self, patterns: FilePatterns, text: TextFormat, owner: SourceOwner, worker: Worker) -> None:
        super().__init__(owner)
        self._patterns = patterns
        self._text = text
        self._worker = worker
        self._names: list[str] = []
        self._sizes: list[int] = []
        self._waiting_bytes = 0
        """Bytes of the files that are not finished."""
        self._done = 0
        """Number of files of `names` that are finished."""
        self._read: int | None = 0
        """Bytes that these files had; None after an earlier version, which did not note it."""
        self._file: SourceFile | None = None
        self._last = ("", FileMark(), False)
        """The newest file that was opened, its mark, and whether it is finished."""

    async def open(self) -> None:
        """See `WorkerLane`. Errors: `UserError` if there are no files, `DamageError` if the file that was being read
        has changed."""
        patterns = self._patterns
        body = self._unpacked(self._owner.position)
        found = await self._worker.run(patterns.find)
        if missing := sorted(set(patterns.plain()) - set(found)) if body is None else []:
            raise UserError(
                codes.SOURCE_FILES_MISSING,
                f"{self._where}: there is no file {missing[0]} in {patterns.base_dir}. Correct `paths`",
            )
        if not found and body is None:
            raise UserError(
                codes.SOURCE_FILES_MISSING,
                f"{self._where}: no file in {patterns.base_dir} matches {patterns}. Correct `paths`",
            )
        self._names = list(filter(self._owns, found))
        self._sizes = await self._worker.run(lambda: list(map(patterns.size, self._names)))
        self._waiting_bytes = sum(self._sizes)
        if body is not None:
            with self._restoring():
                mark, read = FileMark(*body["mark"]), body.get("read")
                await self._go_on(body["file"], mark, body["finished"], body["done"], read)

    async def _go_on(self, name: str, mark: FileMark, finished: bool, done: int, read: int | None) -> None:
        """Go to a position of an earlier run."""
        self._last, self._read = (name, mark, finished), read
        if not name:
            return
        self._done = bisect_right(self._names, name) if finished else bisect_left(self._names, name)
        self._waiting_bytes = sum(self._sizes[self._done :])
        if self._done > done:
            _log.warning(
                "lane %s: %d files that sort before %s appeared after the run had passed their place, and are not "
                "read. Give new files names that sort later, or use `follow`",
                self._owner.lane,
                self._done - done,
                name,
            )
        more = sum(self._sizes[: self._done]) - read if read is not None and self._done == done else 0
        if more > 0:
            _log.warning(
                "lane %s: the files that the run has read, up to %s, have %s more now, which are not read. To read "
                "what is appended to files, use `follow`; to read them again from their start, start over with --fresh",
                self._owner.lane,
                name,
                counted(more, "byte"),
            )
        if not finished:
            if name not in self._names:
                raise self._damaged(name, "it no longer exists")
            self._file = await self._worker.run(self._open, name, mark)

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> SourceBatch:
        # Records in memory are returned without waiting, so other tasks would never run.
        await asyncio.sleep(0)
        while not self._draining:
            if self._file is None:
                if self._done == len(self._names):
                    return SourceBatch(None, self._position(), ended=True)
                self._file = await self._worker.run(self._open, self._names[self._done], FileMark())
                self._last = (self._file.name, self._file.mark, False)
            taken = self._file.take(records_max, bytes_max, now_us=self._owner.clock.now_us(), closing=True)
            if taken is not None:
                self._last = (self._file.name, self._file.mark, False)
                if taken.frame is not None or taken.invalid:
                    return SourceBatch(taken.frame, self._position(), invalid=taken.invalid)
            elif not self._file.at_end:
                await self._worker.run(self._fill, self._file)
            else:
                self._finish(self._file)
        return SourceBatch(None, self._position())

    def pending_bytes(self) -> int | None:
        return max(0, self._waiting_bytes - bytes_read(self._file))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _finish(self, file: SourceFile) -> None:
        self._last = (file.name, file.mark, True)
        self._waiting_bytes -= self._sizes[self._done]
        if self._read is not None:
            # What was appended while the file was read may have been read, too.
            self._read += max(self._sizes[self._done], bytes_read(file))
        self._done += 1
        self.close()

    def _position(self) -> bytes:
        name, mark, finished = self._last
        body = {"file": name, "mark": list(mark), "finished": finished, "done": self._done, "read": self._read}
        return self._packed(body)

    def _open(self, name: str, mark: FileMark) -> SourceFile:
        """Blocks."""
        try:
            file = open_any_file(self._patterns.path(name), name, self._text, mark)
        except FileNotFoundError as error:
            raise self._damaged(name, "it no longer exists") from error
        return begun(file, lambda fault: self._damaged(name, fault))

    def _fill(self, file: SourceFile) -> None:
        """Blocks."""
        if not file.fill():
            fault = file.fault()
            if fault is not None:
                raise self._damaged(file.name, fault)

    def _damaged(self, name: str, fault: str) -> DamageError:
        return DamageError(
            codes.SOURCE_FILE_CHANGED,
            f"lane {self._owner.lane}: {name} changed while it was being read: {fault}. Records that were already read "
            "are kept. Put the file back as it was, or start over with --fresh",
        )
