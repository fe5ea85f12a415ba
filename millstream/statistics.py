"""Statistics that every process reports about itself: tests, metrics and the screen read them. Plain values.

Counts are running totals since the lane's first commit (they are part of its mark, so they survive restarts) unless
stated otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from millstream.record import BufferId, LaneId


class LaneReport(Enum):
    """What the lanes of some kinds of vertex report in addition to what all lanes report."""

    INTAKE = "what they take in from outside"
    FUNCTION = "what they give to a function, record by record"
    WINDOWS = "what waits in windows"
    TARGET = "what they give to a target outside"


@dataclass(frozen=True, slots=True)
class ReduceStatistics:
    """The windows of a reduce lane. Counts start with this process."""

    open_windows: int
    oldest_end_us: int | None
    """End of the open window that ends first; None if no window is open."""
    open_records: int
    """Records in the log that open windows need."""
    pending_hand_overs: int
    """Hand-overs that are frozen and whose results are not committed."""
    pending_records: int
    log_bytes: int
    log_bytes_max: int
    log_segments: int
    log_written_bytes: int
    syncs: int
    """fsyncs of the log."""
    sync_seconds: float
    hand_overs: int
    """Computed hand-overs."""
    hand_over_windows: int
    hand_over_records: int
    job_seconds: float
    """Time of Spark jobs, over all hand-overs."""


@dataclass(frozen=True, slots=True)
class ListenerStatistics:
    """One of our servers that external clients can reach."""

    connections: int
    """Open connections, now."""
    refused: Mapping[str, int]
    """Refused connections and requests by reason, since this process started."""


@dataclass(frozen=True, slots=True)
class LaneStatistics:
    """One lane, as of its last commit."""

    lane: LaneId
    epoch: int
    watermark_us: int
    idle: bool
    ended: bool
    inputs: int
    """Completed records. inputs = processed + filtered + dead_lettered + sum(dropped) + diverted + open."""
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
    """Records sent to a late edge."""
    open: int = 0
    """Records kept for windows that are not committed yet."""
    frames_in_flight: int = 0
    """Frames that are read and not committed, now."""
    records_in_flight: int = 0
    bytes_in_flight: int = 0
    retries: int = 0
    """Attempts after the first, since this process started."""
    udf_errors: int = 0
    """Errors that the function returned, since this process started."""
    state_reads: int = 0
    """Reads of lazy states while calls were in progress, since this process started."""
    pending: int | None = None
    """Records waiting in the buffer, or at the source if it knows."""
    pending_bytes: int | None = None
    """Bytes waiting at a source that reads a log, files or objects, if it knows."""
    pending_versions: int | None = None
    """Versions waiting at a source that reads a table version by version, if it knows."""
    reduce: ReduceStatistics | None = None
    """The windows, for a lane of a reduce only."""
    listener: ListenerStatistics | None = None
    """The server, for a source to which others send records."""

    @property
    def connections(self) -> int | None:
        """Open connections of its senders, now."""
        return self.listener.connections if self.listener is not None else None


@dataclass(frozen=True, slots=True)
class BufferStatistics:
    """One buffer, from the view of its writer."""

    buffer: BufferId
    records: int
    """Records that are written and not yet consumed."""
    bytes: int
    records_max: int
    bytes_max: int
    full: bool
    """The writer waits (or discards) because of this buffer."""
    written_records: int = 0
    """Records that this vertex's lanes have written since their first commit."""
    written_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SidecarStatistics:
    """The process of a user-defined function."""

    running: bool
    restarts: int
    """Restarts since this process started."""
    pid: int | None
    oldest_call_s: float = 0.0
    """How long the oldest call has had no answer."""
    language: str = ""
    sdk_version: str = ""


@dataclass(frozen=True, slots=True)
class FunctionSeries:
    """One series of what a user-defined function counts: a name with labels."""

    name: str
    kind: str
    """counter, gauge or histogram."""
    labels: Mapping[str, str]
    value: float
    """Total of a counter, or of what a histogram has recorded; the last value of a gauge."""
    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    """Values in each bucket of a histogram."""


@dataclass(frozen=True, slots=True)
class VertexStatistics:
    """One vertex process."""

    pipeline: str
    vertex: str
    vertex_type: str
    """source, map, reduce, sink, or the name of another package's kind of vertex."""
    replica: int
    lanes: Sequence[LaneStatistics]
    buffers: Sequence[BufferStatistics]
    sidecars: Mapping[str, SidecarStatistics] = field(default_factory=dict)
    """Sidecars by role: udf, transformer, sink, fallback, source."""
    functions: Mapping[str, Sequence[FunctionSeries]] = field(default_factory=dict)
    """What functions count, by role."""
    commits: int = 0
    commit_bytes: int = 0
    commit_seconds: float = 0.0
    answers_settled: int = 0
    read_restarts: int = 0
    reports: frozenset[LaneReport] = frozenset()
    """What its lanes report in addition to what all lanes report."""
