"""What the lanes of a pipeline get from a savepoint, and what of it does not fit. Pure.

    saved lanes, their shape ─┐
    the pipeline as it is now ┴─► what is refused, by name; the mark of each lane; whose entries go where

Names of vertices say what belongs to what. A lane that was there goes on as it was. With another number of partitions,
the lanes of a vertex go on where all of them have come, and the entries of its state go to the lanes of their keys.

Above it: runs that begin with a savepoint. Below it: saved lanes, shapes, and the plan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from millstream.clock import END_OF_TIME_US, START_OF_TIME_US
from millstream.plan.diff import table_fault
from millstream.plan.plan import Plan
from millstream.plan.shape import readable
from millstream.plurals import counted
from millstream.record import LaneId
from millstream.spec.connectors import GuaranteeId
from millstream.spec.sinks import Sink
from millstream.wire.ledger.v1 import mark_pb2
from millstream.wire.state.v1 import state_pb2
from millstream_runner.local.savepoints.lanes import SavedLane, SavedLanes

_KEEPS_POSITION = (GuaranteeId.TRANSACTIONAL, GuaranteeId.BY_FUNCTION)


@dataclass(frozen=True, slots=True)
class Fit:
    """What a pipeline gets from a savepoint."""

    refused: Sequence[str]
    """What does not fit, one sentence each, with what to do."""
    marks: Mapping[LaneId, mark_pb2.Mark] = field(default_factory=dict)
    """What the mark of each lane has, beside what counts records of its ledger."""
    numbers: Mapping[LaneId, bytes] = field(default_factory=dict)
    """For each saved lane with a state, the number that each of its states has now."""


def fit(
    saved: SavedLanes, before: Mapping[str, Any], plan: Plan, now: Mapping[str, Any], forget: Collection[str]
) -> Fit:
    """`before`, `now`: the shapes of the pipeline that was taken and of the one that is about to run. `forget`:
    vertices that may be gone. Raises `DamageError` if `before` is not a shape."""
    with readable():
        refused = [*_refused(saved, before, now, forget), *_unread(saved, plan)]
    marks: dict[LaneId, mark_pb2.Mark] = {}
    numbers: dict[LaneId, bytes] = {}
    states: dict[str, state_pb2.KeyedState] = {}
    for vertex in {one.lane.vertex for one in saved.with_states()} & {*plan.order}:
        if not plan.vertex(vertex).definition.remembers(plan.vertex(vertex).settings):
            continue
        states[vertex] = union = state_pb2.KeyedState()
        for lane in saved.of(vertex):
            if lane.states is not None:
                numbers[lane.lane], other = _added(union, lane.states)
                refused += [f"vertex {vertex}: the states `{name}` of two of its lanes differ" for name in other]
    for lane_id in plan.all_lanes():
        mark = _mark(saved, plan, lane_id, states.get(lane_id.vertex), _partitions(before, lane_id.vertex))
        if mark is not None:
            mark.epoch = saved.epoch
            marks[lane_id] = mark
    return Fit(refused, marks, numbers)


def _partitions(before: Mapping[str, Any], vertex: str) -> int:
    """How many a vertex had; 0 for a new one."""
    return int(before["vertices"].get(vertex, {}).get("partitions", 0))


def _refused(
    saved: SavedLanes, before: Mapping[str, Any], now: Mapping[str, Any], forget: Collection[str]
) -> Iterator[str]:
    if before["pipeline"] != now["pipeline"]:
        yield f"it is of pipeline {before['pipeline']}, and this one is called {now['pipeline']}: use the former name"
    read = {ends["to"] for ends in before["edges"].values()}
    for name, old in before["vertices"].items():
        new = now["vertices"].get(name)
        lanes, is_source = saved.of(name), name not in read
        entries = sum(one.entries for one in lanes if one.lane.vertex == name)
        if name in forget and (new is None or "state" not in new):
            continue
        if new is None:
            if lanes and is_source:
                yield f"vertex {name} was removed, and its position with it: put it back, or use `--forget {name}`"
            elif entries:
                what = counted(entries, "entry", "entries")
                yield f"vertex {name} was removed, and remembers {what}: put it back, or use `--forget {name}`"
        elif not lanes:
            continue
        elif old["kind"] != new["kind"]:
            yield f"vertex {name} was a {old['kind']} and is now a {new['kind']}: rename it; it then starts empty"
        elif is_source and (old["of"], old["partitions"]) != (new["of"], new["partitions"]):
            yield (
                f"vertex {name} was a source of {old['of']} in {counted(old['partitions'], 'partition')}, and is now "
                f"one of {new['of']} in {new['partitions']}: a position is kept for each partition, in a form of "
                "its own. Undo the change; or rename the vertex, which then starts at its beginning"
            )
        elif old.get("windows") != new.get("windows"):
            yield (
                f"vertex {name} had {old.get('windows')} windows and now has {new.get('windows')} windows: rename it; "
                "it then starts empty"
            )
        elif entries:
            yield from _other_scope(name, old, new)
    for name, old in before["edges"].items():
        new = now["edges"].get(name)
        if new is not None and saved.of(old["to"]) and (fault := table_fault(name, old, new)):
            yield fault


def _other_scope(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    undo = "Undo the change; or rename the vertex, which then starts without"
    if "state" not in new:
        yield (
            f"vertex {name} remembers something, and now has no `udf.state` and no `udf.tables`: put it back, or use "
            f"`--forget {name}`"
        )
    elif old["state"] != new["state"]:
        yield f"vertex {name} had a state for each {old['state']}, and now has one for each {new['state']}. {undo}"
    elif old["state"] == "lane" and old["partitions"] != new["partitions"]:
        yield (
            f"vertex {name} has a state for each lane, and had {counted(old['partitions'], 'partition')} and now has "
            f"{new['partitions']}. {undo}"
        )


def _unread(saved: SavedLanes, plan: Plan) -> Iterator[str]:
    """Vertices that would not read what is written for them, because their input has ended."""
    for edge in plan.graph.edges:
        to, from_ = saved.of(edge.to), saved.of(edge.from_)
        if to and all(one.ended for one in to) and not (from_ and all(one.ended for one in from_)):
            what = "has not ended" if from_ else "is new"
            yield (
                f"vertex {edge.to} had read everything and has ended, so it would not read what vertex {edge.from_} "
                f"passes on, which {what}: rename vertex {edge.to}, which then starts empty"
            )


def _added(union: state_pb2.KeyedState, states: state_pb2.KeyedState) -> tuple[bytes, list[str]]:
    """Add the states of a lane to those of its vertex. Returns their numbers there, and the names of those that are
    another kind of state there."""
    union.slots = states.slots
    numbers, other = bytearray(), []
    for state in states.states:
        number, found = next(
            ((n, one) for n, one in enumerate(union.states) if one.name == state.name), (len(union.states), None)
        )
        numbers.append(number)
        if found is None:
            union.states.add().CopyFrom(state)
        elif (found.kind, found.codec, found.item_codec) != (state.kind, state.codec, state.item_codec):
            other.append(state.name)
        else:
            found.version = max(found.version, state.version)
            found.records = max(found.records, state.records)
            if state.oldest_version:
                found.oldest_version = min(found.oldest_version or state.oldest_version, state.oldest_version)
    return bytes(numbers), other


def _mark(
    saved: SavedLanes, plan: Plan, lane: LaneId, states: state_pb2.KeyedState | None, former: int
) -> mark_pb2.Mark | None:
    """The mark of a lane; None if the savepoint says nothing about it. `states`: those of its vertex. `former`: how
    many partitions it had."""
    mark = mark_pb2.Mark(watermark_us=START_OF_TIME_US)
    group = saved.of(lane.vertex)
    exact = saved.by_id.get(lane) if plan.vertex(lane.vertex).partitions == former else None
    if exact is not None:
        group = [exact]
    elif not plan.edges_in[lane.vertex]:
        # A source has no lane that it did not have.
        group = []
    if group:
        mark.watermark_us = min(one.watermark_us for one in group)
        mark.ended = all(one.ended for one in group)
        mark.continued.sequence = max(one.sequence for one in group)
        closed_us = max((one.closed_us for one in group if one.closed_us is not None), default=None)
        if closed_us is not None:
            mark.reduce.closed_us = closed_us
    if exact is not None:
        mark.position, mark.numbered = exact.position, exact.numbered
        if exact.ahead is not None:
            mark.ahead.CopyFrom(exact.ahead)
    if group and states is not None:
        known = [one for one in group if one.lane.vertex == lane.vertex and one.states is not None]
        mark.states[lane.vertex] = _of_lane(states, known, is_same=exact is not None).SerializeToString()
    has_target = _continue_target(saved, plan, lane, mark)
    return mark if group or has_target else None


def _of_lane(union: state_pb2.KeyedState, known: Sequence[SavedLane], *, is_same: bool) -> state_pb2.KeyedState:
    """The states of a lane. `known`: the lanes that its entries come from. `is_same`: it is the one of these."""
    found = state_pb2.KeyedState()
    found.CopyFrom(union)
    of = [one.states for one in known if one.states is not None]
    if of:
        found.fired_event_us = max(one.fired_event_us for one in of)
        found.fired_processing_us = max(one.fired_processing_us for one in of)
        found.set_again = max(one.set_again for one in of)
    until_us = [one.expired_until_us for one in of if one.HasField("expired_until_us")]
    if not is_same:
        # What had expired in one lane has expired in all. At the end of its input, nothing has.
        until_us += [one.watermark_us for one in known if one.watermark_us < END_OF_TIME_US]
        until_us.append(START_OF_TIME_US)
    if until_us:
        found.expired_until_us = max(until_us)
    return found


def _continue_target(saved: SavedLanes, plan: Plan, lane: LaneId, mark: mark_pb2.Mark) -> bool:
    """Let the lane go on where the target of its sink is. Returns whether that is known."""
    sink = plan.sink_lane(lane)
    if sink is None or sink.vertex not in saved.runs:
        return False
    # Of the lanes of a sink, a target knows only those of one run.
    mark.continued.run = saved.runs[sink.vertex]
    target = saved.targets.get(sink)
    if target is None:
        return True
    mark.target = target.target
    if sink != lane:
        mark.delivered, mark.delivery = target.position, target.delivery
    elif _keeps_position(plan, sink.vertex):
        mark.continued.sequence = target.position
    else:
        mark.continued.sequence = max(mark.continued.sequence, target.position)
    return True


def _keeps_position(plan: Plan, vertex: str) -> bool:
    """Whether the target of a sink has a position, which decides; otherwise only ids must not come again."""
    settings = plan.graph.vertex(vertex).settings
    return isinstance(settings, Sink) and settings.promise().id in _KEEPS_POSITION
