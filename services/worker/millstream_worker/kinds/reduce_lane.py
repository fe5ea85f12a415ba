"""Opens a lane of a reduce vertex: its log, its readers, its way to the engine.

Imported only for reduce vertices, because its own imports are large. Decides nothing while records flow.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from millstream import codes
from millstream.errors import MillstreamError, UserError
from millstream.ledger.protocol import Witness
from millstream.ledger.witness import from_messages, given_up_of
from millstream.record import BufferId, Position
from millstream_reduce.config import log_bytes_max, program_of, window_config
from millstream_reduce.lane.closing import EarlyResults
from millstream_reduce.lane.inputs import ReduceInput, ReduceInputs
from millstream_reduce.lane.jobs import HandOverJobs
from millstream_reduce.lane.lane import ReduceLane
from millstream_reduce.lane.milestones import Retracing, open_milestones
from millstream_reduce.lane.progress import progress_of
from millstream_reduce.lane.units import UnitMaker
from millstream_reduce.log.segments import LogIdentity
from millstream_reduce.queue import open_queue
from millstream_reduce.windows import make_windowing
from millstream_vertex.settings import log_segment_bytes

if TYPE_CHECKING:
    from millstream_worker.opening import LaneOpening

log = logging.getLogger(__name__)


async def open_reduce_lane(opening: LaneOpening) -> ReduceLane:
    """The lane, with everything that it needs open until the replica ends. Raises `DamageError` if its log is
    damaged."""
    shared, lane, core, plan, where = opening.shared, opening.lane, opening.core, opening.plan, opening.where
    vertex, config, outside = shared.vertex, shared.config, shared.outside
    if vertex.group_by is None:
        raise MillstreamError(codes.IMPOSSIBLE, f"{where}: a lane of a {vertex.kind} vertex has no windows")
    if config.windows_dir is None or config.spark is None:
        raise UserError(codes.OPTIONS_CONFLICT, f"{where}: a reduce needs --windows-dir and --spark")
    group_by, mark, policy = vertex.group_by, core.committer.mark, opening.retry_policy
    windows = window_config(group_by)
    late_to_edge = group_by.on_late == "edge"
    directory = config.windows_dir / lane.vertex / str(lane.partition)
    ledger = await shared.ledgers.of(lane.vertex)
    identity = LogIdentity(
        pipeline=shared.pipeline,
        vertex=lane.vertex,
        partition=lane.partition,
        epoch=mark.epoch,
        ledger_id=ledger.ledger_id,
    )
    queue = await opening.stack.enter_async_context(
        open_queue(
            directory,
            identity,
            make_windowing(windows),
            progress_of(mark),
            limits=outside.queue_limits(log_bytes_max(vertex), log_segment_bytes(plan, lane.vertex)),
            keep_late=late_to_edge,
            input_is_kept=group_by.keeps_input,
            files=outside.files(),
        )
    )
    engine = await opening.stack.enter_async_context(outside.engine(config.spark))
    positions = queue.positions()
    inputs = [
        await _open_input(opening, buffer, positions.get(buffer.edge, 0), queue.witnesses(buffer.edge))
        for buffer in plan.inputs_of(lane)
    ]
    milestones = None
    if group_by.keeps_input:
        given_up = given_up_of(mark, lane.input)
        milestones = await open_milestones(ledger, lane, await shared.ledgers.trimmer(lane.vertex), given_up)
    retracing = None
    if milestones is not None and queue.is_behind:
        log.warning("%s: its log in %s is missing or too old; rebuilding it from the input", where, directory)
        stored = {item.buffer.edge: await item.upstream.last_sequence(item.buffer) for item in inputs}
        queue.recall(milestones.all())
        retracing = Retracing(milestones.way(progress_of(mark), positions), stored)
    jobs = HandOverJobs(
        engine,
        program_of(config.resolved, lane, config.replica, shared.programs.reduce_address(opening.name)),
        policy,
        directory=str(directory),
        where=where,
        lane=lane,
        replica=config.replica,
        rng=shared.rng,
    )
    early, now_s = group_by.early_results, core.clock.monotonic_s()
    return ReduceLane(
        core,
        ReduceInputs(inputs),
        queue,
        jobs,
        UnitMaker(opening.router, policy, where, late_to_edge=late_to_edge, milestones=milestones),
        lateness_us=windows.lateness_us,
        retracing=retracing,
        early=EarlyResults(queue, now_s, every_s=early.every_s, count=early.count)
        if early is not None
        else EarlyResults(queue, now_s),
    )


async def _open_input(opening: LaneOpening, buffer: BufferId, sequence: int, logged: Sequence[Witness]) -> ReduceInput:
    """`sequence`, `logged`: how far the buffer was read into the log, and the last frame of each lane in it."""
    ledgers, vertex = opening.shared.ledgers, opening.shared.vertex
    # If the log is behind the mark, it is rebuilt from frames that the mark has read: they are still the same.
    read = next((done.read for done in opening.core.committer.mark.reduce.inputs if done.edge == buffer.edge), ())
    again = [witness for witness in from_messages(read) if witness.sequence > sequence]
    takes_arrow = vertex.definition.takes_arrow(vertex.settings)
    reader, lane_input = await opening.reader(buffer, Position(sequence), [*logged, *again], takes_arrow=takes_arrow)
    writer = opening.plan.edge(buffer.edge).from_
    return ReduceInput(buffer, reader, lane_input, await ledgers.of(writer), await ledgers.trimmer(writer))
