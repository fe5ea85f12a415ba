"""Finds the records that end the process of their function. Pure.

    call ─► ended the process ─► alone ─► ended it again ─► halves, each alone ─► ... ─► a record alone, three times

Other calls may have been in flight when the process ended, so a call is suspected only until it was tried alone. Other
calls are sent again as usual.

Above it: those that call functions with records. Below it: nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.udf.answers import Outcome, Result
from millstream.udf.endings import Ending

DEATHS_MAX = 3
"""How often in a row a record has to end the process, alone in its call, until it is the cause. These count as so many
attempts at the record."""


class Suspects:
    """The suspected records of some calls. Records are integers, such as indexes."""

    def __init__(self) -> None:
        self._suspected: set[int] = set()
        self._deaths: dict[int, int] = {}

    def must_be_alone(self, records: Sequence[int]) -> bool:
        """Whether a call with these records must be the only one in flight."""
        return not self._suspected.isdisjoint(records)

    def answered(self, records: Sequence[int]) -> None:
        """A call with these records was answered."""
        self._suspected.difference_update(records)
        for record in records:
            self._deaths.pop(record, None)

    def ended(self, records: Sequence[int], *, alone: bool) -> list[Sequence[int]]:
        """A call with these records has ended the process, or was in flight when it ended. Returns the calls to make
        in its place, in order; none if the cause is found: its only record."""
        self._suspected.update(records)
        if not alone:
            return [records]
        if len(records) > 1:
            middle = len(records) // 2
            return [records[:middle], records[middle:]]
        (record,) = records
        deaths = self._deaths.pop(record, 0) + 1
        if deaths < DEATHS_MAX:
            self._deaths[record] = deaths
            return [records]
        return []


def outcome_of(ending: Ending, index: int = 0) -> Outcome:
    """The outcome of a record that is the cause of such endings. `index`: its index in the call."""
    reason = f"its process {ending.why}, {DEATHS_MAX} times in a row, when it had this record alone"
    return Outcome(index, Result.ERROR, reason, detail=ending.tail, attempts=DEATHS_MAX)
