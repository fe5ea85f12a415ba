"""The places of the rows of open windows: the entries of the log that are still needed, by number. No I/O.

A piece is kept as three integers, (entry, first row, rows); the entry's place in the log is kept once, here, for as
long as pieces of it are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from millstream import codes
from millstream.errors import DamageError
from millstream_reduce.values import Location, Piece, Rows

Triple = tuple[int, int, int]
"""Number of the entry, first row, rows."""


def closed_before(location: Location) -> DamageError:
    """The error for rows that had no window when they were logged."""
    return DamageError(
        codes.SEGMENT_MISPLACED,
        f"the entry at {location.offset} of segment {location.segment} holds records whose windows were closed"
        " before it: the log or the vertex's window settings changed; restore them",
    )


class Entries:
    """Entries that open windows need. Their numbers rise in the order of the log."""

    def __init__(self) -> None:
        self._locations: dict[int, Location] = {}
        self._pieces: dict[int, int] = {}
        self._of_segment: dict[int, int] = {}
        self.next_number = 0
        """The number of the next entry."""

    def add(self, location: Location, pieces: int) -> int:
        """The number of an entry of which this many pieces are kept."""
        number = self.next_number
        self.next_number += 1
        self._locations[number] = location
        self._pieces[number] = pieces
        self._of_segment[location.segment] = self._of_segment.get(location.segment, 0) + 1
        return number

    def keep(self, number: int) -> None:
        """One more piece of it is kept."""
        self._pieces[number] += 1

    def drop(self, number: int, pieces: int = 1) -> None:
        """This many of its pieces are no longer needed."""
        self._pieces[number] -= pieces
        if not self._pieces[number]:
            del self._pieces[number]
            segment = self._locations.pop(number).segment
            self._of_segment[segment] -= 1
            if not self._of_segment[segment]:
                del self._of_segment[segment]

    def segments(self) -> set[int]:
        """Segments that contain them."""
        return set(self._of_segment)

    def location(self, number: int) -> Location:
        return self._locations[number]

    def numbers(self) -> list[int]:
        """Numbers of all of them, ascending."""
        return list(self._locations)

    def pieces(self, triples: Iterable[Triple]) -> tuple[Piece, ...]:
        """The pieces in the order of the log; those that follow each other are joined."""
        joined: list[Piece] = []
        current, begin, end = -1, 0, 0
        for entry, first, rows in sorted(triples):
            if entry == current and first == end:
                end += rows
                continue
            if current >= 0:
                joined.append(Piece(*self._locations[current], begin, end - begin))
            current, begin, end = entry, first, first + rows
        if current >= 0:
            joined.append(Piece(*self._locations[current], begin, end - begin))
        return tuple(joined)

    def make(self, entries: Rows, firsts: Rows, counts: Rows) -> list[Piece]:
        """A piece for each row of the columns."""
        numbers, index = np.unique(entries, return_inverse=True)
        places = np.array([self._locations[number] for number in numbers.tolist()], np.int64)[index]
        return list(map(Piece, *places.T.tolist(), firsts.tolist(), counts.tolist()))

    def restore(self, locations: Sequence[Location], pieces: Sequence[int]) -> None:
        """Replace all by these, numbered from 0."""
        self._locations.clear()
        self._pieces.clear()
        self._of_segment.clear()
        self.next_number = 0
        for location, count in zip(locations, pieces, strict=True):
            self.add(location, count)
