"""Record ids that a source lane remembers, for sources that may repeat themselves. Pure.

They are bounded in number, kept as digests, and forgotten in time. Filled from the ledger at the start; what is
admitted here is committed with its records, so a lane that dies forgets only ids whose records were not committed
either.

    id ─► digest, 16 bytes ─► one of 65,536 buckets:  digest period │ digest period │ ...   the oldest first

A bucket is one block of bytes, and a look-up is a search in it. A period is a sixteenth of the time to live; what ends
with a period is forgotten at once, and its bytes are freed bucket by bucket, some at each call.
"""

from __future__ import annotations

from collections import OrderedDict
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
"""In the time to live. An id is remembered for one of them longer, at most."""
_LABELS = 256
FULL_TOLD_EVERY_S = 60.0
"""How often at most it is logged that no new id can be remembered."""
_SWEPT_AT_ONCE = 1024
"""Buckets whose forgotten entries are freed in one call."""

# Each call begins one period at most. So all buckets are swept before the label of one that is over comes again.
assert _BUCKETS // _SWEPT_AT_ONCE + _PERIODS + 2 < _LABELS


@dataclass(slots=True)
class _Period:
    """Ids that are forgotten together."""

    label: int
    """What its entries have in their last byte."""
    ids: int = 0
    stored_bytes: int = 0
    """What they take in the ledger, about."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """What is new of a frame."""

    frame: Frame | None
    """None: nothing."""
    digests: bytes = b""
    """Of the ids to remember, one after the other."""
    repeated: int = 0
    """Records that were seen before."""


class SeenIds:
    """The ids of one lane."""

    def __init__(self, *, ttl_s: float, ids_max: int, clock: Clock) -> None:
        self.ttl_s = ttl_s
        self.ids_max = ids_max
        self._clock = clock
        self._period_s = ttl_s / _PERIODS
        self._buckets: list[bytearray | None] = [None] * _BUCKETS
        self._periods: OrderedDict[int, _Period] = OrderedDict()
        """By number, the oldest first."""
        self._living: set[int] = set()
        """Their labels."""
        self._begun = 0
        """Periods ever."""
        self._ids = 0
        self._stored_bytes = 0
        self._next_swept = 0
        self._to_sweep = 0

    def __len__(self) -> int:
        return self._ids

    def restore(self, digests: bytes, age_s: float) -> None:
        """Take in what one message of the ledger holds; the oldest first."""
        period = self._period_of(self._clock.monotonic_s() + max(0.0, self.ttl_s - age_s))
        added = 0
        for start in range(0, len(digests), ID_DIGEST_BYTES):
            digest = digests[start : start + ID_DIGEST_BYTES]
            if not self._is_known(digest):
                self._add(digest, period)
                added += 1
        self._count(period, added)

    def admit(self, frame: Frame, made_up: bytes = b"") -> Admitted:
        """What of `frame` is new, from now on seen. `made_up`: as in `SourceBatch`; those are not remembered."""
        ids = frame.id_bytes()
        if ids is None:
            raise MillstreamError(codes.IMPOSSIBLE, "a source that may repeat records returned records without ids")
        self._forget()
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
        return Admitted(kept, b"".join(digests), len(ids) - len(indexes))

    def has_room(self, ids: Iterable[bytes], more: int = 0) -> bool:
        """Whether those of `ids` that are new may be remembered, and so many more."""
        self._forget()
        new = {digest for digest in map(id_digest, ids) if not self._is_known(digest)}
        return not new or len(new) + more <= self.room

    @property
    def room(self) -> int:
        """How many more ids may be remembered now."""
        left_bytes = self.ids_max * limits.ID_STORED_BYTES - self._stored_bytes - limits.IDS_MESSAGE_BYTES
        return max(0, min(self.ids_max - self._ids, left_bytes // ID_DIGEST_BYTES))

    @property
    def frees_in_s(self) -> float:
        """Until the oldest ids are forgotten."""
        ends_s = ((number + 1) * self._period_s for number, period in self._periods.items() if period.ids)
        return max(0.0, next(ends_s, 0.0) - self._clock.monotonic_s())

    def _is_known(self, digest: bytes) -> bool:
        bucket = self._buckets[hash(digest) % _BUCKETS]
        if bucket is None:
            return False
        # The last one: an entry that is forgotten may lie before it. That a digest is found across two entries is as
        # likely as that two ids have the same one.
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
        """The one that ends after that, and not much later."""
        number = int(expires_s / self._period_s)
        period = self._periods.get(number)
        if period is None:
            period = self._periods[number] = _Period(self._begun % _LABELS)
            self._begun += 1
            self._living.add(period.label)
            if number < max(self._periods):
                self._periods = OrderedDict(sorted(self._periods.items()))
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
        """Free what is forgotten at the beginning of a bucket."""
        bucket = self._buckets[number]
        if bucket is None:
            return
        end = 0
        while end < len(bucket) and bucket[end + ID_DIGEST_BYTES] not in self._living:
            end += _ENTRY_BYTES
        if end == len(bucket):
            self._buckets[number] = None
        elif end:
            # Rebuilt, so that it is as large as its contents.
            self._buckets[number] = bucket[end:]


def full(seen: SeenIds) -> str:
    """Why no new id can be remembered, and what to do."""
    return (
        f"{len(seen):,} record ids are remembered, which fills the space that `idsMax` ({seen.ids_max:,} for this "
        f"lane) reserves in the source's ledger; the oldest expire in {seen.frees_in_s:,.0f} s (`idTtl` is "
        f"{seen.ttl_s:g} s). Raise `idsMax`, shorten `idTtl`, or send more records at a time: ids that are "
        "committed together take less space"
    )
