"""What a savepoint says of a lane: plain values, and their form as JSON. Pure.

    mark, ledger ─► SavedLane ─► a line of `lanes.jsonl` ─► SavedLane ─► mark in another ledger

What counts records or frames of one ledger is left out: accounts, totals and witnesses begin again with the new ledger.

Above it: whatever takes a savepoint or begins with one. Below it: marks.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from google.protobuf import json_format

from millstream.json_parser import parse_json
from millstream.record import LaneId
from millstream.wire.ledger.v1 import mark_pb2
from millstream.wire.state.v1 import state_pb2


class SavedTarget(NamedTuple):
    """Where the target of a sink is, as the sink's lane knows it."""

    lane: LaneId
    """The lane of the sink; at the end of a chain, the one that it would have without the chain."""
    run: str
    """Id of the ledger by which the target knows the lane."""
    position: int
    """Sequence of the position in the target; at the end of a chain, the number of deliveries."""
    target: int
    """`Mark.target`."""
    delivery: str
    """`Mark.delivery`."""


@dataclass(frozen=True, slots=True)
class SavedLane:
    """A lane at the moment of a savepoint: nothing waits for it, and it has nothing to finish."""

    lane: LaneId
    stages: Sequence[str]
    """The vertices that run in it, in order."""
    epoch: int
    watermark_us: int
    ended: bool
    sequence: int
    """The last sequence of its input, as it is known outside of the ledger."""
    position: bytes = b""
    """Of a source."""
    ahead: mark_pb2.Ahead | None = None
    """`Mark.ahead`."""
    numbered: int = 0
    """`Mark.numbered`."""
    closed_us: int | None = None
    """Up to which time the windows of a reduce are closed."""
    target: SavedTarget | None = None
    """Of the sink that it writes to."""
    states: state_pb2.KeyedState | None = None
    """What its function declares, and which timers have fired; None without a state."""
    entries: int = 0
    """How many entries its state has."""
    steps: str = ""
    """The file with them; empty without a state."""
    ids: str = ""
    """The file with the digests of the ids that it remembers; empty if there are none."""

    def as_line(self) -> str:
        """A JSON object on one line."""
        ahead, target = self.ahead, self.target
        found = {
            "vertex": self.lane.vertex,
            "input": self.lane.input,
            "partition": self.lane.partition,
            "stages": list(self.stages),
            "epoch": self.epoch,
            "watermark_us": self.watermark_us,
            "ended": self.ended,
            "sequence": self.sequence,
            "position_base64": base64.b64encode(self.position).decode(),
            "ahead": None if ahead is None else {"records": ahead.records, "digest": ahead.digest.hex()},
            "numbered": self.numbered,
            "closed_us": self.closed_us,
            "target": None if target is None else {**target._asdict(), "lane": list(target.lane)},
            "states": None if self.states is None else _plain(self.states),
            "entries": self.entries,
            "steps": self.steps,
            "ids": self.ids,
        }
        return json.dumps(found)

    @classmethod
    def from_line(cls, line: str | bytes) -> SavedLane:
        """The inverse. Raises `ValueError`."""
        try:
            found: Mapping[str, Any] = parse_json(line)
            ahead, target, states = found["ahead"], found["target"], found["states"]
            return cls(
                lane=LaneId(found["vertex"], found["input"], found["partition"]),
                stages=found["stages"],
                epoch=found["epoch"],
                watermark_us=found["watermark_us"],
                ended=found["ended"],
                sequence=found["sequence"],
                position=base64.b64decode(found["position_base64"], validate=True),
                ahead=None if ahead is None else mark_pb2.Ahead(records=ahead["records"], digest=_bytes(ahead)),
                numbered=found["numbered"],
                closed_us=found["closed_us"],
                target=None if target is None else SavedTarget(**{**target, "lane": LaneId(*target["lane"])}),
                states=None if states is None else json_format.ParseDict(states, state_pb2.KeyedState()),
                entries=found["entries"],
                steps=found["steps"],
                ids=found["ids"],
            )
        except (KeyError, TypeError, AttributeError, json_format.Error) as error:
            raise ValueError(f"it is not a lane: {error!r}") from error


def _plain(message: state_pb2.KeyedState) -> dict[str, Any]:
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def _bytes(ahead: Mapping[str, Any]) -> bytes:
    return bytes.fromhex(ahead["digest"])


@dataclass(frozen=True, slots=True)
class SavedLanes:
    """All lanes of a savepoint."""

    lanes: Sequence[SavedLane]
    by_id: Mapping[LaneId, SavedLane] = field(init=False)
    targets: Mapping[LaneId, SavedTarget] = field(init=False)
    """By the lane of the sink."""
    runs: Mapping[str, str] = field(init=False)
    """Id of the ledger by which its target knows the lanes of each sink."""

    def __post_init__(self) -> None:
        targets = {one.target.lane: one.target for one in self.lanes if one.target is not None}
        object.__setattr__(self, "by_id", {one.lane: one for one in self.lanes})
        object.__setattr__(self, "targets", targets)
        object.__setattr__(self, "runs", {lane.vertex: target.run for lane, target in targets.items()})

    def of(self, vertex: str) -> Sequence[SavedLane]:
        """The lanes in which a vertex ran."""
        return [one for one in self.lanes if vertex in one.stages]

    @property
    def epoch(self) -> int:
        """The highest one of all."""
        return max((one.epoch for one in self.lanes), default=0)

    @property
    def entries(self) -> int:
        return sum(one.entries for one in self.lanes)

    def with_states(self) -> Iterator[SavedLane]:
        """Those whose function remembers something."""
        return (one for one in self.lanes if one.states is not None)
