"""What must be in every buffer and every sink after a run, computed again from what the sources gave.

It shares no code with what it judges, except for reading frames.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millstream.account import Account, account_of
from millstream.frame import join_frames
from millstream.ledger.packs import frames_in
from millstream.record import SOURCE_INPUT, BufferId, LaneId
from millstream.spec.models import Edge
from tests.simulation import windows
from tests.simulation.history import Violation
from tests.simulation.outside import KEEP, answers_of

if TYPE_CHECKING:
    from tests.simulation.world import World


@dataclass(frozen=True, slots=True)
class Row:
    """A record as stored in a buffer."""

    lane: LaneId
    """That wrote it."""
    sequence: int
    index: int
    value: bytes
    keys: tuple[bytes, ...]
    time_us: int
    promised_us: int
    """What the lane had promised before."""
    record_id: str
    headers: Mapping[str, bytes]
    buffer: BufferId
    """The one that contains it."""

    @property
    def is_late(self) -> bool:
        """It comes after a promise that nothing so old would."""
        return self.promised_us > self.time_us


def rows_of(world: World, buffer: BufferId) -> list[Row]:
    """All that was ever in a buffer, in order."""
    rows = []
    for written in world.history.buffers.get(buffer, ()):
        frame = join_frames(frames_in(written.data))
        promised_us = world.history.promised_us(buffer, written)
        ids = frame.ids() or [""] * frame.records
        columns = zip(frame.values(), frame.keys(), frame.event_times_us(), ids, frame.headers(), strict=True)
        for index, (value, keys, time_us, record_id, headers) in enumerate(columns):
            place = written.lane, written.sequence, index
            rows.append(Row(*place, value, tuple(keys), time_us, promised_us, record_id, headers, buffer))
    return rows


def judge(world: World) -> None:
    """Raises `Violation`."""
    Judgement(world).judge()


LEFT_BYTES_MAX = 8192
"""What a log may leave behind beside its last segment: a few entries, each of which names frames it was read from."""


class Judgement:
    """One look at a run that has ended."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.stages = world.stages
        """In which a chain is one vertex, called as its first."""
        self.graph = world.graph
        self.rows = {
            buffer: rows_of(world, buffer) for lane in self._all_lanes() for buffer in self.stages.inputs_of(lane)
        }

    def _all_lanes(self) -> list[LaneId]:
        return [lane for vertex in self.stages.vertices for lane in self.stages.lanes_of(vertex.name)]

    def judge(self) -> None:
        """Raises `Violation`."""
        for lane in self._all_lanes():
            kind = self.stages.vertex(lane.vertex).kind
            inputs = self._inputs(lane)
            maps = self._maps_of_chain(lane.vertex)
            if sink := self._sink_of_chain(lane.vertex):
                self._check_end_of_chain(lane, maps, sink)
            if maps:
                self._check_maps(lane, maps, self._given(lane))
            elif kind == "source":
                self._check_source(lane, inputs)
            elif kind == "map":
                self._check_maps(lane, (lane.vertex,), self._given(lane))
            elif kind == "reduce":
                self._check_reduce(lane)
            self._check_account(lane, len(inputs))
        for vertex in self.stages.vertices:
            if vertex.kind == "sink":
                self._check_sink(vertex.name)
        self._check_promises()
        self._check_left_over()

    def _inputs(self, lane: LaneId) -> list[bytes]:
        if lane.input == SOURCE_INPUT:
            return [record.value for record in self.world.outside.splits[lane.vertex, lane.partition].records]
        return [row.value for buffer in self.stages.inputs_of(lane) for row in self.rows[buffer]]

    def _targets(self, edge: Edge, keys: Sequence[bytes], tags: Sequence[bytes]) -> BufferId | None:
        """The buffer of an edge that a record goes to."""
        condition = edge.conditions.tags if edge.conditions is not None else None
        if condition is not None and not {tag.decode() for tag in tags} & set(condition.values):
            return None
        partitions = self.stages.vertex(edge.to).partitions
        return BufferId(edge.name, zlib.crc32(b"\x1f".join(keys)) % partitions if partitions > 1 else 0)

    def _check_source(self, lane: LaneId, wanted: list[bytes]) -> None:
        """A source: every record, once, in order, in a buffer of every edge."""
        for edge in self.stages.edges_out[lane.vertex]:
            own = self._written(lane, edge)
            found = [row.value for rows in own.values() for row in rows]
            if Counter(found) != Counter(wanted):
                raise Violation(f"I1: {lane} to {edge.name}: {_difference(found, wanted)}")
            for buffer, rows in own.items():
                numbers = [wanted.index(row.value) for row in rows]
                if numbers != sorted(numbers):
                    raise Violation(f"I4: {lane} to {buffer}: out of order: {numbers}")

    def _maps_of_chain(self, vertex: str) -> tuple[str, ...]:
        """The maps that run in the lanes of a vertex, in their order; empty without a chain."""
        chain = self.graph.chain(vertex)
        if len(chain) == 1:
            return ()
        return tuple(member for member in chain if self.graph.vertex(member).kind == "map")

    def _sink_of_chain(self, vertex: str) -> str:
        """The sink at the end of the chain that runs in the lanes of a vertex; empty without one."""
        last = self.graph.chain(vertex)[-1]
        return last if last != vertex and self.graph.vertex(last).kind == "sink" else ""

    def _given(self, lane: LaneId) -> list[tuple[bytes, tuple[bytes, ...]]]:
        """What the first map of a lane takes: values with their keys."""
        if lane.input == SOURCE_INPUT:
            split = self.world.outside.splits[lane.vertex, lane.partition]
            return [(record.value, (record.key.encode(),)) for record in split.records]
        return [(row.value, row.keys) for buffer in self.stages.inputs_of(lane) for row in self.rows[buffer]]

    def _check_maps(self, lane: LaneId, maps: Sequence[str], inputs: list[tuple[bytes, tuple[bytes, ...]]]) -> None:
        """Maps that run one behind the other: of which only the first looks at what a record is."""
        wanted: dict[BufferId, list[tuple[bytes, bytes]]] = defaultdict(list)
        first, others = maps[0], maps[1:]
        behaviour = self.world.shape.behaviours[first]
        behind = _behind(others)
        edges = [edge for edge in self.graph.edges_of(maps[-1], "data") if not edge.chain]
        for value, keys in inputs:
            answer = answers_of(behaviour, value)
            if answer == "dead":
                for edge in self.graph.edges_of(first, "deadLetter"):
                    target = self._targets(edge, keys, ())
                    if target is not None:
                        wanted[target].append((value, b""))
            elif not isinstance(answer, str):
                for k, tags in answer:
                    for edge in edges:
                        target = self._targets(edge, keys, () if others else tags)
                        if target is not None:
                            wanted[target].append((value, first.encode() + b":%d" % k + behind))
        calls: dict[bytes, bytes] = {}
        for edge in self.stages.edges_out[lane.vertex]:
            dead = edge.kind == "deadLetter"
            for buffer, rows in self._written(lane, edge).items():
                found = [(row.value, b"") if dead else self._parsed(row.value, len(maps), calls) for row in rows]
                if found != wanted[buffer]:
                    fault = "I4: out of order" if Counter(found) == Counter(wanted[buffer]) else "I1"
                    raise Violation(f"{fault}: {lane} to {buffer}: {_difference(found, wanted[buffer])}")

    def _check_end_of_chain(self, lane: LaneId, maps: Sequence[str], sink: str) -> None:
        """A sink without a buffer before it."""
        edge = self.graph.chained_into(sink)
        assert edge is not None, "it follows in the chain"
        wanted: list[tuple[bytes, bytes]] = []
        for value, _ in self._given(lane):
            answer = answers_of(self.world.shape.behaviours[maps[0]], value) if maps else [(0, ())]
            if not isinstance(answer, str):
                way = [maps[0].encode() + b":%d" % k + _behind(maps[1:]) if maps else b"" for k, _ in answer]
                wanted += [(value, one) for one in way]
        if self.world.shape.behaviours.get(sink, "") in KEEP:
            joins = len(self.stages.edges_in[lane.vertex]) > 1
            own = LaneId(sink, lane.input if joins else edge.name, lane.partition)
            calls: dict[bytes, bytes] = {}
            values = self.world.outside.tables[sink].values_of(f"{self.world.shape.name}/{sink}.{own.key}")
            found = [self._parsed(value, len(maps), calls) for value in values]
            mark = self.world.history.lanes[lane.vertex, lane.key].mark
            self._check_kept(str(own), found, wanted, account_of(sink, lane, mark))
            return
        # Every attempt is a call of its own, and its outputs may all be there.
        there = {self._parsed(value, len(maps), {}) for value in self.world.outside.targets[sink].values.values()}
        if missing := [one for one in wanted if one not in there]:
            raise Violation(f"I1: sink {sink}: missing: {missing[:5]}")

    def _check_kept(self, where: str, found: Sequence[object], wanted: Sequence[object], account: Account) -> None:
        """A target that keeps the position of its lane: each row once, in order; what is not there was refused."""
        left = iter(wanted)
        if not all(row in left for row in found):
            fault = "I4: out of order" if not Counter(found) - Counter(wanted) else "I1"
            raise Violation(f"{fault}: {where}: {_difference(found, wanted)}")
        refused = sum(account.dropped.values())
        if (account.inputs, account.processed, refused) != (len(wanted), len(found), len(wanted) - len(found)):
            raise Violation(f"I2: {where}: {len(found)} of {len(wanted)} records are in its target; it has: {account}")

    def _parsed(self, value: bytes, maps: int, calls: dict[bytes, bytes]) -> tuple[bytes, bytes]:
        """What an output is of; all outputs that one map makes of one record have to come from one call."""
        way: list[bytes] = []
        for _ in range(maps):
            value, _, made = value.rpartition(b"/")
            what, _, call = made.partition(b"!")
            if calls.setdefault(value, call) != call:
                raise Violation(f"I1: outputs of two calls for {value!r}: {call!r} and {calls[value]!r}")
            way.insert(0, what)
        return value, b"/".join(way)

    def _written(self, lane: LaneId, edge: Edge) -> dict[BufferId, list[Row]]:
        """What a lane wrote to each buffer of an edge."""
        buffers = [BufferId(edge.name, partition) for partition in range(self.stages.vertex(edge.to).partitions)]
        return {buffer: [row for row in self.rows[buffer] if row.lane == lane] for buffer in buffers}

    def _check_account(self, lane: LaneId, inputs: int) -> None:
        history = self.world.history.lanes[lane.vertex, lane.key]
        if not history.mark.ended:
            raise Violation(f"I9: {lane} has not ended")
        if history.mark.account.inputs != inputs:
            raise Violation(f"I2: {lane} counts {history.mark.account.inputs} inputs, there were {inputs}")
        members = self.graph.chain(lane.vertex)[1:]
        if [member.vertex for member in history.mark.members] != list(members):
            raise Violation(f"I2: {lane} has accounts of {history.mark.members}, and not of {members}")
        is_source = self.graph.vertex(lane.vertex).kind == "source"
        handed_on = history.mark.account.processed if is_source else history.mark.account.outputs
        for name, member in zip(members, history.mark.members, strict=True):
            if Account.from_message(member.account).difference or member.account.inputs != handed_on:
                raise Violation(f"I2: {name} in {lane} was handed {handed_on} records, and has: {member.account}")
            handed_on = member.account.outputs

    def _check_sink(self, vertex: str) -> None:
        if self.world.shape.behaviours.get(vertex, "") in KEEP:
            table = self.world.outside.tables[vertex]
            for lane in self.stages.lanes_of(vertex):
                (buffer,) = self.stages.inputs_of(lane)
                account = account_of(vertex, lane, self.world.history.lanes[vertex, lane.key].mark)
                values = table.values_of(f"{self.world.shape.name}/{vertex}.{lane.key}")
                self._check_kept(str(lane), values, [row.value for row in self.rows[buffer]], account)
            return
        wanted: dict[str, bytes] = {}
        for lane in self.stages.lanes_of(vertex):
            (buffer,) = self.stages.inputs_of(lane)
            for row in self.rows[buffer]:
                record_id = row.record_id or f"{vertex}/{lane.input}/{lane.partition}/{row.sequence}/{row.index}"
                wanted[record_id] = row.value
        found = self.world.outside.targets[vertex].values
        if self.world.history.removed:
            # What was delivered and in no mark when its ledger was set back is there under other ids.
            found = {record_id: value for record_id, value in found.items() if record_id in wanted}
        if found != wanted:
            raise Violation(f"I1: sink {vertex}: {_difference(list(found.items()), list(wanted.items()))}")

    def _check_reduce(self, lane: LaneId) -> None:
        group_by = self.stages.vertex(lane.vertex).group_by
        assert group_by is not None
        inputs = [row for buffer in self.stages.inputs_of(lane) for row in self.rows[buffer]]
        results: list[Row] = []
        late: list[Row] = []
        for edge in self.stages.edges_out[lane.vertex]:
            own = [row for rows in self._written(lane, edge).values() for row in rows]
            (late if edge in self.stages.edges_of(lane.vertex, "late") else results).extend(own)
        account = self.world.history.lanes[lane.vertex, lane.key].mark.account
        if account.open:
            raise Violation(f"I2: {lane} has {account.open} records in open windows at its end")
        lost = account.dropped.get("late", 0) if group_by.on_late == "drop" else None
        windows.judge(group_by, str(lane), inputs, results, late, lost=lost, exact=not self.world.shape.late)

    def _check_promises(self) -> None:
        """No record comes after a promise that there would be none so old, unless what it was made of did already."""
        for vertex in self.stages.vertices:
            for lane in self.stages.lanes_of(vertex.name):
                inputs = [row for buffer in self.stages.inputs_of(lane) for row in self.rows[buffer]]
                excused = {row.value for row in inputs if row.is_late}
                for edge in self.stages.edges_out[vertex.name]:
                    for row in (row for rows in self._written(lane, edge).values() for row in rows if row.is_late):
                        maps = len(self._maps_of_chain(vertex.name)) or int(vertex.kind == "map")
                        parent = row.value.rsplit(b"/", maps)[0] if edge.kind != "deadLetter" else row.value
                        is_excused = self.world.shape.late if vertex.kind == "source" else {parent, row.value} & excused
                        if not is_excused:
                            raise Violation(
                                f"I5: {lane} writes {row.value!r} of {row.time_us} to {edge.name} after it promised "
                                f"{row.promised_us}"
                            )

    def _check_left_over(self) -> None:
        """A log whose windows are all committed is one segment that says so, if there was room to make it."""
        if any(fault.kind == "no-room" for fault in self.world.plan.faults):
            return
        for vertex in self.world.reduces:
            for lane in self.stages.lanes_of(vertex):
                directory = self.world.directory / vertex / str(lane.partition)
                names = sorted(path.name for path in directory.iterdir())
                segments = [name for name in names if name.endswith(".wal")]
                others = [name for name in names if name not in (*segments, "owners", "reserve")]
                if any(life.replaced and life.vertex == vertex for life in self.world.lives):
                    # What a replaced owner leaves is removed at the next opening.
                    others = []
                left_bytes = sum((directory / name).stat().st_size for name in segments[:-1])
                if left_bytes > LEFT_BYTES_MAX or others:
                    raise Violation(f"I8: {lane} leaves {names} behind")


def _behind(maps: Sequence[str]) -> bytes:
    """What maps that look at nothing add to a value."""
    return b"".join(b"/" + name.encode() + b":0" for name in maps)


def _difference(found: Sequence[object], wanted: Sequence[object]) -> str:
    more, fewer = Counter(found) - Counter(wanted), Counter(wanted) - Counter(found)
    return f"{len(found)} records, {len(wanted)} expected; too many: {list(more)[:5]}; missing: {list(fewer)[:5]}"
