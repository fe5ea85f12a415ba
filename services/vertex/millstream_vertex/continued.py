"""What a lane that continues from a savepoint is called outside of its ledger. Pure.

    sequences of the ledger:   1, 2, 3 …                         in marks, buffers and watermarks
    outside:                   … 344, 345 │ 346, 347, 348 …      in the ids of records, and in the target of a sink

A new ledger counts from 1 again. Targets keep positions, and receivers remember ids, so to them the lane goes on where
the ledger of the savepoint stopped. A lane that has not begun with a savepoint has the same sequences outside.

Above it: the inputs and the sinks of lanes. Below it: marks.
"""

from __future__ import annotations

from millstream.record import Position
from millstream.wire.ledger.v1 import mark_pb2


def outside(mark: mark_pb2.Mark, sequence: int) -> int:
    """A sequence of the lane's input, as it is known outside."""
    return sequence + mark.continued.sequence


def position_outside(mark: mark_pb2.Mark, position: Position) -> Position:
    """A position of the lane in its buffer, as its target knows it."""
    return position._replace(sequence=outside(mark, position.sequence))


def position_inside(mark: mark_pb2.Mark, position: Position) -> Position:
    """The inverse."""
    return position._replace(sequence=position.sequence - mark.continued.sequence)


def run_outside(mark: mark_pb2.Mark, ledger_id: str) -> str:
    """The id of the ledger by which the target of the lane's sink knows it. `ledger_id`: of its own ledger."""
    return mark.continued.run or ledger_id
