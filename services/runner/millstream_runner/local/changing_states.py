"""Changes what functions remember between two runs: imports, edits and deletions.

    rows ─► the states that the function declares ─► entries by lane ─► all fit? ─► commits of each lane

Everything is checked before anything is changed. Whoever is killed afterwards has made the first changes of some lanes;
made again, only the others are left.

Above it: `millstream state`. Below it: the stored data of a pipeline that is not running, and the states of its lanes.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from millstream import codes
from millstream.buffers.placed import placed
from millstream.errors import UdfError, UserError
from millstream.ledger.protocol import DurabilityLevel, Ledger
from millstream.plan import resolved
from millstream.plan.diff import diff
from millstream.plan.plan import Plan
from millstream.plan.resolved import ResolvedPipeline
from millstream.plan.shape import as_stored, shape_of
from millstream.plurals import counted
from millstream.record import LaneId
from millstream.spec.loading import LoadedPipeline, load
from millstream.spec.protocols import FunctionKind
from millstream.udf.protocol import StreamName
from millstream.udf.states import DeclaredState, StateKind
from millstream.udf.streams import KeyedMapStream
from millstream.wire.state.v1 import state_pb2
from millstream_runner.local.changing import check_complete, claim
from millstream_runner.local.directory import DataDirectory, held, read_json, root_of
from millstream_runner.local.moving_states import owned_states
from millstream_runner.local.outputs import former_outputs, refuse_former_outputs
from millstream_runner.local.prerequisites import refuse_small_disk
from millstream_runner.local.processes import is_alive
from millstream_runner.local.state_rows import RowEntry, StateForm, entry_of, row_of
from millstream_runner.local.stored import open_stored_buffer
from millstream_runner.local.stored_states import StoredEntry, state_of
from millstream_vertex.keyed.image import Stored, Versioned, expires_us_of, parts_of, stored_of
from millstream_vertex.keyed.owned import OwnedState
from millstream_vertex.keyed.redistribution import home_of
from millstream_vertex.keyed.state import EntryChange
from millstream_vertex.settings import ledger_limits
from millstream_worker.programs import open_programs

OWNER = "millstream state"
FAULTS_SHOWN_MAX = 10
"""The most rows that a message says something about."""
MADE_NOTED_MAX = 100
"""The most changes of which the audit says what was before and after."""


class Expectation(NamedTuple):
    """What an entry has to be before it is changed."""

    value: Any = None
    is_absent: bool = False
    """Whether there must be no entry; `value` does not count then."""

    def misfit(self, entry: RowEntry, before: Stored | None) -> str | None:
        """Why the entry that there is is another one; None if it is not."""
        name = f"`{entry.state.name}`"
        if before is None:
            return None if self.is_absent else f"there is no entry of {name}"
        if self.is_absent:
            return f"there is an entry of {name}"
        form = StateForm(entry.state.name, entry.state.kind, entry.state.codec, entry.state.item_codec)
        row = row_of(form, entry.key, entry.item, Versioned(*parts_of(before)))
        found = row.get("value", row.get("value_base64"))
        # True is 1 in Python, and not in JSON.
        if json.dumps(found, sort_keys=True) == json.dumps(self.value, sort_keys=True):
            return None
        return f"the entry of {name} has another value"


class MadeChange(NamedTuple):
    """An entry that is different now."""

    state: state_pb2.StoredState
    key: bytes
    item: bytes
    before: Stored | None
    after: Stored | None


@dataclass(slots=True)
class StateChange:
    """What was done."""

    changed: int = 0
    """Entries that are different now."""
    unchanged: int = 0
    """Entries that were like that before."""
    lanes: list[str] = field(default_factory=list)
    """The lanes that were changed."""
    commits: list[dict[str, Any]] = field(default_factory=list)
    """Lane, epoch and sequence of the last commit of each change."""
    made: list[MadeChange] = field(default_factory=list)
    """The first `MADE_NOTED_MAX` of these changes."""

    def note(self, made: Iterable[MadeChange]) -> None:
        """Add some of what was changed."""
        self.made.extend(islice(made, MADE_NOTED_MAX - len(self.made)))


@dataclass(frozen=True, slots=True)
class StatefulVertex:
    """A vertex whose state is to be changed, in the data directory of a pipeline."""

    directory: DataDirectory
    pipeline: ResolvedPipeline
    vertex: str

    @property
    def runs(self) -> bool:
        """Whether the pipeline runs: then its lanes belong to its workers."""
        runtime = self.directory.read_runtime()
        return runtime is not None and is_alive(runtime.runner)

    @property
    def plan(self) -> Plan:
        return self.pipeline.plan

    @property
    def lanes(self) -> Sequence[LaneId]:
        return self.plan.lanes_of(self.vertex)

    @property
    def by_key(self) -> bool:
        """Whether each key has a state of its own; otherwise each lane has one."""
        step = self.plan.vertex(self.vertex)
        return step.definition.remembers(step.settings) == "key"


def loaded_as_stored(file: Path, data_dir: Path | None) -> tuple[LoadedPipeline, DataDirectory, bool]:
    """The pipeline of a file as it is stored, its data directory, and whether that has data. Raises `UserError` if they
    do not fit."""
    loaded = load(file)
    directory = DataDirectory(root_of(loaded.pipeline.name, data_dir))
    check_complete(directory)
    before = read_json(directory.shape)
    if before is None:
        return loaded, directory, False
    loaded, _ = as_stored(loaded, before)
    found = diff(before, shape_of(loaded.plan))
    if found.any:
        raise UserError(
            codes.DATA_OF_ANOTHER_PIPELINE,
            f"{file} is not what is stored in {directory.root}: {'; '.join(one.what for one in found.differences)}. "
            "Run it, so that the change is made, or undo it",
        )
    return loaded, directory, True


def begin(loaded: LoadedPipeline, directory: DataDirectory) -> None:
    """Make the data directory of a pipeline that has never run, as its first run would."""
    with held(directory.root.absolute()):
        refuse_small_disk(loaded.plan, directory)
        refuse_former_outputs(former_outputs(loaded.graph, loaded.base_dir), fresh=False)
        directory.make()
        claim(directory, loaded)


def resolved_of(loaded: LoadedPipeline) -> ResolvedPipeline:
    """The pipeline as workers get it."""
    return resolved.load(resolved.dump(loaded.plan, loaded.base_dir))


async def declared_states(pipeline: ResolvedPipeline, vertex: str) -> Sequence[DeclaredState]:
    """The states that the function of a vertex declares: it is started as a run would start it. Raises `UdfError`."""
    lane = pipeline.plan.lanes_of(vertex)[0]
    name = StreamName(pipeline.pipeline.name, vertex, lane.key, 0)
    async with (
        open_programs(pipeline, vertex, 0) as programs,
        programs.open_map("udf", FunctionKind.MAP, name) as stream,
    ):
        if isinstance(stream, KeyedMapStream) and stream.states:
            return stream.states
    raise UdfError(
        codes.STATE_MISFIT, f"vertex {vertex} has `udf.state`, and its function declares no state. Declare one"
    )


def entries_by_lane(
    of: StatefulVertex, declared: Sequence[DeclaredState], rows: Iterable[tuple[str, Any]]
) -> Mapping[LaneId, Sequence[RowEntry]]:
    """The entries that rows say, by the lane that they belong to. Raises `UserError`, with the places of those that are
    wrong."""
    by_name = {state.name: state for state in declared}
    found: dict[LaneId, list[RowEntry]] = defaultdict(list)
    places: dict[tuple[int, bytes, str, bytes], str] = {}
    faults: list[str] = []
    for place, row in rows:
        try:
            entry = entry_of(row, by_name)
            partition = _partition(of, entry)
        except ValueError as error:
            faults.append(f"{place}: {error}")
            continue
        name = partition, entry.key, entry.state.name, entry.item
        if name in places:
            faults.append(f"{place}: {places[name]} is about the same entry")
        places[name] = place
        found[of.lanes[partition]].append(entry)
    if faults:
        more = len(faults) - FAULTS_SHOWN_MAX
        listed = "".join(f"\n  {fault}" for fault in faults[:FAULTS_SHOWN_MAX])
        raise UserError(
            codes.STATE_NOT_CHANGED,
            f"nothing was changed, because {counted(len(faults), 'entry', 'entries')} cannot be stored:{listed}"
            + (f"\n  and {more:,} more" if more > 0 else ""),
        )
    return found


def _partition(of: StatefulVertex, entry: RowEntry) -> int:
    partitions = len(of.lanes)
    if of.by_key:
        if not entry.key and partitions > 1:
            raise ValueError("the key has no parts, and the vertex has several partitions: its records need keys")
        return home_of(entry.key, partitions)
    if entry.key:
        raise ValueError("the vertex has `scope: lane`, where entries have no key: `key` has to be an empty list")
    if entry.partition is None and partitions > 1:
        raise ValueError("the vertex has `scope: lane` and several partitions: give the `partition` of the entry")
    partition = entry.partition or 0
    if partition >= partitions:
        raise ValueError(f"there is no partition {partition}: the vertex has {partitions}")
    return partition


async def store_entries(
    of: StatefulVertex,
    declared: Sequence[DeclaredState],
    entries: Mapping[LaneId, Sequence[RowEntry]],
    *,
    keep_expiry: bool = False,
    expected: Expectation | None = None,
) -> StateChange:
    """Store these entries, in place of those with the same names. `keep_expiry`: they expire when those would.
    `expected`: what each has to be, unless it is as it is to be. Raises `UserError` if one is not."""

    def changes(owned: OwnedState) -> list[EntryChange]:
        owned.keyed.declare(declared)
        numbers = {state.name: number for number, state in enumerate(owned.keyed.stored)}
        made = []
        for entry in entries[owned.lane]:
            number, expires_us = numbers[entry.state.name], entry.expires_us
            before = owned.keyed.entry(number, entry.key, entry.item)
            if keep_expiry and before is not None:
                expires_us = expires_us_of(before)
            stored = stored_of(entry.value, expires_us, entry.version)
            if before != stored and expected is not None and (why := expected.misfit(entry, before)):
                raise UserError(codes.STATE_NOT_CHANGED, f"lane {owned.lane}: {why}. Nothing was changed")
            made.append(EntryChange(entry.key, number, entry.item, stored))
        return made

    async with opened_ledger(of) as ledger:
        return await _change(of, ledger, list(entries), changes)


async def delete_entries(of: StatefulVertex, is_wanted: Callable[[StoredEntry], bool]) -> StateChange:
    """Remove the entries that are wanted."""
    found: dict[LaneId, list[EntryChange]] = {}
    async with opened_ledger(of) as ledger:
        for lane in of.lanes:
            state = await state_of(ledger, lane)
            entries = state.entries() if state is not None else ()
            gone = [
                EntryChange(one.stored_key, one.number, one.item, None)
                for one in entries
                # Those of tables are what has come by their edges.
                if is_wanted(one) and one.kind is not StateKind.TABLE
            ]
            if gone:
                found[lane] = gone
        return await _change(of, ledger, list(found), lambda owned: found[owned.lane])


@asynccontextmanager
async def opened_ledger(of: StatefulVertex) -> AsyncIterator[Ledger]:
    """The ledger of the vertex, in a broker that runs for this block."""
    async with open_stored_buffer(of.directory, of.plan, "state", require=DurabilityLevel.FSYNC) as buffer:
        broker = placed(buffer, of.plan).broker
        # As a worker does: it may be the first that stores something there.
        yield await broker.ledger(of.vertex, ledger_limits(of.plan, of.vertex))


async def _change(
    of: StatefulVertex,
    ledger: Ledger,
    lanes: Sequence[LaneId],
    changes_of: Callable[[OwnedState], Sequence[EntryChange]],
) -> StateChange:
    done = StateChange()
    if not lanes:
        return done
    async with owned_states(of.plan, ledger, lanes, OWNER, stores=of.directory.states) as opened:
        changes = [changes_of(owned) for owned in opened]
        for owned, some in zip(opened, changes, strict=True):
            owned.check(some)
        for owned, some in zip(opened, changes, strict=True):
            made = list(islice(_made(owned, some), MADE_NOTED_MAX))
            changed = await owned.apply(some)
            done.changed += changed
            done.unchanged += len(some) - changed
            if changed:
                done.lanes.append(str(owned.lane))
                done.commits.append({"lane": str(owned.lane), "epoch": owned.epoch, "sequence": owned.sequence})
                done.note(made)
    return done


def _made(owned: OwnedState, changes: Sequence[EntryChange]) -> Iterator[MadeChange]:
    """Those of these changes that make a difference."""
    for key, state, item, stored in changes:
        before = owned.keyed.entry(state, key, item)
        if before != stored:
            yield MadeChange(owned.keyed.stored[state], key, item, before, stored)
