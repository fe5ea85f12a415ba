"""Record ids that a source lane remembers, for sources that may repeat themselves. Pure.

They are bounded in number, stored as digests, and expire. They are loaded from the ledger at the start. New ids are
committed with their records, so a lane that dies forgets only ids whose records were not committed either.

    id ─► digest, 16 bytes ─► one of 65,536 buckets:  digest period │ digest period │ ...   the oldest first

A bucket is one block of bytes, and a look-up is a search in it. A period is a sixteenth of the time to live; the ids
that expire with a period are forgotten together, and their bytes are freed bucket by bucket, some at each call.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from millstream import codes, limits
from millstream.clock import Clock
from millstream.errors import MillstreamError
from millstream.frame import Frame
from millstream.record import ID_DIGEST_BYTES, id_digest

_BUCKETS = 1 << 16
_ENTRY_BYTES = ID_DIGEST_BYTES + 1
_PERIODS = 16
"""Periods in the time to live. An id is remembered for at most one period longer."""
_LABELS = 256
FULL_REPORTED_EVERY_S = 60.0
"""Shortest interval between log messages that no new id can be remembered."""
_SWEPT_AT_ONCE = 1024
"""Buckets whose forgotten entries are freed in one call."""

# Each call begins at most one period. So all buckets are swept before the label of an expired period is reused.
assert _BUCKETS // _SWEPT_AT_ONCE + _PERIODS + 2 < _LABELS


@dataclass(slots=True)
class _Period:
    """Ids that expire together."""

    label: int
    """The last byte of its entries."""
    ids: int = 0
    stored_bytes: int = 0
    """Approximate size of the ids in the ledger."""


@dataclass(frozen=True, slots=True)
class NewRecords:
    """The new records of a frame."""

    frame: Frame | None
    """The new records; None if there are none."""
    digests: bytes = b""
    """Digests of the ids to remember, concatenated."""
    repeated: int = 0
    """Number of records that were seen before."""


class SeenIds:
    """The ids of one lane."""

    def __init__(self, *, ttl_s: float, ids_max: int, clock: Clock) -> None:
        self.ttl_s = ttl_s
        self.ids_max = ids_max
        self._clock = clock
        self._period_s = ttl_s / _PERIODS
        self._buckets: list[bytearray | None] = [None] * _BUCKETS
        self._periods: dict[int, _Period] = {}
        """Periods by number, the oldest first."""
        self._living: set[int] = set()
        """Labels in use."""
        self._begun = 0
        """Number of periods so far."""
        self._ids = 0
        self._stored_bytes = 0
        self._next_swept = 0
        self._to_sweep = 0

    def __len__(self) -> int:
        return self._ids

    def restore(self, digests: bytes, age_s: float) -> None:
        """Load the ids of one message of the ledger; the caller begins with the oldest message."""
        period = self._period_of(self._clock.monotonic_s() + max(0.0, self.ttl_s - age_s))
        added = 0
        for start in range(0, len(digests), ID_DIGEST_BYTES):
            digest = digests[start : start + ID_DIGEST_BYTES]
            if not self._is_known(digest):
                self._add(digest, period)
                added += 1
        self._count(period, added)

    def admit(self, frame: Frame, made_up: bytes = b"") -> NewRecords:
        """The new records of `frame`, whose ids now count as seen. `made_up`: as in `SourceBatch`; those ids are not
        remembered."""
        self._forget()
        if made_up and 0 not in made_up:
            return NewRecords(frame)
        ids = frame.id_bytes()
        if ids is None:
            raise MillstreamError(codes.IMPOSSIBLE, "a source that may repeat records returned records without ids")
        period = self._period_of(self._clock.monotonic_s() + self.ttl_s)
        indexes: list[int] = []
        digests: list[bytes] = []
        for index, record_id in enumerate(ids):
            if made_up and made_up[index]:
                indexes.append(index)
                continue
            digest = id_digest(record_id)
            if not self._is_known(digest):
                self._add(digest, period)
                digests.append(digest)
                indexes.append(index)
        self._count(period, len(digests))
        kept = None if not indexes else frame if len(indexes) == len(ids) else frame.take(indexes)
        return NewRecords(kept, b"".join(digests), len(ids) - len(indexes))

    def has_room(self, ids: Iterable[bytes], more: int = 0) -> bool:
        """Whether there is space for the new ones among `ids`, and for `more` others."""
        self._forget()
        new = {digest for digest in map(id_digest, ids) if not self._is_known(digest)}
        return not new or len(new) + more <= self.room

    @property
    def room(self) -> int:
        """How many more ids can be remembered now."""
        left_bytes = self.ids_max * limits.ID_STORED_BYTES - self._stored_bytes - limits.IDS_MESSAGE_BYTES
        return max(0, min(self.ids_max - self._ids, left_bytes // ID_DIGEST_BYTES))

    @property
    def frees_in_s(self) -> float:
        """Seconds until the oldest ids expire."""
        ends_s = ((number + 1) * self._period_s for number, period in self._periods.items() if period.ids)
        return max(0.0, next(ends_s, 0.0) - self._clock.monotonic_s())

    def _is_known(self, digest: bytes) -> bool:
        bucket = self._buckets[hash(digest) % _BUCKETS]
        if bucket is None:
            return False
        # The last match: an expired entry may be before it. A match across two entries is as unlikely as two ids with
        # the same digest.
        found = bucket.rfind(digest)
        return found >= 0 and bucket[found + ID_DIGEST_BYTES] in self._living

    def _add(self, digest: bytes, period: _Period) -> None:
        number = hash(digest) % _BUCKETS
        bucket = self._buckets[number]
        if bucket is None:
            bucket = self._buckets[number] = bytearray()
        bucket += digest
        bucket.append(period.label)

    def _period_of(self, expires_s: float) -> _Period:
        """The period that ends shortly after that."""
        number = int(expires_s / self._period_s)
        period = self._periods.get(number)
        if period is None:
            period = self._periods[number] = _Period(self._begun % _LABELS)
            self._begun += 1
            self._living.add(period.label)
            if number < max(self._periods):
                self._periods = dict(sorted(self._periods.items()))
        return period

    def _count(self, period: _Period, ids: int) -> None:
        if ids:
            stored_bytes = limits.IDS_MESSAGE_BYTES + ids * ID_DIGEST_BYTES
            period.ids += ids
            period.stored_bytes += stored_bytes
            self._ids += ids
            self._stored_bytes += stored_bytes

    def _forget(self) -> None:
        now_s = self._clock.monotonic_s()
        while self._periods:
            number, period = next(iter(self._periods.items()))
            if (number + 1) * self._period_s > now_s:
                break
            del self._periods[number]
            self._living.discard(period.label)
            self._ids -= period.ids
            self._stored_bytes -= period.stored_bytes
            self._to_sweep = _BUCKETS
        for _ in range(min(self._to_sweep, _SWEPT_AT_ONCE)):
            self._sweep(self._next_swept)
            self._next_swept = (self._next_swept + 1) % _BUCKETS
            self._to_sweep -= 1

    def _sweep(self, number: int) -> None:
        """Free the expired entries at the beginning of a bucket."""
        bucket = self._buckets[number]
        if bucket is None:
            return
        end = 0
        while end < len(bucket) and bucket[end + ID_DIGEST_BYTES] not in self._living:
            end += _ENTRY_BYTES
        if end == len(bucket):
            self._buckets[number] = None
        elif end:
            # Copied, so that its allocation is no larger than its contents.
            self._buckets[number] = bucket[end:]


def full(seen: SeenIds) -> str:
    """Why no new id can be remembered, and what to do."""
    return (
        f"{len(seen):,} record ids are remembered, which fills the space that `idsMax` ({seen.ids_max:,} for this "
        f"lane) reserves in the source's ledger; the oldest expire in {seen.frees_in_s:,.0f} s (`idTtl` is "
        f"{seen.ttl_s:g} s). Raise `idsMax`, shorten `idTtl`, or send more records at a time: ids that are "
        "committed together take less space"
    )
