"""What a user does to let a lane continue after its mark, in a table of positions. Pure.

Above it: lanes of databases. Below it: nothing.
"""

from __future__ import annotations

from millstream_writer.connector import SinkOwner


def moved(positions: str, owner: SinkOwner) -> str:
    """The statement that sets the lane's row to its mark."""
    sequence, record = owner.mark
    return (
        f"`UPDATE {positions} SET run = '{owner.ledger_id}', epoch = 0, owner = '', sequence = {sequence}, "
        f"record = {record}, frame = '' WHERE pipeline = '{owner.pipeline}' AND lane = '{owner.name}'`"
    )


def inserted(positions: str, owner: SinkOwner) -> str:
    """The statement that gives the lane a row at its mark."""
    sequence, record = owner.mark
    return (
        f"`INSERT INTO {positions} (pipeline, lane, run, epoch, owner, sequence, record, frame) VALUES "
        f"('{owner.pipeline}', '{owner.name}', '{owner.ledger_id}', 0, '', {sequence}, {record}, '')`"
    )
