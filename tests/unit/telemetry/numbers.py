"""Statistics of a vertex for tests."""

from __future__ import annotations

from dataclasses import replace

from millstream.clock import END_OF_TIME_US, MICROSECONDS
from millstream.record import BufferId, LaneId
from millstream.statistics import (
    BufferStatistics,
    LaneReport,
    LaneStatistics,
    ListenerStatistics,
    ReduceStatistics,
    SidecarStatistics,
    VertexStatistics,
)

NOW_US = 1_700_000_000 * MICROSECONDS

LANE = LaneStatistics(
    lane=LaneId("clean", "in-clean", 0),
    epoch=3,
    watermark_us=NOW_US - 90 * MICROSECONDS,
    idle=False,
    ended=False,
    inputs=100,
    input_bytes=10_000,
    processed=80,
    filtered=11,
    dead_lettered=4,
    dropped={"malformed": 5},
    listener=ListenerStatistics(connections=7, refused={"status 401": 2}),
    outputs=160,
    unrouted=7,
    discarded=2,
    late=6,
    fallback=9,
    repeated_ids=3,
    frames_in_flight=2,
    records_in_flight=50,
    bytes_in_flight=5_000,
    retries=12,
    udf_errors=13,
    state_reads=17,
    pending=1_000,
    pending_bytes=9_000,
    pending_versions=8,
)
ENDED_LANE = replace(
    LANE,
    lane=LaneId("clean", "in-clean", 1),
    watermark_us=END_OF_TIME_US,
    ended=True,
    idle=True,
    pending=None,
    pending_bytes=None,
    pending_versions=None,
    dropped={},
    discarded=0,
    unrouted=0,
)
BUFFER = BufferStatistics(
    BufferId("clean-out", 0),
    records=250,
    bytes=4_000,
    records_max=1_000,
    bytes_max=40_000,
    full=True,
    written_records=150,
    written_bytes=15_000,
)


WINDOWS = ReduceStatistics(
    open_windows=3,
    oldest_end_us=NOW_US - MICROSECONDS,
    open_records=70,
    pending_hand_overs=1,
    pending_records=20,
    log_bytes=500_000,
    log_bytes_max=1_000_000,
    log_segments=2,
    log_written_bytes=700_000,
    syncs=40,
    sync_seconds=0.1,
    hand_overs=5,
    hand_over_windows=50,
    hand_over_records=600,
    job_seconds=1.5,
)


REPORTS = {
    "source": frozenset({LaneReport.INTAKE}),
    "map": frozenset({LaneReport.FUNCTION}),
    "reduce": frozenset({LaneReport.WINDOWS}),
    "sink": frozenset({LaneReport.TARGET}),
}


def vertex(vertex_type: str = "map") -> VertexStatistics:
    roles = {"source": "transformer", "map": "udf", "reduce": "udf", "sink": "sink"}
    return VertexStatistics(
        pipeline="flights",
        vertex="clean",
        vertex_type=vertex_type,
        replica=1,
        lanes=[replace(LANE, reduce=WINDOWS) if vertex_type == "reduce" else LANE, ENDED_LANE],
        buffers=[] if vertex_type == "sink" else [BUFFER],
        sidecars={roles[vertex_type]: SidecarStatistics(running=True, restarts=2, pid=1, oldest_call_s=7.0)},
        commits=20,
        commit_bytes=9_000,
        commit_seconds=0.5,
        answers_settled=1,
        read_restarts=4,
        reports=REPORTS[vertex_type],
    )


class FixedClock:
    """Stands still."""

    def now_us(self) -> int:
        return NOW_US

    def monotonic_s(self) -> float:
        return 0.0
