"""A run that begins with a savepoint: its data directory gets what the savepoint has before anything runs.

    files as written? does it fit? do its functions take the states? ─► noted ─► directory emptied ─► the broker runs
         ┌───────────────────────────────────────────────────────────────────────────────────────────┘
         └─► each lane: entries, ids, mark ─► the directory is that of the pipeline ─► the note is removed ─► vertices

As long as the note is there (`restoring.json`), nothing has run, and a run begins with the savepoint anew or is
refused.

Above it: the runner. Below it: the savepoint, and the ledgers, whose lanes are taken over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from millstream import codes
from millstream.buffers.placed import placed
from millstream.buffers.registry import technology_of
from millstream.buffers.technology import Access
from millstream.clock import SystemClock
from millstream.durable import step
from millstream.errors import UserError
from millstream.ledger.protocol import Broker, Commit, DurabilityLevel, Ledger
from millstream.ledger.rewriting import rewritten
from millstream.limits import REPLAY_IDS_TTL_S
from millstream.plan.plan import Plan
from millstream.plan.shape import shape_of, with_former_keys
from millstream.record import LaneId
from millstream.spec.loading import LoadedPipeline
from millstream.wire.ledger.v1 import mark_pb2
from millstream_runner.local import audit
from millstream_runner.local.changing import claim
from millstream_runner.local.changing_states import declared_states, resolved_of
from millstream_runner.local.directory import HOME, DataDirectory, explained, write_json
from millstream_runner.local.moving_states import bounds_of
from millstream_runner.local.savepoints.files import Savepoint, find_savepoint
from millstream_runner.local.savepoints.fitting import Fit, fit
from millstream_runner.local.savepoints.lanes import SavedLane, SavedLanes
from millstream_vertex.keyed.filling import StateFilling, begin_filling
from millstream_vertex.keyed.keys import is_of_table
from millstream_vertex.keyed.redistribution import home_of
from millstream_vertex.keyed.state import KeyedState
from millstream_vertex.keyed.steps import STEP_BYTES_MAX, Entries
from millstream_vertex.settings import id_bounds, ledger_limits

OWNER = "savepoint"


def savepoints_of(directory: DataDirectory, pipeline: str) -> Sequence[Path]:
    """Where the savepoints of a pipeline are looked for: with its data, and where that is by default."""
    places = [directory.savepoints, DataDirectory(HOME / pipeline).savepoints]
    return list(dict.fromkeys(place.absolute() for place in places))


@dataclass(frozen=True, slots=True)
class Restore:
    """A savepoint that fits a pipeline, which begins with it. Made by `plan_restore`."""

    directory: DataDirectory
    loaded: LoadedPipeline
    savepoint: Savepoint
    saved: SavedLanes
    fit: Fit

    def begin(self) -> None:
        """Note that the data directory is about to get the savepoint, and remove what else it has."""
        write_json(self.directory.restoring, {"savepoint": str(self.savepoint.path.absolute())})
        self.directory.clear(keep=[self.directory.restoring])

    async def make(self, access: Access, level: DurabilityLevel) -> None:
        """Give every lane what it had, in the broker of an empty data directory, and make the directory that of the
        pipeline. Raises `InfrastructureError` if there is no room."""
        plan = self.loaded.plan
        audit.note(
            self.directory,
            "restore",
            **audit.pipeline_of(self.loaded),
            savepoint=str(self.savepoint.path.absolute()),
            taken_spec=self.savepoint.facts["spec"],
            entries=self.saved.entries,
        )
        technology = technology_of(plan.pipeline)
        async with technology.open(access, plan.pipeline.name, name="savepoint", require=level) as opened:
            await restore_lanes(plan, placed(opened, plan).broker, self.savepoint, self.saved, self.fit)
        claim(self.directory, self.loaded)
        with explained(f"cannot remove {self.directory.restoring}"), step("savepoint.restored"):
            self.directory.restoring.unlink()


async def restore_lanes(plan: Plan, broker: Broker, savepoint: Savepoint, saved: SavedLanes, found: Fit) -> None:
    """Give the lanes of a pipeline without stored data what a savepoint has for them."""
    for vertex in plan.order:
        lanes = [lane for lane in plan.lanes_of(vertex) if lane in found.marks]
        if not lanes:
            continue
        ledger = await broker.ledger(vertex, ledger_limits(plan, vertex))
        await _fill(plan, ledger, vertex, savepoint, saved, found)
        for lane in lanes:
            if lane in saved.by_id:
                await _remember_ids(plan, ledger, savepoint, saved.by_id[lane])
            with step("savepoint.mark", vertex):
                await _set_mark(ledger, lane, found.marks[lane])


async def _set_mark(ledger: Ledger, lane: LaneId, restored: mark_pb2.Mark) -> None:
    """The last commit of a lane: from here on it is where the savepoint was."""
    async with rewritten(ledger, lane, OWNER) as mark:
        # Another owner of the lane may have opened the target of its sink, under its last epoch.
        epoch = max(mark.epoch, restored.epoch)
        mark.MergeFrom(restored)
        # A merge leaves what has the value 0.
        mark.epoch, mark.watermark_us = epoch, restored.watermark_us


async def _fill(plan: Plan, ledger: Ledger, vertex: str, savepoint: Savepoint, saved: SavedLanes, found: Fit) -> None:
    """Commit the entries of the state of a vertex, each to the lane of its key."""
    with_states = [one for one in saved.of(vertex) if one.lane in found.numbers]
    if not with_states:
        return
    fillings: dict[LaneId, StateFilling] = {}
    waiting: dict[LaneId, Entries] = {}
    for lane, entries in placed_entries(plan, savepoint, with_states, found):
        if lane not in fillings:
            fillings[lane] = await begin_filling(
                ledger, lane, OWNER, compression=plan.pipeline.spec.compression, clock=SystemClock()
            )
        waiting.setdefault(lane, Entries()).extend(entries)
        if waiting[lane].size >= STEP_BYTES_MAX:
            await fillings[lane].add(waiting.pop(lane))
    for lane, filling in fillings.items():
        if lane in waiting:
            await filling.add(waiting.pop(lane))
        await filling.finish()


def placed_entries(
    plan: Plan, savepoint: Savepoint, lanes: Sequence[SavedLane], found: Fit
) -> Iterator[tuple[LaneId, Entries]]:
    """The entries of some lanes of a vertex, each with the lane that it belongs to now, and with the numbers that its
    states have now. Raises `DamageError`."""
    for saved in lanes:
        vertex = plan.vertex(saved.lane.vertex)
        by_key, numbers = vertex.definition.remembers(vertex.settings) == "key", found.numbers[saved.lane]
        first = plan.lanes_of(vertex.name)[0]
        for entries in savepoint.entries(saved):
            parts: dict[int, Entries] = {}
            columns = zip(
                entries.keys,
                entries.states,
                entries.items,
                entries.values,
                entries.expires_us,
                entries.versions,
                strict=True,
            )
            for key, state, item, value, expires_us, version in columns:
                if is_of_table(key):
                    # A table is the same in every lane.
                    homes = range(vertex.partitions if saved is lanes[0] else 0)
                else:
                    home = home_of(key, vertex.partitions) if by_key else saved.lane.partition
                    homes = range(home, home + 1)
                for home in homes:
                    parts.setdefault(home, Entries()).add(key, numbers[state], item, value, expires_us, version)
            for home, part in parts.items():
                yield first._replace(partition=home), part


async def _remember_ids(plan: Plan, ledger: Ledger, savepoint: Savepoint, saved: SavedLane) -> None:
    """Commit the ids that a lane remembers. They are remembered for as long as if they were new."""
    bounds = id_bounds(plan, saved.lane.vertex)
    ttl_s = bounds.ttl_s if bounds is not None else REPLAY_IDS_TTL_S
    stored = None
    for digests in savepoint.ids(saved):
        if stored is None:
            stored = await ledger.take_over(saved.lane, OWNER)
        mark = mark_pb2.Mark()
        mark.CopyFrom(stored.mark)
        mark.commit_id = uuid4().bytes
        commit = Commit(saved.lane, (), mark, stored.sequence, digests, ttl_s, stored.mark.commit_id)
        receipt = await ledger.commit(commit)
        stored = stored._replace(mark=mark, sequence=receipt.mark_sequence)


async def plan_restore(directory: DataDirectory, loaded: LoadedPipeline, wanted: str, forget: Sequence[str]) -> Restore:
    """The restore of a savepoint, by its name or path, into an empty data directory, once everything about it has been
    checked. Raises `UserError` if there is none or it does not fit, `DamageError` if it is not what was written, and
    `UdfError` if a function does not take the states that it has."""
    savepoint = find_savepoint(wanted, savepoints_of(directory, loaded.pipeline.name))
    savepoint.verify()
    before, saved = savepoint.shape(), savepoint.lanes()
    loaded = with_former_keys(loaded, before)
    plan = loaded.plan
    found = fit(saved, before, plan, shape_of(plan), forget)
    if found.refused:
        raise UserError(
            codes.SAVEPOINT_NOT_USED,
            f"the savepoint {savepoint.path} does not fit the pipeline: {'; '.join(found.refused)}. Nothing was "
            "changed",
        )
    for vertex in dict.fromkeys(lane.vertex for lane in found.numbers):
        await _check_states(plan, loaded, vertex, savepoint, saved, found)
    return Restore(directory, loaded, savepoint, saved, found)


async def _check_states(
    plan: Plan, loaded: LoadedPipeline, vertex: str, savepoint: Savepoint, saved: SavedLanes, found: Fit
) -> None:
    """Raise unless the function of a vertex takes the states, and the limits allow them."""
    sizes: Counter[LaneId] = Counter()
    lanes = [one for one in saved.of(vertex) if one.lane in found.numbers]
    for lane, entries in placed_entries(plan, savepoint, lanes, found):
        sizes[lane] += entries.size
    bounds = bounds_of(plan, vertex)
    step_of = plan.vertex(vertex)
    has_state = step_of.definition.has_state(step_of.settings)
    for lane, size in sizes.items():
        if size > bounds.size_max:
            what = "`state.maxBytes`, and `maxBytes` of its tables" if has_state else "`maxBytes` of its tables"
            advice = ", or give the vertex more partitions" if has_state else ""
            raise UserError(
                codes.SAVEPOINT_NOT_USED,
                f"the state of lane {lane} would have {size:,} bytes; at most {bounds.size_max:,} are allowed "
                f"({what}). Nothing was changed. Raise the limit{advice}",
            )
    declared = await declared_states(resolved_of(loaded), vertex) if has_state else ()
    mark = next(mark for lane, mark in found.marks.items() if lane.vertex == vertex)
    keyed = KeyedState(f"{plan.pipeline.name}/{vertex}", size_max=0, key_size_max=0)
    keyed.stored_states(mark.states[vertex])
    keyed.declare(declared)
