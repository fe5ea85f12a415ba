"""Objects of a store as files: each is downloaded, and read from its beginning to its end.

    list ─► unread, by name ─► fetch (only what the listing named) ─► a temporary file ─► as any file
      ▲                                                                                       │
      └──────────────── with `follow`, every `pollEvery`, when all is read ◄──────────────────┘

The unread objects of a listing are read in the order of their names. An object that appears later under a smaller name
is read after them. The position has the current object, its etag and the place in it, and a digest of the earlier ones
(`listing`). A replaced object is noticed before any of its records is used.

Above it: a source lane. Below it: `buckets`, and the files' own formats. What blocks runs in one thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from millstream import codes
from millstream.errors import DamageError, RetryLaterError, UserError
from millstream_connectors.file.source.buckets import Buckets, ChangedObjectError
from millstream_connectors.file.source.disk import Worker
from millstream_connectors.file.source.lane import begun, bytes_read
from millstream_connectors.file.source.listing import ListedObject, ObjectPositions, Past, ReplacedError
from millstream_connectors.file.source.table_file import SourceFile, open_any_file
from millstream_connectors.file.source.text_file import FileMark, TextFormat
from millstream_connectors.shared.failing import translating
from millstream_connectors.shared.reaching import RemoteLane
from millstream_reader.connector import SourceOwner
from millstream_reader.source import SourceBatch

KIND = "objects"
_CHANGED = "Put the object back as it was, or start over with --fresh; write new data to objects with new names"

_log = logging.getLogger(__name__)


class ObjectSourceLane(RemoteLane):
    """One lane of objects. See `SourceLane`."""

    kind, noun = KIND, "a file source that reads objects"

    def __init__(
        self,
        buckets: Buckets,
        text: TextFormat,
        poll_every_s: float | None,
        owner: SourceOwner,
        worker: Worker,
    ) -> None:
        """`poll_every_s`: None to end when all objects are read."""
        super().__init__(owner, _log)
        self._buckets = buckets
        self._text = text
        self._poll_every_s = poll_every_s
        self._worker = worker
        self._directory = TemporaryDirectory(prefix="millstream-objects-")
        self._ledger = ObjectPositions()
        self._next: deque[ListedObject] = deque()
        self._next_bytes = 0
        """Bytes of these."""
        self._item: ListedObject | None = None
        """The object that is being read."""
        self._mark = FileMark()
        self._file: SourceFile | None = None
        self._began = False
        self._started = False
        """Whether the objects that were read earlier have been checked."""
        self._ended = False

    async def open(self) -> None:
        """See `WorkerLane`. If the store is away, `read` waits for it."""
        body = self._unpacked(self._owner.position)
        if body is not None:
            with self._restoring():
                self._ledger.past = Past(*body["past"])
                if body["object"] is not None:
                    self._item = ListedObject(*body["object"])
                    self._mark = FileMark(*body["mark"])
                self._began = bool(body["began"])
        try:
            await self._start()
        except RetryLaterError as error:
            self._reaching.failed(error)

    async def _start(self) -> None:
        """List the objects, and check those that were read."""
        listing = await self._listing()
        if not listing and not self._began and self._poll_every_s is None:
            raise UserError(
                codes.SOURCE_FILES_MISSING, f"lane {self._owner.lane}: no object matches `paths`. Correct `paths`"
            )
        mine = self._mine(listing)
        with translating(ReplacedError, self._replaced):
            self._ledger.recognize(mine, self._item.name if self._item is not None else "")
        self._began = self._started = True
        self._plan(mine)

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> SourceBatch:
        # Records in memory are returned without waiting, so other tasks would never run.
        await asyncio.sleep(0)
        clock = self._owner.clock
        until_s = clock.monotonic_s() + timeout_s
        while not self._draining and not self._ended:
            if not await self._reaching.may_try(max(0.0, until_s - clock.monotonic_s())):
                break
            try:
                if not await self._have_file():
                    continue
            except RetryLaterError as error:
                self._reaching.failed(error)
                continue
            file = self._file
            assert file is not None, "a file is open"
            taken = file.take(records_max, bytes_max, now_us=clock.now_us(), closing=True)
            if taken is not None:
                self._mark = file.mark
                if taken.frame is not None or taken.invalid:
                    return SourceBatch(taken.frame, self._position(), invalid=taken.invalid)
            elif not file.at_end:
                await self._worker.run(file.fill)
            else:
                self._finish()
        return SourceBatch(None, self._position(), ended=self._ended)

    def pending_bytes(self) -> int | None:
        """Of the objects in the last listing; None before the first one."""
        if not self._started:
            return None
        current = self._item.size if self._item is not None else 0
        return self._next_bytes + max(0, current - bytes_read(self._file))

    def close(self) -> None:
        self._close_file()
        self._directory.cleanup()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    async def _have_file(self) -> bool:
        """Whether an object is open. If not, looks for one and downloads it. Raises Millstream errors."""
        if self._file is not None:
            return True
        if not self._started:
            await self._start()
        if self._item is None:
            if not self._next:
                await self._look()
                return False
            self._item, self._mark = self._next.popleft(), FileMark()
            self._next_bytes -= self._item.size
        self._file = await self._worker.run(self._open, self._item, self._mark)
        self._reaching.worked()
        return True

    async def _look(self) -> None:
        if self._poll_every_s is None:
            self._ended = True
            return
        self._plan(self._mine(await self._listing()))
        self._reaching.worked()
        if not self._next:
            self._reaching.rest(self._poll_every_s)

    def _plan(self, listing: list[ListedObject]) -> None:
        in_hand = self._item.name if self._item is not None else ""
        with translating(ReplacedError, self._replaced):
            self._next = deque(self._ledger.unread(listing, in_hand))
        self._next_bytes = sum(item.size for item in self._next)

    async def _listing(self) -> list[ListedObject]:
        return await self._worker.run(self._buckets.list)

    def _mine(self, listing: list[ListedObject]) -> list[ListedObject]:
        return [item for item in listing if self._owns(item.name)]

    def _open(self, item: ListedObject, mark: FileMark) -> SourceFile:
        """Blocks."""
        path = Path(self._directory.name) / f"object{''.join(PurePosixPath(item.name).suffixes[-1:])}"
        path.unlink(missing_ok=True)
        with translating(ChangedObjectError, lambda _: self._changed(item.name)):
            self._buckets.fetch(item, path)
        try:
            file = open_any_file(str(path), item.name, self._text, mark)
        finally:
            # The temporary file exists while it is open.
            os.unlink(path)
        return begun(file, lambda _: self._changed(item.name))

    def _finish(self) -> None:
        assert self._item is not None, "an object was read"
        self._ledger.finish(self._item)
        self._item = None
        self._close_file()

    def _position(self) -> bytes:
        body = {
            "began": self._began,
            "object": list(self._item) if self._item is not None else None,
            "mark": list(self._mark),
            "past": self._ledger.past.pack(),
        }
        return self._packed(body)

    def _replaced(self, error: ReplacedError) -> DamageError:
        names = ", ".join(error.names[:3]) + (f" and {len(error.names) - 3} more" if len(error.names) > 3 else "")
        return DamageError(
            codes.SOURCE_FILE_CHANGED,
            f"lane {self._owner.lane}: objects that were already read have changed: {names} was replaced, or was "
            f"added while others were removed. Records that were already read are kept. {_CHANGED}",
        )

    def _changed(self, name: str) -> DamageError:
        return DamageError(
            codes.SOURCE_FILE_CHANGED,
            f"lane {self._owner.lane}: {name} was replaced or removed while it was being read. Records that were "
            f"already read are kept. {_CHANGED}",
        )
