"""Opens the lanes of a replica. What the lanes of all kinds need is here; each kind has the rest.

    take over: ledger, OT store ─► LaneCore ─► the kind opens the rest ─► VertexLane

Above it: the assembly. Below it: the kinds of vertex, found by `millstream.spec.kinds`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack

from millstream import codes
from millstream.clock import START_OF_TIME_US
from millstream.errors import FencedError, UserError
from millstream.importing import started
from millstream.ledger.marks import fenced
from millstream.limits import BYTES_IN_FLIGHT_MAX, FRAMES_IN_FLIGHT_MAX, OT_PUBLISH_INTERVAL_S
from millstream.plan.plan import Plan
from millstream.record import BufferId, LaneId
from millstream.telemetry.telemetry import Telemetry
from millstream.watermark.store import newest
from millstream_reader.tracker import Tracker
from millstream_vertex.core import LaneCore
from millstream_vertex.gathering import Pace
from millstream_vertex.settings import id_bounds, little_of, members_of
from millstream_vertex.taking_over import check_not_older, check_places, log_opened
from millstream_worker.kind import RunnableKind
from millstream_worker.opening import LaneOpening, VertexLane
from millstream_worker.shared import ReplicaResources
from millstream_writer.committer import Committer
from millstream_writer.routing import Router


async def open_lane(
    shared: ReplicaResources, lane: LaneId, telemetry: Mapping[str, Telemetry], stack: AsyncExitStack
) -> VertexLane:
    """Take over a lane and open it on `stack`. `telemetry`: the telemetry of each vertex that runs in the lane."""
    kind = shared.vertex.definition
    if not isinstance(kind, RunnableKind):
        raise UserError(
            codes.EXTENSION,
            f"{shared.pipeline}/{lane}: no worker can run a {kind.name}: its object is not a RunnableKind",
        )
    core = await _core(shared, lane, telemetry[lane.vertex], shared.router(shared.plan, lane.vertex))
    try:
        opened: VertexLane = await started(
            kind.open_lane, shared.vertex.settings, LaneOpening(shared, core, telemetry, stack)
        )
    except FencedError as update:
        await shared.ownership.check_known(lane, await shared.ledgers.of(lane.vertex), update)
        raise
    return opened


async def _core(shared: ReplicaResources, lane: LaneId, telemetry: Telemetry, router: Router) -> LaneCore:
    """Take over the lane in its ledger and in the OT store."""
    ledger = await shared.ledgers.of(lane.vertex)
    ot = await shared.ot(lane.vertex)
    # Read the OT entry before the mark: an entry is published only after its mark has been committed.
    update = (await newest(ot)).get(lane.key)
    before = await ledger.mark(lane)
    if update is not None:
        check_not_older(lane, before, update.entry)
    members = members_of(shared.graph, lane.vertex)
    if before is not None:
        check_places(lane, before.mark, members, {edge.name for edge in shared.plan.edges})
    taken_over = await ledger.take_over(lane, shared.owner)
    log_opened(lane, taken_over.mark)
    shared.backpressure.written(lane, taken_over.mark.written)
    epoch = taken_over.mark.epoch
    published = await ot.take_over(lane, epoch)
    stored = (await newest(ot)).get(lane.key)
    if stored is not None and stored.entry.epoch > epoch:
        raise fenced(lane, stored.entry.epoch, epoch)
    shared.ownership.own(lane, epoch)
    # The newest frame of a buffer is never trimmed.
    sequences = {buffer: await ledger.last_sequence(buffer) for buffer in router.buffers}
    inside, ids = _inside_a_cycle(shared.plan, lane), id_bounds(shared.plan, lane.vertex)
    return LaneCore(
        lane,
        Committer(
            ledger,
            lane,
            taken_over,
            sequences,
            router,
            shared.backpressure,
            compression=shared.config.resolved.pipeline.spec.compression,
            never_waits_for=inside,
            members=members,
            ids_ttl_s=ids.ttl_s if ids is not None else 0.0,
        ),
        ot,
        telemetry,
        shared.clock,
        Tracker(pieces_max=FRAMES_IN_FLIGHT_MAX, bytes_max=BYTES_IN_FLIGHT_MAX),
        watermarks=not shared.config.resolved.pipeline.spec.watermark.disabled,
        published_us=published.watermark_us if published is not None else START_OF_TIME_US,
        pace=Pace(
            # Progress without output is visible only in the OT entry, which is not published more often than this.
            commit_interval_s=OT_PUBLISH_INTERVAL_S if shared.vertex.definition.is_paced else 0.0,
            little=little_of(shared.plan, lane.vertex),
        ),
    )


def _inside_a_cycle(plan: Plan, lane: LaneId) -> list[BufferId]:
    """The buffers inside the cycle that a lane writes, if its input closes the cycle; otherwise none."""
    if not any(buffer.edge in plan.back_edges for buffer in plan.inputs_of(lane)):
        return []
    members = next(group for group in plan.sccs if lane.vertex in group)
    inside = [edge for edge in plan.edges_out[lane.vertex] if edge.to in members]
    return [buffer for edge in inside for buffer in plan.buffers_of(edge)]
