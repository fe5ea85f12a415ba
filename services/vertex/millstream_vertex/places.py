"""Checks that the edges of a lane are stored where its pipeline has them: in buffers, or in the chain of the lane.

The runner compares the shapes of pipelines before it starts one (`millstream.plan.diff`). Processes that are
started in another way have only the mark. Above it: the assembly, before a lane does anything. Below it: the mark.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from millstream import codes
from millstream.errors import UserError
from millstream.record import LaneId
from millstream.wire.ledger.v1 import mark_pb2
from millstream_writer.committer import Member


def check_places(lane: LaneId, mark: mark_pb2.Mark, members: Sequence[Member], buffers: Collection[str]) -> None:
    """Raise `UserError` if an edge had a buffer and is chained now, or was chained and has a buffer now. `buffers`: the
    names of all edges of the pipeline that have buffers."""
    chained = {member.edge for member in members}
    for written in mark.written:
        if written.frames and written.edge in chained:
            raise _moved(lane, written.edge, "had a buffer, in which records may wait, and is chained now", "false")
    for former in mark.members:
        if former.edge in buffers:
            raise _moved(lane, former.edge, "was chained, and has a buffer now", "true")


def _moved(lane: LaneId, edge: str, what: str, chain: str) -> UserError:
    return UserError(
        codes.DATA_OF_ANOTHER_PIPELINE,
        f"lane {lane}: edge {edge} {what}. Write `chain: {chain}` to this edge in the pipeline file; or rename the "
        "vertex that it leads to, which then starts empty, when no records wait",
    )
