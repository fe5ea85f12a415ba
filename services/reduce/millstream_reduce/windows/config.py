"""The kind of windows: the values that decide which rows belong together. No I/O.

The spec's `groupBy` becomes one of these; this module does not know the spec.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from millstream.clock import MICROSECONDS

SPAN_US_MAX = 366 * 24 * 3600 * MICROSECONDS * 10_000
"""Longest length, slide, timeout, period or lateness, 10,000 years: sums of a few of them fit 64 bits."""

assert SPAN_US_MAX * 8 < 2**63


@dataclass(frozen=True, slots=True)
class WindowConfig:
    """One kind of windows. Fields of other kinds stay at their defaults."""

    kind: Literal["fixed", "sliding", "session", "global"]
    length_us: int = 0
    """Length of a fixed or sliding window."""
    slide_us: int = 0
    """From the start of a sliding window to that of the next."""
    timeout_us: int = 0
    """Silence that ends a session."""
    count: int | None = None
    """A global window gives a result after this many rows of its key. Without `count` and `every_us`: only at the
    end."""
    every_us: int | None = None
    """A global window gives a result when the watermark passes a multiple of this."""
    accumulate: bool = False
    """Results of a global window cover everything so far, not only the rows since the last result."""
    keyed: bool = False
    """Whether a session or global window belongs to one key. Fixed and sliding windows are shared by all keys
    anyway."""
    lateness_us: int = 0
    """How long a window stays open after its end."""

    def __post_init__(self) -> None:
        spans = {
            "fixed": {"length_us": self.length_us},
            "sliding": {"length_us": self.length_us, "slide_us": self.slide_us},
            "session": {"timeout_us": self.timeout_us},
            "global": {} if self.every_us is None else {"every_us": self.every_us},
        }[self.kind]
        for name, span in spans.items():
            if not 0 < span <= SPAN_US_MAX:
                raise ValueError(f"{name} of {self.kind} windows is {span}: it must be from 1 to {SPAN_US_MAX}")
        if not 0 <= self.lateness_us <= SPAN_US_MAX:
            raise ValueError(f"lateness_us is {self.lateness_us}: it must be from 0 to {SPAN_US_MAX}")
        if self.count is not None and (self.count < 1 or self.every_us is not None):
            raise ValueError("a global window has one trigger: a count of at least 1, or a period")

    @property
    def needs_keys(self) -> bool:
        """Whether windows belong to keys."""
        return self.keyed and self.kind in ("session", "global")

    @property
    def identity(self) -> str:
        """Distinguishes settings that would put the same rows into different windows: open windows of one have no
        meaning for another."""
        parts: dict[str, int | None] = {
            "length": self.length_us,
            "slide": self.slide_us if self.kind == "sliding" else 0,
            "timeout": self.timeout_us,
            "count": self.count,
            "every": self.every_us,
            "accumulate": self.accumulate,
            "keyed": self.needs_keys,
            "lateness": self.lateness_us,
        }
        return " ".join([self.kind, *(f"{name}={int(value)}" for name, value in parts.items() if value)])
