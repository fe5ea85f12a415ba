"""Sources that fall silent and wake up: the policies that are drawn for them, what they give, and what their lanes may
promise meanwhile.

    ─ records ──┐ silence: threshold, then a step every interval ┌── records, some older than the last step ── the end
                └────────────────────────────────────────────────┘

A step of an idle source promises something without a commit, so its lane is judged by what the source had then. Shares
no code with what it judges. Above it: `history`, which passes in what is stored. Below it: nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from millstream.wire.ledger.v1.mark_pb2 import Mark
from millstream.wire.watermark.v1.ot_pb2 import OtEntry

NOTICED_S = 0.5
"""A lane that is awake has begun to read what has arrived, and knows that its source is away, after so long."""


class Timed(Protocol):
    """A record of a source."""

    @property
    def time_us(self) -> int: ...

    @property
    def arrives_s(self) -> float: ...


def policy(rng: random.Random) -> Mapping[str, str]:
    """An idle policy, as a pipeline file has it."""
    threshold_s = rng.choice((0.2, 0.5, 1.2))
    drawn = {"threshold": _text(threshold_s), "incrementBy": _text(threshold_s * rng.choice((0.2, 1.0)))}
    if rng.random() < 0.5:
        drawn["stepInterval"] = _text(rng.choice((0.2, 0.7)))
    if rng.random() < 0.6:
        drawn["initSourceDelay"] = _text(threshold_s * rng.choice((1.0, 2.0)))
    return drawn


def _text(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"


def arrivals(rng: random.Random, span_s: float) -> tuple[list[float], float]:
    """When the records of a split arrive, and when it ends: bursts, with silence before, between and after them."""
    times = [
        at_s + 0.3 * rng.random()
        for at_s in (rng.random() * span_s for _ in range(rng.choice((0, 1, 2, 4))))
        for _ in range(rng.choice((1, 4, 12)))
    ]
    return sorted(times), span_s * (0.8 + 0.6 * rng.random()) + rng.choice((0.0, 1.0, 3.0))


@dataclass(slots=True)
class SourceJudge:
    """Judges one lane of a source by what its split has given."""

    where: str
    records: Sequence[Timed]
    max_delay_us: int
    is_idle_allowed: bool
    """Whether the pipeline has a policy."""
    away_since_s: Callable[[], float | None]
    """Since when the source has been away; None while it can be read."""
    steps: int = 0
    """Entries that promised more than any record before them."""
    passed: int = 0
    """Records that a lane had promised not to have."""
    _committed: int = 0
    _seen_us: int | None = None
    """The newest event time that is committed, less the delay."""
    _late_min: int = 0
    _late_max: int = 0
    _made_us: int = 0
    """When the last entry was made."""
    _epoch: int = 0

    def committed(self, mark: Mark, promised_us: int) -> str:
        """A commit was stored, after the lane had promised `promised_us`. Returns what is wrong, if anything."""
        position = int(mark.position or b"0")
        new = self.records[self._committed : position]
        self._committed = max(self._committed, position)
        late = sum(record.time_us < promised_us for record in new)
        self.passed += late
        self._late_min += late
        # A frame of the same commit may have raised the watermark before another one.
        self._late_max += sum(record.time_us < mark.watermark_us for record in new)
        newest_us = [record.time_us - self.max_delay_us for record in new]
        if newest_us:
            self._seen_us = max(newest_us if self._seen_us is None else (self._seen_us, *newest_us))
        if not self._late_min <= mark.account.late <= self._late_max:
            return (
                f"I2: {self.where} counts {mark.account.late} late records: {self._late_min} came after it had "
                f"promised that there would be none so old, and {self._late_max} are older than its watermark"
            )
        return ""

    def published(self, entry: OtEntry, before_us: int, base_us: int) -> str:
        """An entry was stored, after one of `before_us`; `base_us`: the start of the run. Returns what is wrong."""
        since_us, known_epoch = self._made_us, self._epoch
        self._made_us, self._epoch = entry.published_us, entry.epoch
        if entry.ended or entry.watermark_us <= max(before_us, self._seen_us or before_us):
            return ""
        self.steps += 1
        if not self.is_idle_allowed:
            return f"I5: {self.where} promises {entry.watermark_us}, and its newest record allows {self._seen_us}"
        if entry.watermark_us > entry.published_us - self.max_delay_us:
            return f"I5: {self.where} promises {entry.watermark_us} at {entry.published_us}: that is the future"
        if known_epoch != entry.epoch or since_us < base_us:
            return ""
        # The step was made after the entry before it. What holds for all of that time held at the step.
        since_s = (since_us - base_us) / 1e6 - NOTICED_S
        waiting = self.records[self._committed : self._committed + 1]
        if waiting and waiting[0].arrives_s < since_s:
            return f"I5: {self.where} promises {entry.watermark_us} as if silent, and has not committed {waiting[0]}"
        away_s = self.away_since_s()
        if away_s is not None and away_s < since_s:
            return f"I5: {self.where} promises {entry.watermark_us} as if silent, and its source cannot be read"
        return ""
