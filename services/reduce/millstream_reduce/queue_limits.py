"""The bounds of a reduce lane's queue, and its statistics. Plain values."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.limits import (
    HAND_OVER_BYTES_MAX,
    HAND_OVER_PIECES_MAX,
    HAND_OVER_WINDOWS_MAX,
    LOG_BYTES_MAX,
    LOG_SEGMENT_BYTES,
    LOG_UNSYNCED_BYTES_MAX,
)
from millstream_reduce.log.log import LogStatistics


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Bounds of one queue."""

    log_bytes_max: int = LOG_BYTES_MAX
    """Bytes of all segments at which nothing more is admitted."""
    unsynced_bytes_max: int = LOG_UNSYNCED_BYTES_MAX
    """Bytes in memory that are not durable, at which nothing more is admitted."""
    segment_bytes: int = LOG_SEGMENT_BYTES
    hand_over_windows_max: int = HAND_OVER_WINDOWS_MAX
    hand_over_bytes_max: int = HAND_OVER_BYTES_MAX
    hand_over_pieces_max: int = HAND_OVER_PIECES_MAX

    def __post_init__(self) -> None:
        if self.log_bytes_max < 4 * self.segment_bytes:
            # Segments are removed as a whole: with fewer of them, one open window could fill the log.
            raise ValueError(
                f"a log of {self.log_bytes_max} bytes has space for fewer than 4 segments of {self.segment_bytes}"
            )


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """One queue, now."""

    open_windows: int
    oldest_end_us: int | None
    """End of the first open window."""
    open_rows: int
    """Records that open windows need."""
    pending_hand_overs: int
    """Hand-overs that are not committed."""
    pending_windows: int
    pending_rows: int
    last_hand_over: int
    unacknowledged_records: int
    """Records in the log that are not in the lane's mark."""
    log: LogStatistics
    log_bytes_max: int
    full: str
    """The reason why the queue accepts nothing; empty while it has space."""
