"""Statistics of a vertex for tests."""

from __future__ import annotations

from dataclasses import replace

from millstream.clock import END_OF_TIME_US, MICROSECONDS
from millstream.record import BufferId, LaneId
from millstream.statistics import BufferStatistics, LaneStatistics, SidecarStatistics, VertexStatistics

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
    pending=1_000,
)
ENDED_LANE = replace(
    LANE,
    lane=LaneId("clean", "in-clean", 1),
    watermark_us=END_OF_TIME_US,
    ended=True,
    idle=True,
    pending=None,
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


def vertex(vertex_type: str = "map") -> VertexStatistics:
    roles = {"source": "transformer", "map": "udf", "sink": "sink"}
    return VertexStatistics(
        pipeline="flights",
        vertex="clean",
        vertex_type=vertex_type,
        replica=1,
        lanes=[LANE, ENDED_LANE],
        buffers=[] if vertex_type == "sink" else [BUFFER],
        sidecars={roles[vertex_type]: SidecarStatistics(running=True, restarts=2, pid=1)},
        commits=20,
        commit_bytes=9_000,
        commit_seconds=0.5,
        answers_settled=1,
        read_restarts=4,
    )


class FixedClock:
    """Stands still."""

    def now_us(self) -> int:
        return NOW_US

    def monotonic_s(self) -> float:
        return 0.0
