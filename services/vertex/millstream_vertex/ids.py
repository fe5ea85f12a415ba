"""Record ids a source lane has taken in, for sources that may repeat themselves. Pure.

Filled from the ledger at start; what is admitted here is committed with its records, so a lane that dies forgets only
ids whose records were not committed either.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from millstream.clock import Clock
from millstream.errors import MillstreamError
from millstream.frame import Frame


class SeenIds:
    """Ids and when they may be forgotten."""

    def __init__(self, known: Iterable[str], *, ttl_s: float, clock: Clock) -> None:
        """`known`: ids in the ledger that have not expired; they are kept for `ttl_s` from now, at most twice what
        was promised."""
        self._ttl_s = ttl_s
        self._clock = clock
        expires_s = clock.monotonic_s() + ttl_s
        self._expires_s: OrderedDict[str, float] = OrderedDict((record_id, expires_s) for record_id in known)

    def __len__(self) -> int:
        return len(self._expires_s)

    def admit(self, frame: Frame) -> tuple[Frame | None, list[str], int]:
        """What of `frame` is new (None: nothing), its ids, and how many records were seen before."""
        ids = frame.ids()
        if ids is None:
            raise MillstreamError("a source that may repeat itself gave records without ids")
        now_s = self._clock.monotonic_s()
        self._forget(now_s)
        indexes: list[int] = []
        for index, record_id in enumerate(ids):
            if record_id not in self._expires_s:
                self._expires_s[record_id] = now_s + self._ttl_s
                indexes.append(index)
        if not indexes:
            return None, [], len(ids)
        kept = frame if len(indexes) == len(ids) else frame.take(indexes)
        return kept, [ids[index] for index in indexes], len(ids) - len(indexes)

    def _forget(self, now_s: float) -> None:
        while self._expires_s:
            record_id, expires_s = next(iter(self._expires_s.items()))
            if expires_s > now_s:
                return
            del self._expires_s[record_id]
