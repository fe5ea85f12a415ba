"""Numbers every process can tell about itself: what tests, metrics and the screen read. Plain values.

Counts are running totals since the lane's first commit (they are part of its mark, so they survive restarts) unless
said otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from millstream.record import BufferId, LaneId


class LaneReport(Enum):
    """What the lanes of some kinds of vertex tell beside what all lanes do."""

    INTAKE = "what they take in from outside"
    FUNCTION = "what they give to a function, record by record"
    WINDOWS = "what waits in windows"
    TARGET = "what they give to a target outside"


@dataclass(frozen=True, slots=True)
class ReduceStatistics:
    """The windows of a reduce lane. Counts are since this process started."""

    open_windows: int
    oldest_end_us: int | None
    """End of the open window that ends first; None when none is open."""
    open_records: int
    """Records in the log that open windows need."""
    pending_hand_overs: int
    """Frozen, and their results not committed."""
    pending_records: int
    log_bytes: int
    log_bytes_max: int
    log_segments: int
    log_written_bytes: int
    syncs: int
    """fsyncs of the log."""
    sync_seconds: float
    hand_overs: int
    """Computed."""
    hand_over_windows: int
    hand_over_records: int
    job_seconds: float
    """Of Spark, over all of them."""


@dataclass(frozen=True, slots=True)
class ListenerStatistics:
    """A server of ours that strangers reach."""

    connections: int
    """Open now."""
    refused: Mapping[str, int]
    """Connections and requests by the reason, since this process started."""


@dataclass(frozen=True, slots=True)
class LaneStatistics:
    """One lane, as of its last commit."""

    lane: LaneId
    epoch: int
    watermark_us: int
    idle: bool
    ended: bool
    inputs: int
    """Records done with. inputs = processed + filtered + dead_lettered + sum(dropped) + diverted + open."""
    input_bytes: int
    processed: int
    filtered: int
    dead_lettered: int
    dropped: Mapping[str, int]
    outputs: int
    unrouted: int
    discarded: int
    late: int
    fallback: int
    repeated_ids: int
    diverted: int = 0
    """Sent to a late edge."""
    open: int = 0
    """Kept for windows that are not committed yet."""
    frames_in_flight: int = 0
    """Read and not committed, now."""
    records_in_flight: int = 0
    bytes_in_flight: int = 0
    retries: int = 0
    """Attempts after the first, since this process started."""
    udf_errors: int = 0
    """Errors the function gave, since this process started."""
    pending: int | None = None
    """Records waiting: in the buffer, or at a source that can tell."""
    pending_bytes: int | None = None
    """Bytes waiting at a source that reads a log and can tell."""
    reduce: ReduceStatistics | None = None
    """Of a reduce's lanes only."""
    listener: ListenerStatistics | None = None
    """Of a source that is sent its records."""

    @property
    def connections(self) -> int | None:
        """Of its senders, now."""
        return self.listener.connections if self.listener is not None else None


@dataclass(frozen=True, slots=True)
class BufferStatistics:
    """One buffer, as its writer sees it."""

    buffer: BufferId
    records: int
    """Written and not yet consumed."""
    bytes: int
    records_max: int
    bytes_max: int
    full: bool
    """The writer waits (or discards) because of this buffer."""
    written_records: int = 0
    """Written by this vertex's lanes since their first commit."""
    written_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SidecarStatistics:
    """The process of a user-defined function."""

    running: bool
    restarts: int
    """Since this process started."""
    pid: int | None
    language: str = ""
    sdk_version: str = ""


@dataclass(frozen=True, slots=True)
class VertexStatistics:
    """One vertex process."""

    pipeline: str
    vertex: str
    vertex_type: str
    """source, map, reduce, sink, or as another package calls its kind."""
    replica: int
    lanes: Sequence[LaneStatistics]
    buffers: Sequence[BufferStatistics]
    sidecars: Mapping[str, SidecarStatistics] = field(default_factory=dict)
    """By role: udf, transformer, sink, fallback, source."""
    commits: int = 0
    commit_bytes: int = 0
    commit_seconds: float = 0.0
    answers_settled: int = 0
    read_restarts: int = 0
    reports: frozenset[LaneReport] = frozenset()
    """What its lanes tell beside what all lanes do."""
