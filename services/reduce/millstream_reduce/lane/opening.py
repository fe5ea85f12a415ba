"""Opens a lane of a reduce vertex: its log, its readers, its way to the engine.

Imported by the assembly only for reduce vertices, because its own imports are large. Decides nothing while records
flow.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from millstream import codes
from millstream.errors import MillstreamError, UserError
from millstream.ledger.protocol import Ledger, Witness
from millstream.ledger.witness import from_messages, given_up_of
from millstream.plan.resolved import ResolvedPipeline
from millstream.record import BufferId, Position
from millstream.retry import RetryPolicy
from millstream.udf.protocol import StreamName
from millstream.watermark.store import OtListener
from millstream_reader.buffer import open_buffer_reader
from millstream_reduce.config import log_bytes_max, program_of, window_config
from millstream_reduce.engine import OpenWindowEngine
from millstream_reduce.lane.closing import EarlyResults
from millstream_reduce.lane.inputs import ReduceInput, ReduceInputs
from millstream_reduce.lane.jobs import HandOverJobs
from millstream_reduce.lane.lane import ReduceLane
from millstream_reduce.lane.milestones import Retracing, open_milestones
from millstream_reduce.lane.progress import progress_of
from millstream_reduce.lane.units import UnitMaker
from millstream_reduce.log.files import Files
from millstream_reduce.log.segments import LogIdentity
from millstream_reduce.queue import QueueLimits, open_queue
from millstream_reduce.windows import make_windowing
from millstream_vertex.core import LaneCore
from millstream_vertex.input import LaneInput
from millstream_vertex.settings import log_segment_bytes
from millstream_vertex.trimming import Trimmer
from millstream_writer.routing import Router

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReduceOpening:
    """What the assembly provides for a reduce lane."""

    resolved: ResolvedPipeline
    core: LaneCore
    router: Router
    policy: RetryPolicy
    function: Callable[[StreamName], str | None]
    """Address of the reduce function next to this process; None if the vertex has none."""
    replica: int
    windows_dir: Path | None
    engine: str | None
    """Address of the engine."""
    ledger: Callable[[str], Awaitable[Ledger]]
    """The ledger of a vertex."""
    trimmer: Callable[[str], Awaitable[Trimmer]]
    """The trimmer of the ledger of a vertex."""
    listen: Callable[[str, OtListener], Awaitable[None]]
    """Passes the updates of that vertex's OT store to a listener."""
    open_engine: OpenWindowEngine
    files: Files
    """The file operations of the log."""
    queue_limits: Callable[[int | None, int], QueueLimits]
    """Bounds of the queue in bytes: the log's bound in the spec, if any, and that of a segment."""
    rng: random.Random

    async def open(self, stack: AsyncExitStack) -> ReduceLane:
        """The lane, with everything that it needs open on `stack`. Raises `DamageError` if its log is damaged."""
        lane, plan = self.core.lane, self.resolved.plan
        where = f"{self.resolved.pipeline.name}/{lane}"
        vertex = plan.vertex(lane.vertex)
        if vertex.group_by is None:
            raise MillstreamError(codes.IMPOSSIBLE, f"{where}: a lane of a {vertex.kind} vertex has no windows")
        if self.windows_dir is None or self.engine is None:
            raise UserError(codes.OPTIONS_CONFLICT, f"{where}: a reduce needs --windows-dir and --spark")
        group_by, mark = vertex.group_by, self.core.committer.mark
        config = window_config(group_by)
        late_to_edge = group_by.on_late == "edge"
        directory = self.windows_dir / lane.vertex / str(lane.partition)
        ledger = await self.ledger(lane.vertex)
        identity = LogIdentity(
            pipeline=self.resolved.pipeline.name,
            vertex=lane.vertex,
            partition=lane.partition,
            epoch=mark.epoch,
            ledger_id=ledger.ledger_id,
        )
        queue = await stack.enter_async_context(
            open_queue(
                directory,
                identity,
                make_windowing(config),
                progress_of(mark),
                limits=self.queue_limits(log_bytes_max(vertex), log_segment_bytes(plan, lane.vertex)),
                keep_late=late_to_edge,
                input_is_kept=group_by.keeps_input,
                files=self.files,
            )
        )
        engine = await stack.enter_async_context(self.open_engine(self.engine))
        positions = queue.positions()
        inputs = [
            await self._open_input(buffer, positions.get(buffer.edge, 0), queue.witnesses(buffer.edge), stack)
            for buffer in plan.inputs_of(lane)
        ]
        milestones = None
        if group_by.keeps_input:
            given_up = given_up_of(mark, lane.input)
            milestones = await open_milestones(ledger, lane, await self.trimmer(lane.vertex), given_up)
        retracing = None
        if milestones is not None and queue.is_behind:
            log.warning("%s: its log in %s is missing or too old; rebuilding it from the input", where, directory)
            stored = {item.buffer.edge: await item.upstream.last_sequence(item.buffer) for item in inputs}
            queue.recall(milestones.all())
            retracing = Retracing(milestones.way(progress_of(mark), positions), stored)
        name = StreamName(self.resolved.pipeline.name, lane.vertex, lane.key, self.replica)
        jobs = HandOverJobs(
            engine,
            program_of(self.resolved, lane, self.replica, self.function(name)),
            self.policy,
            directory=str(directory),
            where=where,
            lane=lane,
            replica=self.replica,
            rng=self.rng,
        )
        early, now_s = group_by.early_results, self.core.clock.monotonic_s()
        return ReduceLane(
            self.core,
            ReduceInputs(inputs),
            queue,
            jobs,
            UnitMaker(self.router, self.policy, where, late_to_edge=late_to_edge, milestones=milestones),
            lateness_us=config.lateness_us,
            retracing=retracing,
            early=EarlyResults(queue, now_s, every_s=early.every_s, count=early.count)
            if early is not None
            else EarlyResults(queue, now_s),
        )

    async def _open_input(
        self, buffer: BufferId, sequence: int, logged: Sequence[Witness], stack: AsyncExitStack
    ) -> ReduceInput:
        """`sequence`, `logged`: how far the buffer was read into the log, and the last frame of each lane in it."""
        plan = self.resolved.plan
        vertex = plan.vertex(self.core.lane.vertex)
        writer = plan.edge(buffer.edge).from_
        lane_input = LaneInput(buffer, plan.upstream_lanes(buffer), back_edge=False)
        await self.listen(writer, lane_input.observe)
        upstream = await self.ledger(writer)
        # If the log is behind the mark, it is rebuilt from frames that the mark has read: they are still the same.
        read = next((done.read for done in self.core.committer.mark.reduce.inputs if done.edge == buffer.edge), ())
        again = [witness for witness in from_messages(read) if witness.sequence > sequence]
        reader = await stack.enter_async_context(
            open_buffer_reader(
                upstream,
                buffer,
                Position(sequence),
                lane_input,
                witnesses=[*logged, *again],
                given_up=given_up_of(self.core.committer.mark, buffer.edge),
                takes_arrow=vertex.definition.takes_arrow(vertex.settings),
            )
        )
        return ReduceInput(buffer, reader, lane_input, upstream, await self.trimmer(writer))
