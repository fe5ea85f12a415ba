"""A read of a source that is committed in parts, because its output does not fit in one commit. Pure.

A source has a position after each read and none within a read. So the mark keeps the position before the read, the
number of records after it that are committed, and a digest of them. The next owner of the lane reads these records
again and leaves them out.

    position ─► r r r r r r r r ─► position of the next read
                └ ahead ┘ └ read again, and processed
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace

from millstream import codes
from millstream.errors import DamageError
from millstream.frame import Frame
from millstream.record import ID_DIGEST_BYTES, LaneId, id_digest
from millstream.wire.ledger.v1 import mark_pb2
from millstream_reader.source import InvalidRecord, SourceBatch

_BYTES = 16


class RecordsAfter:
    """Records after a source's position, identified by their contents."""

    def __init__(self) -> None:
        self.records = 0
        self._digest = hashlib.blake2b(digest_size=_BYTES)

    def add(self, frame: Frame) -> None:
        self.records += frame.records
        for value in frame.values():
            self._digest.update(b"%d:" % len(value))
            self._digest.update(value)

    @property
    def digest(self) -> bytes:
        return self._digest.digest()

    def ahead(self, frame: Frame) -> mark_pb2.Ahead:
        """The entry in the mark when these records and then those of `frame` are committed."""
        more = RecordsAfter()
        more.records, more._digest = self.records, self._digest.copy()
        more.add(frame)
        return mark_pb2.Ahead(records=more.records, digest=more.digest)


def digests_of(frame: Frame, digests: bytes) -> Iterator[bytes]:
    """The digest of each record's id, from the digests to remember; empty for an id that is not to be remembered."""
    start = 0
    for record_id in frame.id_bytes() or ():
        found = digests[start : start + ID_DIGEST_BYTES]
        if found and found == id_digest(record_id):
            start += ID_DIGEST_BYTES
            yield found
        else:
            yield b""


class LeftOut:
    """Leaves out the records that are committed after the position at which the source was opened."""

    def __init__(self, lane: LaneId, ahead: mark_pb2.Ahead) -> None:
        self._lane = lane
        self._ahead = ahead
        self._left = ahead.records
        self._after = RecordsAfter()
        self._invalid: tuple[InvalidRecord, ...] = ()

    def taken(self) -> RecordsAfter:
        """The records between the position and the read that `rest` returned last."""
        after, self._after = self._after, RecordsAfter()
        return after

    def rest(self, batch: SourceBatch) -> SourceBatch | None:
        """The uncommitted rest of the next read; None until all committed records were read: nothing may be committed
        before that.

        Raises `DamageError` if the source returns other records than before.
        """
        if not self._left:
            return batch
        frame = batch.frame
        taken = min(self._left, frame.records) if frame is not None else 0
        if frame is not None:
            self._after.add(frame.slice(0, taken))
        self._left -= taken
        self._invalid += batch.invalid
        if self._left and not batch.ended:
            return None
        if self._left or self._after.digest != self._ahead.digest:
            raise DamageError(
                codes.SOURCE_DIFFERS,
                f"{self._lane}: the first {self._ahead.records} records after the source's position are committed, "
                "but the source now returns others there",
            )
        rest = frame.slice(taken, frame.records) if frame is not None and taken < frame.records else None
        return replace(batch, frame=rest, invalid=self._invalid, made_up=batch.made_up[taken:])
