"""The conservation account of a lane (I2): where every input record went. Pure.

It is part of the lane's mark, so it is committed together with the output that it counts and survives every restart.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableSequence
from dataclasses import dataclass, field

from millstream.record import ALL_INPUTS, BufferId, LaneId, Position
from millstream.wire.ledger.v1 import mark_pb2

LATE_REASON = "late"
"""The reason under which a reduce drops a record whose windows are all closed."""
REASONS_MAX = 32
"""Different reasons that are counted separately; later ones count as `OTHER_REASONS`, so that a mark stays small."""
REASON_CHARACTERS_MAX = 100
OTHER_REASONS = "other reasons"


@dataclass(slots=True)
class Account:
    """Running totals, in records unless stated otherwise. `proto/millstream/ledger/v1/mark.proto` describes the
    fields."""

    inputs: int = 0
    input_bytes: int = 0
    processed: int = 0
    filtered: int = 0
    dead_lettered: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    outputs: int = 0
    unrouted: int = 0
    discarded: int = 0
    late: int = 0
    fallback: int = 0
    repeated_ids: int = 0
    diverted: int = 0
    open: int = 0
    timers: int = 0

    @property
    def left_out_late(self) -> int:
        """Records whose windows were all closed: dropped, or sent to a late edge."""
        return self.diverted + self.dropped.get(LATE_REASON, 0)

    def add(self, other: Account) -> None:
        """Adds another account's totals to this one."""
        # Written out: this runs several times in each commit.
        self.inputs += other.inputs
        self.input_bytes += other.input_bytes
        self.processed += other.processed
        self.filtered += other.filtered
        self.dead_lettered += other.dead_lettered
        self.outputs += other.outputs
        self.unrouted += other.unrouted
        self.discarded += other.discarded
        self.late += other.late
        self.fallback += other.fallback
        self.repeated_ids += other.repeated_ids
        self.diverted += other.diverted
        self.open += other.open
        self.timers += other.timers
        for reason, count in other.dropped.items():
            self.drop(reason, count)

    def drop(self, reason: str, count: int = 1) -> None:
        """Counts dropped records. A function or a sink may give any text as the reason."""
        short = reason[:REASON_CHARACTERS_MAX] or "no reason given"
        if short not in self.dropped and len(self.dropped) >= REASONS_MAX:
            short = OTHER_REASONS
        self.dropped[short] = self.dropped.get(short, 0) + count

    @property
    def difference(self) -> int:
        """Inputs and timers that are not accounted for; 0 when the account balances."""
        ends = self.processed + self.filtered + self.dead_lettered + sum(self.dropped.values()) + self.diverted
        return self.inputs + self.timers - ends - self.open

    def to_message(self) -> mark_pb2.Account:
        return mark_pb2.Account(
            inputs=self.inputs,
            input_bytes=self.input_bytes,
            processed=self.processed,
            filtered=self.filtered,
            dead_lettered=self.dead_lettered,
            dropped=self.dropped,
            outputs=self.outputs,
            unrouted=self.unrouted,
            discarded=self.discarded,
            late=self.late,
            fallback=self.fallback,
            repeated_ids=self.repeated_ids,
            diverted=self.diverted,
            open=self.open,
            timers=self.timers,
        )

    @classmethod
    def from_message(cls, message: mark_pb2.Account) -> Account:
        dropped: Mapping[str, int] = message.dropped
        return cls(
            message.inputs,
            message.input_bytes,
            message.processed,
            message.filtered,
            message.dead_lettered,
            dict(dropped),
            message.outputs,
            message.unrouted,
            message.discarded,
            message.late,
            message.fallback,
            message.repeated_ids,
            message.diverted,
            message.open,
            message.timers,
        )


@dataclass(frozen=True, slots=True)
class Consumption:
    """What a lane has consumed of one input since its first commit, including what a repair has given up."""

    buffer: BufferId
    """The split, for the lane of a source."""
    position: Position
    records: int
    bytes: int
    """The stored size."""


def consumed(lane: LaneId, mark: mark_pb2.Mark) -> list[Consumption]:
    """What the mark says about each input that the lane has read from, including edges inside a chain."""
    if has_inputs(lane, mark):
        accepted = {item.edge: item for item in mark.accepted}
        own = [
            Consumption(
                BufferId(done.edge, lane.partition),
                Position(done.sequence, done.record_index),
                done.records + (accepted[done.edge].records if done.edge in accepted else 0),
                done.bytes + (accepted[done.edge].bytes if done.edge in accepted else 0),
            )
            for done in inputs_in(mark)
        ]
    else:
        position = Position(mark.sequence, mark.record_index)
        records = mark.account.inputs + sum(item.records for item in mark.accepted)
        size = mark.account.input_bytes + sum(item.bytes for item in mark.accepted)
        own = [Consumption(BufferId(lane.input, lane.partition), position, records, size)]
    return [
        *own,
        # What the vertices after the first of a chain have consumed has no sequences, because it was never stored.
        *(
            Consumption(BufferId(one.edge, lane.partition), Position(0), one.account.inputs, one.account.input_bytes)
            for one in mark.members
        ),
    ]


def has_inputs(lane: LaneId, mark: mark_pb2.Mark) -> bool:
    """Whether the mark of this lane says for each of several buffers how far it is read: see `inputs_in`."""
    return lane.input == ALL_INPUTS or mark.HasField("reduce")


def inputs_in(mark: mark_pb2.Mark) -> MutableSequence[mark_pb2.InputProgress]:
    """What the mark of a lane that reads several buffers says about each of them. It can be changed there."""
    return mark.reduce.inputs if mark.HasField("reduce") else mark.inputs


def progress(mark: mark_pb2.Mark) -> tuple[int, int]:
    """Records and bytes that the lane has consumed and written, over all buffers: they grow with the work it does."""
    records, size = mark.account.inputs, mark.account.input_bytes
    if mark.HasField("reduce"):
        for done in mark.reduce.inputs:
            records += done.records
            size += done.bytes
    for item in mark.written:
        records += item.records
        size += item.bytes
    return records, size


def account_of(vertex: str, lane: LaneId, mark: mark_pb2.Mark) -> Account:
    """The account of one vertex in a lane: the lane's own vertex, with what lanes of removed edges have done, or a
    later one in its chain."""
    account = Account.from_message(mark.account) if vertex == lane.vertex else Account()
    for one in mark.members:
        if one.vertex == vertex:
            account.add(Account.from_message(one.account))
    return account
