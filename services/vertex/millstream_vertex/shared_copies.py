"""Edges that share a stored copy of their frames: which do so in the current pipeline, and how an edge leaves a copy.

    the ledger says which edges share ─► those that still carry the same frames stay ─► the others leave:

    writers are fenced ─► no record waits ─► no reader's mark needs the copy's frames ─► the ledger separates the edges

If a process dies between these steps, the former pipeline still runs as before. The next process repeats the steps.

Above it: workers, which refuse edges that have to leave; the runner and replays, which make them leave while no other
process runs the pipeline. Below it: the ledgers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from millstream import codes
from millstream.account import consumed
from millstream.codes.code import Code
from millstream.errors import UserError
from millstream.ledger.protocol import Ledger
from millstream.ledger.rewriting import rewritten
from millstream.ledger.sharing import Sharing
from millstream.plan.plan import Plan
from millstream.record import BufferId, LaneId, Position
from millstream.wire.ledger.v1 import mark_pb2

_OWNER = "leave"


def read_now(plan: Plan, vertex: str, sharing: Sharing) -> Sharing:
    """The edges of the current pipeline that share a copy in a vertex's ledger. Removed edges have no readers."""
    edges = {edge.name for edge in plan.edges_out[vertex]}
    return sharing.without([edge for edge in sharing.stores if edge not in edges])


def leaving(plan: Plan, vertex: str, sharing: Sharing) -> Sequence[str]:
    """The edges that have to leave their copy in a vertex's ledger, because they now carry other frames than the rest.
    The largest group of edges with the same frames stays."""
    now = read_now(plan, vertex, sharing)
    same = {edge: group for group in plan.same_frames(vertex).values() for edge in group}
    found: list[str] = []
    for store in dict.fromkeys(now.stores.values()):
        edges = [edge for edge, name in now.stores.items() if name == store]
        stay = max(([edge for edge in edges if edge in same.get(one, (one,))] for one in edges), key=len)
        found += [edge for edge in edges if edge not in stay]
    return found


def checked(plan: Plan, vertex: str, sharing: Sharing, where: str) -> Sharing:
    """The result of `read_now`. Raises `UserError` if an edge has to leave its copy first."""
    now = read_now(plan, vertex, sharing)
    for edge in leaving(plan, vertex, sharing):
        others = ", ".join(other for other in now.group(edge) if other != edge)
        raise UserError(
            codes.DATA_OF_ANOTHER_PIPELINE,
            f"{where}: the records of edge {edge} are stored together with those of {others}, and its conditions or "
            "the partitions of its vertex now differ from theirs. Change them back, or give the edge another name "
            "when no records wait in it",
        )
    return now


async def leave(
    plan: Plan,
    vertex: str,
    edges: Sequence[str],
    ledger_of: Callable[[str], Awaitable[Ledger | None]],
    code: Code = codes.CHANGED_WHERE_DATA_WAITS,
) -> None:
    """Make these edges of a vertex's ledger leave their copies. No other process may run lanes of the pipeline.

    Raises `UserError` with `code` if records wait in them; in this case, nothing has changed.
    """
    ledger = await ledger_of(vertex)
    assert ledger is not None, "it says which edges share"
    # This fences former owners that may still be running: they would write to the copy.
    lanes = [lane for one in plan.stored_with(vertex) for lane in plan.lanes_of(one)]
    writers = {lane.key: (await ledger.take_over(lane, _OWNER)).mark for lane in lanes}
    # Prepared frames are stored once a delivery is confirmed.
    prepared = {frame.edge for mark in writers.values() for frame in mark.prepared.frames}
    for edge in edges:
        waits = not prepared.isdisjoint(ledger.sharing.group(edge))
        for lane, buffer in _readers(plan, edge):
            own = await ledger_of(lane.vertex)
            mark = await _mark(own, lane)
            after = next((done.position for done in consumed(lane, mark) if done.buffer == buffer), Position(0))
            if waits or await ledger.peek(buffer, after.sequence, 1):
                raise UserError(
                    code,
                    f"the records of edge {edge} are stored together with those of other edges, and have to be stored "
                    "apart from now on, but records wait in it. Run the pipeline as it was until they are processed "
                    "(Ctrl-C drains it), then repeat this",
                )
    for edge in edges:
        for lane, buffer in _readers(plan, edge):
            own = await ledger_of(lane.vertex)
            if own is not None and await own.mark(lane) is not None:
                await _rely_on_nothing(own, lane, buffer, writers)
    await ledger.leave(edges)


async def _rely_on_nothing(own: Ledger, lane: LaneId, buffer: BufferId, writers: Mapping[str, mark_pb2.Mark]) -> None:
    """Record in a reader's mark that the frames it has read are no longer needed: the buffer that it continues to read
    does not contain them."""
    async with rewritten(own, lane, _OWNER) as mark:
        after = next((done.position for done in consumed(lane, mark) if done.buffer == buffer), Position(0))
        for key, writer in writers.items():
            frames = next((one.frames for one in writer.written if _is(one, buffer)), 0)
            if frames:
                # The next frame of the writer has the next number.
                mark.given_up.add(edge=buffer.edge, lane=key, sequence=after.sequence, after=0, through=frames)


async def _mark(ledger: Ledger | None, lane: LaneId) -> mark_pb2.Mark:
    stored = await ledger.mark(lane) if ledger is not None else None
    return stored.mark if stored is not None else mark_pb2.Mark()


def _readers(plan: Plan, edge: str) -> list[tuple[LaneId, BufferId]]:
    """The lanes that read an edge, each with its buffer."""
    buffers = set(plan.buffers_of(plan.edge(edge)))
    return [
        (lane, buffer)
        for lane in plan.lanes_of(plan.edge(edge).to)
        for buffer in plan.inputs_of(lane)
        if buffer in buffers
    ]


def _is(total: mark_pb2.Written, buffer: BufferId) -> bool:
    return (total.edge, total.partition) == (buffer.edge, buffer.partition)
