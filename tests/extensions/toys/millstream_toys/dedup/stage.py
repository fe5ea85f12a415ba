"""The stage of `dedup`: lets each value through once.

A value is forgotten by a timer. Which values are remembered, and until when, is the state of the stage, so the timers
go on after a kill.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from hashlib import blake2b

from millstream import codes
from millstream.account import Account
from millstream.clock import MICROSECONDS, Clock
from millstream.errors import DamageError
from millstream_vertex.stage import Stage, StageInput, StageResult

_ENTRY = struct.Struct("<16sq")
"""A digest of a value, and when it is forgotten, in microseconds."""


class DedupStage(Stage):
    """Remembers values for `ttl_s` by the clock."""

    waits = False
    is_stateful = True

    def __init__(self, ttl_s: float, clock: Clock) -> None:
        self._ttl_us = round(ttl_s * MICROSECONDS)
        self._clock = clock
        self._seen: dict[bytes, int] = {}
        """When each value is forgotten, by its digest; the earliest first, because all stay for the same time."""

    async def on_frame(self, given: StageInput) -> StageResult:
        until_us, kept = self._clock.now_us() + self._ttl_us, []
        for index, value in enumerate(given.frame.values()):
            digest = blake2b(value, digest_size=16).digest()
            if digest not in self._seen:
                self._seen[digest] = until_us
                kept.append(index)
        account = Account(inputs=given.frame.records, processed=len(kept), outputs=len(kept))
        account.filtered = given.frame.records - len(kept)
        if not kept:
            return StageResult(account)
        return StageResult(account, replace(given.frame.take(kept), ids_column=b""), parents=kept)

    @property
    def timer_us(self) -> int | None:
        return next(iter(self._seen.values()), None)

    async def on_timer(self, now_us: int) -> StageResult:
        self._seen = {digest: until_us for digest, until_us in self._seen.items() if until_us > now_us}
        return StageResult()

    @property
    def state(self) -> bytes:
        return b"".join(_ENTRY.pack(*entry) for entry in self._seen.items())

    def restore(self, state: bytes) -> None:
        try:
            self._seen = dict(_ENTRY.iter_unpack(state))
        except struct.error as error:
            raise DamageError(codes.MARK_UNREADABLE, f"the state of a dedup has {len(state)} bytes: {error}") from error
