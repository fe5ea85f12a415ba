"""`millstream savepoint`: copies what a pipeline that is at rest remembers.

    marks of all lanes ─► does anything wait? ─► states, ids, marks ─► files ─► the savepoint has its name

At rest means that no lane runs, that nothing waits in a buffer or for a sink, and that no window is open. Then the
marks of all lanes belong together, and what they say is all there is. A drain (Ctrl-C) leaves a pipeline like that.

Above it: the command line. Below it: the stored data of a pipeline that is not running, which is not changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from millstream import codes
from millstream.account import inputs_in
from millstream.audit import spec_digest
from millstream.buffers.placed import placed
from millstream.clock import SystemClock
from millstream.errors import UserError
from millstream.importing import importing
from millstream.ledger.protocol import DurabilityLevel, Ledger
from millstream.plan.plan import Plan
from millstream.plurals import counted
from millstream.record import BufferId, LaneId
from millstream.wire.ledger.v1 import mark_pb2
from millstream.wire.state.v1 import state_pb2
from millstream_runner.local import audit
from millstream_runner.local.directory import DataDirectory
from millstream_runner.local.moving_states import disk_image, is_on_disk
from millstream_runner.local.savepoints.files import (
    LANES,
    PIPELINE,
    SHAPE,
    SavepointWriter,
    check_name,
    refuse_existing,
    savepoint_written,
)
from millstream_runner.local.savepoints.lanes import SavedLane, SavedTarget
from millstream_runner.local.stored import open_stored_buffer
from millstream_runner.local.summary import check_stored, summarize
from millstream_runner.local.view import PipelineView
from millstream_vertex.continued import outside, run_outside
from millstream_vertex.keyed.changelog import Changelog
from millstream_vertex.keyed.image import Image, StateImage
from millstream_vertex.keyed.state import KeyedState
from millstream_vertex.keyed.steps import ENTRY_BYTES, STEP_BYTES_MAX, Entries, encode_steps
from millstream_vertex.trimming import Trimmer


@dataclass(frozen=True, slots=True)
class TakenSavepoint:
    """What was taken."""

    path: Path
    lanes: int
    entries: int


async def take(directory: DataDirectory, plan: Plan, name: str, parent: Path) -> TakenSavepoint:
    """Take a savepoint of a pipeline that is not running, into a directory. Raises `UserError` if it is not at rest,
    and `DamageError` if what is stored cannot be read."""
    check_name(name)
    refuse_existing(parent / name)
    async with open_stored_buffer(directory, plan, "savepoint", require=DurabilityLevel.MEMORY) as opened:
        buffer = placed(opened, plan)
        return await copy_lanes(directory, plan, PipelineView(plan, buffer.broker, buffer.stores), name, parent)


async def copy_lanes(
    directory: DataDirectory, plan: Plan, view: PipelineView, name: str, parent: Path
) -> TakenSavepoint:
    """The same, once the stored data can be read. `directory` is locked."""
    marks = await view.marks()
    waiting = await view.waiting()
    check_stored(summarize(plan.graph, marks, waiting), directory.root)
    if busy := [*_busy(marks, waiting), *await _uncounted(plan, view, waiting)]:
        raise UserError(
            codes.SAVEPOINT_NOT_TAKEN,
            f"pipeline {plan.pipeline.name} is not at rest: {'; '.join(busy)}. Run it, end it with Ctrl-C, which "
            "drains it, and repeat this",
        )
    audit.note(directory, "savepoint", name=name, to=str(parent.absolute()))
    with savepoint_written(parent, name, directory.root) as writer:
        lanes = [one async for one in _lanes(directory, plan, view, marks, writer)]
        writer.text(LANES, "".join(f"{one.as_line()}\n" for one in lanes))
        text = directory.read_pipeline()
        writer.text(PIPELINE, text)
        writer.text(SHAPE, directory.shape.read_text(encoding="utf-8"))
        entries = sum(one.entries for one in lanes)
        writer.facts |= {
            "name": name,
            "pipeline": plan.pipeline.name,
            "spec": spec_digest(text),
            "created_us": SystemClock().now_us(),
            "millstream": version("millstream"),
            "lanes": len(lanes),
            "entries": entries,
        }
    return TakenSavepoint(parent / name, len(lanes), entries)


def _busy(marks: Mapping[LaneId, mark_pb2.Mark], waiting: Mapping[BufferId, int]) -> Iterator[str]:
    """What is not at rest, in words. `waiting`: records counted in each buffer."""
    by_edge: Counter[str] = Counter()
    for buffer, records in waiting.items():
        by_edge[buffer.edge] += records
    for edge, records in by_edge.items():
        if records:
            yield f"{counted(records, 'record')} {'waits' if records == 1 else 'wait'} on edge {edge}"
    for lane, mark in marks.items():
        if mark.account.open:
            yield (
                f"the open windows of lane {lane} contain {counted(mark.account.open, 'record')}; they close when "
                "newer records arrive or the sources end"
            )
        if mark.HasField("prepared"):
            yield f"lane {lane} was killed during a delivery to its sink, which it has to finish"
        elif mark.undelivered_records:
            yield f"lane {lane} has {counted(mark.undelivered_records, 'record')} to deliver to its sink"
        elif mark.record_index or any(done.record_index for done in inputs_in(mark)):
            yield f"lane {lane} has processed only a part of a frame"


async def _uncounted(plan: Plan, view: PipelineView, waiting: Mapping[BufferId, int]) -> list[str]:
    """Buffers in which so much waits that it was not counted."""
    found: set[str] = set()
    for edge in plan.edges:
        missing = any(buffer not in waiting for buffer in plan.buffers_of(edge))
        # A vertex without a ledger has never stored anything.
        if missing and await view.existing_ledger(edge.from_) is not None:
            found.add(f"many records wait on edge {edge.name}")
    return sorted(found)


async def _lanes(
    directory: DataDirectory,
    plan: Plan,
    view: PipelineView,
    marks: Mapping[LaneId, mark_pb2.Mark],
    writer: SavepointWriter,
) -> AsyncIterator[SavedLane]:
    """Each lane that has done something, once what it remembers is in the savepoint."""
    for number, (lane, mark) in enumerate(marks.items()):
        ledger = await view.existing_ledger(lane.vertex)
        assert ledger is not None, "its mark is there"
        sink = plan.sink_lane(lane)
        target = None
        if sink is not None:
            position = outside(mark, mark.sequence) if sink == lane else mark.delivered
            run = run_outside(mark, ledger.ledger_id)
            target = SavedTarget(sink, run, position, mark.target, mark.delivery)
        steps, entries, states = "", 0, None
        if lane.vertex in mark.states and _remembers(plan, lane.vertex):
            steps = f"state/{number}.steps"
            async with _opened_state(directory, plan, ledger, lane, mark) as keyed:
                states = state_pb2.KeyedState.FromString(mark.states[lane.vertex])
                entries = _write_entries(writer, steps, keyed)
        yield SavedLane(
            lane=lane,
            stages=plan.graph.chain(lane.vertex),
            epoch=mark.epoch,
            watermark_us=mark.watermark_us,
            ended=mark.ended,
            sequence=outside(mark, max([mark.sequence, *(done.sequence for done in inputs_in(mark))])),
            position=mark.position,
            ahead=mark.ahead if mark.HasField("ahead") else None,
            numbered=mark.numbered,
            closed_us=mark.reduce.closed_us if mark.HasField("reduce") else None,
            target=target,
            states=states,
            entries=entries,
            steps=steps,
            ids=await _write_ids(writer, f"ids/{number}.ids", ledger, lane),
        )


def _remembers(plan: Plan, vertex: str) -> bool:
    step = plan.vertex(vertex)
    return bool(step.definition.remembers(step.settings))


@asynccontextmanager
async def _opened_state(
    directory: DataDirectory, plan: Plan, ledger: Ledger, lane: LaneId, mark: mark_pb2.Mark
) -> AsyncIterator[KeyedState]:
    """The state of a lane, where its vertex has it: in memory or on disk. So it takes no more memory than a run."""
    async with AsyncExitStack() as stack:
        image: Image = StateImage()
        if is_on_disk(plan, lane.vertex):
            opening = await importing(disk_image, directory.states, ledger.ledger_id, lane)
            image = await stack.enter_async_context(opening)
        keyed = KeyedState(str(lane), size_max=0, key_size_max=0, image=image)
        keyed.stored_states(mark.states[lane.vertex])
        # Nothing is trimmed: the trimmer does not run.
        changelog = Changelog(lane, Trimmer(ledger.trim, sharing=ledger.sharing), lambda: mark)
        await changelog.load(ledger, lane, mark, keyed)
        yield keyed


def _write_entries(writer: SavepointWriter, name: str, keyed: KeyedState) -> int:
    """Write all entries, as steps. Returns how many there are."""
    count, some, size = 0, Entries(), 0
    with writer.file(name) as file:

        def flush() -> None:
            for data in encode_steps(some):
                file.write_step(data)

        for key, state, item, (value, expires_us, version_of) in keyed.all():
            some.add(key, state, item, value, expires_us, version_of)
            count, size = count + 1, size + len(key) + len(item) + len(value) + ENTRY_BYTES
            if size >= STEP_BYTES_MAX:
                flush()
                some, size = Entries(), 0
        flush()
    return count


async def _write_ids(writer: SavepointWriter, name: str, ledger: Ledger, lane: LaneId) -> str:
    """Write the ids that a lane remembers. Returns the name of the file; empty if there are none."""
    stored = ledger.ids(lane)
    first = await anext(stored, None)
    if first is None:
        return ""
    with writer.file(name) as file:
        file.write(first.digests)
        async for one in stored:
            file.write(one.digests)
    return name
