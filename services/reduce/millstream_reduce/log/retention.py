"""Which segments are kept when a new one begins. Pure.

A segment holds rows, which open windows and uncommitted hand-overs need, and entries, which a restart reads again to
know those. Without a checkpoint every segment from the oldest needed one on has to be kept, because the windows are
built up from all entries since. With one, any segment without needed rows can be removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

CHECKPOINT_SHARE = 4
"""A checkpoint is worthwhile if it frees this many times its own size."""


@dataclass(frozen=True, slots=True)
class Retention:
    """What the header of a new segment says about the earlier ones."""

    first: int
    """Segment with which reading begins."""
    kept: tuple[int, ...]
    """Segments that are kept, rising, without the new one."""


def without_checkpoint(lengths: Mapping[int, int], first: int, needed: Set[int], new: int) -> Retention:
    """`lengths`: of the existing segments. `needed`: segments with rows, or entries, that are needed."""
    oldest = min(needed, default=new)
    first = max(first, oldest)
    return Retention(first, tuple(n for n in sorted(lengths) if n >= first or n in needed))


def with_checkpoint(lengths: Mapping[int, int], needed: Set[int], new: int) -> Retention:
    """Reading begins with the new segment, whose header holds the checkpoint."""
    return Retention(new, tuple(n for n in sorted(lengths) if n in needed))


def freed_bytes(lengths: Mapping[int, int], retention: Retention) -> int:
    """Bytes of the segments that are removed."""
    return sum(lengths.values()) - sum(lengths[n] for n in retention.kept)
