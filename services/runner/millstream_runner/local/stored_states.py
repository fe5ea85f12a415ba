"""What functions remember, as it is committed: read from the changelogs in the broker, whoever runs the lanes.

Above it: `millstream state`. Below it: the ledgers. It owns no lane and changes nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from millstream import codes
from millstream.errors import DamageError, RetryLaterError, UserError
from millstream.ledger.protocol import Ledger
from millstream.nearest import did_you_mean
from millstream.plan.plan import Plan
from millstream.record import LaneId
from millstream.udf.states import StateKind
from millstream.wire.ledger.v1 import mark_pb2
from millstream.wire.state.v1 import state_pb2
from millstream_runner.local.state_rows import StateForm
from millstream_runner.local.view import PipelineView
from millstream_vertex.keyed.changelog import READS_MAX, read_changelog
from millstream_vertex.keyed.image import Versioned
from millstream_vertex.keyed.keys import parts_of
from millstream_vertex.keyed.state import KeyedState


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """One entry."""

    stored_key: bytes
    number: int
    """That of its state."""
    state: state_pb2.StoredState
    item: bytes
    """Of a map or a list; otherwise empty."""
    stored: Versioned

    @property
    def key(self) -> tuple[str, ...]:
        """The parts of the key; none for a state of a whole lane."""
        return tuple(part.decode(errors="backslashreplace") for part in parts_of(self.stored_key))

    @property
    def value(self) -> bytes:
        return self.stored.value

    @property
    def expires_us(self) -> int:
        """When it expires by the clock of its state; 0: never."""
        return self.stored.expires_us

    @property
    def kind(self) -> StateKind:
        return StateKind(self.state.kind)

    @property
    def form(self) -> StateForm:
        return form_of(self.state)


@dataclass(frozen=True, slots=True)
class LaneState:
    """The state of a lane at one commit."""

    lane: LaneId
    mark: mark_pb2.Mark
    """The mark of that commit."""
    sequence: int
    """And where it is in the ledger."""
    keyed: KeyedState

    def entries(self) -> Iterator[StoredEntry]:
        """All of them, ordered by key, state and item."""
        for key, number, item, stored in sorted(self.keyed.all(), key=lambda entry: entry[:3]):
            yield StoredEntry(key, number, self.keyed.stored[number], item, stored)

    @property
    def place(self) -> dict[str, int]:
        """Where the entries are, as members of a row."""
        mark = self.mark
        return {
            "partition": self.lane.partition,
            "epoch": mark.epoch,
            "sequence": self.sequence,
            "watermark_us": mark.watermark_us,
        }


def form_of(state: state_pb2.StoredState) -> StateForm:
    """How the entries of a stored state are encoded."""
    return StateForm(state.name, StateKind(state.kind), state.codec, state.item_codec)


def check_remembers(plan: Plan, vertex: str) -> None:
    """Raise `UserError` unless the functions of this vertex remember something."""
    names = [one.name for one in plan.graph.vertices]
    if vertex not in names:
        raise UserError(
            codes.NOT_IN_PIPELINE,
            f"pipeline {plan.pipeline.name} has no vertex {vertex!r}; its vertices are: {', '.join(names)}"
            f"{did_you_mean(vertex, names)}",
        )
    step = plan.graph.vertex(vertex)
    if not step.definition.kept_bytes(step.settings):
        raise UserError(
            codes.NOT_IN_PIPELINE, f"vertex {vertex} remembers nothing: it has no `udf.state` in the pipeline file"
        )


async def stored_states(view: PipelineView, plan: Plan, vertex: str) -> AsyncIterator[LaneState]:
    """The state of each lane of a vertex that has committed something. Raises `RetryLaterError` while a changelog
    changes too fast to be read."""
    ledger = await view.existing_ledger(vertex)
    if ledger is None:
        return
    for lane in plan.lanes_of(vertex):
        found = await state_of(ledger, lane)
        if found is not None:
            yield found


async def state_of(ledger: Ledger, lane: LaneId) -> LaneState | None:
    """The state of a lane; None if it has committed none. Raises `DamageError`, and `RetryLaterError` while its
    changelog changes too fast to be read."""
    for _ in range(READS_MAX):
        stored = await ledger.mark(lane)
        if stored is None or lane.vertex not in stored.mark.states:
            return None
        keyed = KeyedState(str(lane), size_max=0, key_size_max=0)
        keyed.stored_states(stored.mark.states[lane.vertex])
        try:
            await read_changelog(ledger, lane, stored.mark, keyed)
        except DamageError:
            # Usually the lane went on, and what its former mark needs was trimmed.
            again = await ledger.mark(lane)
            if again is None or again.sequence == stored.sequence:
                raise
            continue
        return LaneState(lane, stored.mark, stored.sequence, keyed)
    raise RetryLaterError(codes.BROKER_AWAY, f"the state of lane {lane} changes faster than it can be read")
