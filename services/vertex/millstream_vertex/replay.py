"""Puts records back into the buffer of a vertex that gave them up, while the pipeline does not run.

    take over a lane of the vertex upstream ─► ids seen? ─► COMMIT: frames + ids + the lane's mark, same position

A replay is a commit of the lane that writes the buffer, so it is atomic, fenced, and counted like everything else that
the lane writes. The same commit stores the ids of the records, so a second replay of them has no effect. Lanes
downstream of the buffer that have ended are reopened first, and end again when they have read it.

Above it: `millstream deadletters`. Below it: ledgers and OT stores. It does not depend on files or envelopes.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from millstream import codes
from millstream.account import Account
from millstream.clock import Clock
from millstream.errors import InfrastructureError, UserError
from millstream.frame import build_frame
from millstream.ledger.protocol import Broker, Ledger
from millstream.limits import (
    BYTES_IN_FLIGHT_MAX,
    FRAME_BYTES_MAX,
    FRAMES_IN_FLIGHT_MAX,
    REPLAY_IDS_TTL_S,
    REPLAY_RECORDS_MAX,
    REPLAY_TIMEOUT_S,
)
from millstream.plan.plan import Plan
from millstream.record import ID_DIGEST_BYTES, BufferId, LaneId, Record, id_digest
from millstream.spec import topology
from millstream.telemetry.telemetry import Telemetry
from millstream.watermark.store import OtStores, newest
from millstream_reader.tracker import Tracker
from millstream_vertex.core import LaneCore
from millstream_vertex.settings import members_of, route
from millstream_vertex.shared_copies import leave, read_now
from millstream_writer.backpressure import Backpressure
from millstream_writer.committer import Changes, Committer, Unit
from millstream_writer.routing import Router, cut


@dataclass(frozen=True, slots=True)
class ReplayRecord:
    """A record to put back."""

    identity: str
    """Identifies the failure: unique, and the same at every replay."""
    buffer: BufferId
    record: Record


@dataclass(slots=True)
class ReplayResult:
    """The result of a replay."""

    records: int = 0
    """Records that this replay put back."""
    repeated: int = 0
    """Records left out because an earlier replay put them back."""
    reopened: list[LaneId] = field(default_factory=list)
    """Lanes that had ended and are open again."""


class Replay:
    """Replays records of one pipeline whose processes are not running."""

    def __init__(self, plan: Plan, broker: Broker, stores: OtStores, clock: Clock) -> None:
        self._plan = plan
        self._broker = broker
        self._stores = stores
        self._clock = clock

    async def put_back(self, returned: Sequence[ReplayRecord]) -> ReplayResult:
        """Put records back, each once. After an interruption, it may be called again with the same records.

        Raises `UserError` if a downstream reduce has ended, because its windows are closed. Raises
        `InfrastructureError` if a buffer is full, and `RetryLaterError` while the broker is unavailable. Records that
        were put back before the error stay.
        """
        done = ReplayResult()
        edges = {record.buffer.edge for record in returned}
        # First, because an ended lane would not read the records. A reopened lane ends again if none arrive.
        await self._reopen(edges, done)
        for upstream in sorted({self._plan.edge(edge).from_ for edge in edges}):
            mine = [record for record in returned if self._plan.edge(record.buffer.edge).from_ == upstream]
            await self._write(self._plan.lanes_of(upstream)[0], mine, done)
        return done

    async def _take_apart(self, edges: set[str]) -> None:
        """Make the edges leave copies that they share: the other edges would read the records that are put back."""
        for upstream in sorted({self._plan.edge(edge).from_ for edge in edges}):
            ledger = await self._broker.existing_ledger(upstream)
            if ledger is None:
                continue
            sharing = read_now(self._plan, upstream, ledger.sharing)
            mine = [edge for edge in sorted(edges) if self._plan.edge(edge).from_ == upstream]
            if shared := [edge for edge in mine if len(sharing.group(edge)) > 1]:
                await leave(self._plan, upstream, shared, self._broker.existing_ledger, codes.NOT_REPLAYED)

    async def _reopen(self, edges: set[str], done: ReplayResult) -> None:
        plan = self._plan
        arcs = [(edge.from_, edge.to) for edge in plan.edges]
        downstream = topology.reachable([plan.edge(edge).to for edge in edges], arcs)
        read = edges | {edge.name for edge in plan.edges if edge.from_ in downstream}
        ended: list[LaneId] = []
        for vertex in reversed([name for name in plan.order if name in downstream]):
            ledger = await self._broker.existing_ledger(vertex)
            if ledger is None:
                continue
            for lane in plan.lanes_of(vertex):
                if not await _has_ended(ledger, lane):
                    continue
                if plan.vertex(vertex).definition.has_windows:
                    raise UserError(
                        codes.NOT_REPLAYED,
                        f"vertex {vertex} has ended and its windows are closed, so nothing can be replayed to it or "
                        "through it. Nothing was changed. Process the records in a new run, as its input",
                    )
                if any(buffer.edge in read for buffer in plan.inputs_of(lane)):
                    ended.append(lane)
        await self._take_apart(edges)
        for lane in ended:
            _, core = await self._take_over(lane)
            await core.committer.commit([], watermark_us=core.committer.mark.watermark_us, ended=False)
            await _tell(core)
            done.reopened.append(lane)

    async def _write(self, lane: LaneId, returned: Sequence[ReplayRecord], done: ReplayResult) -> None:
        ledger, core = await self._take_over(lane)
        new: dict[bytes, ReplayRecord] = {}
        for item in returned:
            new.setdefault(id_digest(item.identity.encode()), item)
        async for stored in ledger.ids(lane):
            for start in range(0, len(stored.digests), ID_DIGEST_BYTES):
                new.pop(stored.digests[start : start + ID_DIGEST_BYTES], None)
        done.repeated += len(returned) - len(new)
        for part in _parts(list(new.values())):
            unit = self._unit(part)
            mark = core.committer.mark
            try:
                async with asyncio.timeout(REPLAY_TIMEOUT_S):
                    await core.committer.commit([unit], watermark_us=mark.watermark_us, ended=mark.ended)
            except TimeoutError:
                names = ", ".join(sorted({str(item.buffer) for item in part}))
                raise InfrastructureError(
                    codes.BUFFERS_TAKE_NOTHING,
                    f"the buffers {names} accept no records: they are full, or the broker does not answer. "
                    f"{done.records} records were put back. Run the pipeline, then replay again; these records are "
                    "left out then",
                ) from None
            done.records += len(part)
        # Even if nothing was new: an earlier replay may have been interrupted between its commit and this step.
        await _tell(core)

    def _unit(self, part: Sequence[ReplayRecord]) -> Unit:
        ids = b"".join(id_digest(item.identity.encode()) for item in part)
        unit = Unit(changes=Changes(ids), account=Account(outputs=len(part)), size=len(ids))
        buffers = sorted({item.buffer for item in part})
        now_us = self._clock.now_us()
        for buffer in buffers:
            records = [item.record for item in part if item.buffer == buffer]
            frame = build_frame(
                [record.value for record in records],
                array("q", [record.event_time_us for record in records]),
                ingest_time_us=now_us,
                keys=[[key.encode() for key in record.keys] for record in records],
                headers=[record.headers for record in records],
                ids=[(record.id or "").encode() for record in records],
            )
            unit.frames = [*unit.frames, *((buffer, piece) for piece in cut(frame))]
        unit.size += sum(frame.size for _, frame in unit.frames)
        return unit

    async def _take_over(self, lane: LaneId) -> tuple[Ledger, LaneCore]:
        """Take over the lane as a vertex process would, which fences its former owner."""
        ledger = await self._broker.existing_ledger(lane.vertex)
        if ledger is None:
            raise UserError(codes.NOT_REPLAYED, f"vertex {lane.vertex} has stored nothing yet. Run the pipeline first")
        taken_over = await ledger.take_over(lane, "millstream deadletters replay")
        # An edge may discard records that do not fit, but records that are put back must not be lost.
        routes = [
            replace(route(self._plan, edge), discard_when_full=False) for edge in self._plan.edges_out[lane.vertex]
        ]
        buffers = [buffer for edge in self._plan.edges_out[lane.vertex] for buffer in self._plan.buffers_of(edge)]
        members = members_of(self._plan.graph, lane.vertex)
        ot = await self._stores.store(lane.vertex)
        stored = (await newest(ot)).get(lane.key)
        await ot.take_over(lane, taken_over.mark.epoch)
        sequences = {buffer: await ledger.last_sequence(buffer) for buffer in buffers}
        for buffer, state in (stored.outputs if stored is not None else {}).items():
            if buffer in sequences:
                sequences[buffer] = max(sequences[buffer], state.sequence)
        core = LaneCore(
            lane,
            # No bounds: it is not known here what other lanes have consumed. The broker's own bounds apply.
            Committer(
                ledger,
                lane,
                taken_over,
                sequences,
                Router(routes),
                Backpressure({}),
                compression=self._plan.pipeline.spec.compression,
                members=members,
                ids_ttl_s=REPLAY_IDS_TTL_S,
            ),
            ot,
            Telemetry(),
            self._clock,
            Tracker(pieces_max=FRAMES_IN_FLIGHT_MAX, bytes_max=BYTES_IN_FLIGHT_MAX),
            watermarks=not self._plan.pipeline.spec.watermark.disabled,
        )
        return ledger, core


async def _has_ended(ledger: Ledger, lane: LaneId) -> bool:
    stored = await ledger.mark(lane)
    return stored is not None and stored.mark.ended


async def _tell(core: LaneCore) -> None:
    """Publish the lane's state; otherwise, downstream lanes would rely on the end that it published before."""
    core.publisher.publish(core.committer.mark.watermark_us)
    await core.publisher.flush()


def _parts(returned: Sequence[ReplayRecord]) -> Iterator[Sequence[ReplayRecord]]:
    """Split records into commits, with bounded numbers of records and bytes."""
    part: list[ReplayRecord] = []
    size = 0
    for item in returned:
        item_size = len(item.record.value) + sum(map(len, item.record.headers.values()))
        if part and (len(part) == REPLAY_RECORDS_MAX or size + item_size > FRAME_BYTES_MAX):
            yield part
            part, size = [], 0
        part.append(item)
        size += item_size
    if part:
        yield part
