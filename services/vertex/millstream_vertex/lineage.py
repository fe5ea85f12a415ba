"""The names of records on their way through a lane. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from millstream.naming import Origin
from millstream.record import LaneId


@dataclass(frozen=True, slots=True)
class Lineage:
    """The names of the records in a frame. Each is named after the record of the chain's input that it was made from,
    so it has the same name at every attempt, however the input is cut."""

    prefix: str = ""
    """Prefix of the numbers: "<sequence>/" of the stored frame; empty after a source, which numbers records."""
    first: int = 0
    """Number of the first record, if the records are consecutive."""
    names: Sequence[str] | None = None
    """The name of each record, if they are not consecutive."""
    source_position: str = ""
    """See `Origin`."""
    run: str = ""
    edge: str = ""
    """The edge by which they came, into a lane that reads several edges."""

    def origin(self, lane: LaneId) -> Origin:
        """The origin of the records, for the function that gets them in that lane."""
        here = f"{lane.vertex}/{self.edge or lane.input}/{lane.partition}/{self.prefix}"
        return Origin(here, self.first, self.source_position, self.run, self.names or ())

    def part(self, start: int, records: int) -> Lineage:
        """The lineage of `records` records from index `start`."""
        if self.names is not None:
            return replace(self, names=self.names[start : start + records])
        return replace(self, first=self.first + start)

    def children(self, parents: Sequence[int] | None, step: int, begun: int = 0) -> Lineage:
        """The lineage of the outputs that step number `step` has made from these records.

        `parents`: index of the parent of each output; None if each record has one output, in order. `begun`: how many
        outputs of the first of them were passed on before. The first output of a record has the name of the record. The
        names of the others end with the step and their number.
        """
        if parents is None:
            return self
        if not begun and self.names is None and list(parents) == list(range(parents[0], parents[0] + len(parents))):
            return self.part(parents[0], len(parents))
        names: list[str] = []
        counts: Counter[int] = Counter({parents[0]: begun})
        for parent in parents:
            name, count = self._name(parent), counts[parent]
            counts[parent] += 1
            names.append(f"{name}+{step}.{count}" if count else name)
        return replace(self, names=names)

    def _name(self, index: int) -> str:
        return self.names[index] if self.names is not None else str(self.first + index)
