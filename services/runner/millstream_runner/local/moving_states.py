"""Moves what functions remember to other lanes, when the partitions of a vertex have changed between two runs.

    room? ─► noted ─► entries to the lanes of their keys ─► watermarks ─► accounts of lanes that ended ─► done

All of it stays in the ledger of the vertex. Every step may be interrupted, and is repeated as a whole.

Above it: a change of the pipeline. Below it: the states of the lanes, and their marks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

from millstream.clock import END_OF_TIME_US, START_OF_TIME_US, SystemClock
from millstream.durable import step
from millstream.importing import importing
from millstream.ledger.protocol import Broker, Ledger
from millstream.ledger.rewriting import rewritten
from millstream.missing_packages import naming_missing_packages
from millstream.plan.plan import Plan
from millstream.record import LaneId
from millstream.spec.programs import Udf
from millstream.watermark.store import OtStores, forget
from millstream.wire.ledger.v1 import mark_pb2
from millstream_runner.local.moving import count_in_first
from millstream_vertex.keyed.image import Image
from millstream_vertex.keyed.owned import OwnedState, StateBounds, open_owned_state
from millstream_vertex.keyed.redistribution import check_room, expired_until, expired_until_of, redistribute
from millstream_vertex.settings import ledger_limits


async def check_states_fit(
    plan: Plan, broker: Broker, vertex: str, former: int, owner: str, *, stores: Path | None = None
) -> None:
    """Raise `UserError` if what a vertex remembers does not fit into its partitions. `former`: how many it has had at
    most. `stores`: see `owned_states`."""
    ledger = await broker.existing_ledger(vertex)
    if ledger is not None:
        async with owned_states(plan, ledger, _lanes(plan, vertex, former), owner, stores=stores) as lanes:
            check_room(lanes, plan.vertex(vertex).partitions)


async def move_states(
    plan: Plan,
    broker: Broker,
    ot_stores: OtStores,
    vertex: str,
    former: int,
    owner: str,
    *,
    stores: Path | None = None,
) -> int:
    """Move what a vertex remembers to the lanes of its keys. Returns the number of entries that are in other lanes now.
    `former`, `stores`: as above."""
    ledger = await broker.existing_ledger(vertex)
    if ledger is None:
        return 0
    partitions = plan.vertex(vertex).partitions
    if partitions >= former:
        # With the room of more lanes. That of fewer is taken away by the run, when nothing is in the others.
        ledger = await broker.ledger(vertex, ledger_limits(plan, vertex))
    ids = _lanes(plan, vertex, former)
    async with owned_states(plan, ledger, ids, owner, stores=stores) as lanes:
        moved = await redistribute(lanes, partitions)
    # The others have promised nothing yet.
    marks = [stored.mark for lane in ids[:former] if (stored := await ledger.mark(lane)) is not None]
    for lane in ids:
        # What was published would still count.
        await forget(await ot_stores.store(vertex), lane)
    await _even_out(ledger, ids[:partitions], marks, owner)
    await count_in_first(plan, ledger, vertex, former, owner)
    return moved


def bounds_of(plan: Plan, vertex: str) -> StateBounds:
    """The bounds of what each lane of a vertex remembers."""
    settings = plan.vertex(vertex).settings
    assert isinstance(settings, Udf), "only functions remember something"
    # Tables move too.
    return StateBounds(settings.kept_bytes_max, settings.state.max_bytes_per_key if settings.state is not None else 0)


def _lanes(plan: Plan, vertex: str, former: int) -> Sequence[LaneId]:
    """The lanes that may have entries, or will."""
    first = plan.lanes_of(vertex)[0]
    count = max(former, plan.vertex(vertex).partitions)
    return [first._replace(partition=partition) for partition in range(count)]


@asynccontextmanager
async def owned_states(
    plan: Plan, ledger: Ledger, lanes: Sequence[LaneId], owner: str, *, stores: Path | None = None
) -> AsyncIterator[list[OwnedState]]:
    """The states of these lanes of a vertex, taken over. `stores`: the directory with the stores of states on disk, in
    which those of `store: disk` stay; None: all of them are in memory. Raises as `open_owned_state`."""
    bounds, compression = bounds_of(plan, lanes[0].vertex), plan.pipeline.spec.compression
    async with AsyncExitStack() as stack:
        opened = []
        for lane in lanes:
            image = None
            if stores is not None and is_on_disk(plan, lane.vertex):
                opening = await importing(disk_image, stores, ledger.ledger_id, lane)
                image = await stack.enter_async_context(opening)
            state = open_owned_state(
                ledger, lane, owner, bounds, compression=compression, clock=SystemClock(), image=image
            )
            opened.append(await stack.enter_async_context(state))
        yield opened


def is_on_disk(plan: Plan, vertex: str) -> bool:
    """Whether the lanes of a vertex have what it remembers in stores on disk."""
    settings = plan.vertex(vertex).settings
    return isinstance(settings, Udf) and settings.state is not None and settings.state.store == "disk"


def disk_image(stores: Path, ledger_id: str, lane: LaneId) -> AbstractAsyncContextManager[Image]:
    """The image of a lane over its store on disk, below this directory. Imports LMDB: see `millstream.importing`."""
    with naming_missing_packages(f"{lane}: `store: disk`"):
        from millstream_vertex.keyed.disk.image import open_disk_image
        from millstream_vertex.keyed.disk.store import StoreIdentity

    place = stores / lane.vertex / str(lane.partition)
    return open_disk_image(place, StoreIdentity(ledger_id, lane.key), str(lane))


async def _even_out(ledger: Ledger, lanes: Sequence[LaneId], marks: Sequence[mark_pb2.Mark], owner: str) -> None:
    """Let the lanes of a vertex be as far as their entries allow: the watermark of each becomes the lowest of all
    marks, which is all that the vertex has promised, because what has moved may put something out from there on. What
    had expired in one lane has expired in all."""
    vertex = lanes[0].vertex
    lowest_us = min(mark.watermark_us for mark in marks)
    reached_us = [mark.watermark_us for mark in marks] + [
        expired_until_of(mark.states[vertex]) for mark in marks if vertex in mark.states
    ]
    # At the end of its input, nothing has expired.
    expired_us = max((time_us for time_us in reached_us if time_us < END_OF_TIME_US), default=START_OF_TIME_US)
    for lane in lanes:
        with step("lane.even_out", vertex):
            async with rewritten(ledger, lane, owner) as mark:
                mark.watermark_us, mark.ended = lowest_us, all(one.ended for one in marks)
                if vertex in mark.states:
                    mark.states[vertex] = expired_until(mark.states[vertex], expired_us)
