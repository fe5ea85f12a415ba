"""Open windows of keys by columns, and the pieces of each as a chain: compact enough for a million of them. No I/O.

    slot    start end rows early seen head tail open key      about 60 bytes, and the key
    piece   entry first count next                            20 bytes

A slot is one open window of one key. Numbers of slots and pieces are reused once they are free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from millstream.clock import END_OF_TIME_US
from millstream_reduce.values import Key, Piece, Rows, WindowTable
from millstream_reduce.windows.entries import Entries

NONE = -1
"""No piece."""

_CAPACITY_MIN = 64


class Pool:
    """Numbers from 0 that are taken and returned, with columns that grow with them."""

    columns: ClassVar[Mapping[str, npt.DTypeLike]]

    def __init__(self) -> None:
        self._capacity = 0
        self._free = np.zeros(0, np.int64)
        self._free_count = 0
        self.used = 0
        """Above every number that was ever taken."""
        for name, dtype in self.columns.items():
            setattr(self, name, np.zeros(0, dtype))

    def __len__(self) -> int:
        return self.used - self._free_count

    def take(self, count: int) -> Rows:
        """This many numbers. Their columns contain old values."""
        again = min(count, self._free_count)
        self._free_count -= again
        numbers = self._free[self._free_count : self._free_count + again].copy()
        if again == count:
            return numbers
        begin = self.used
        self.used += count - again
        if self.used > self._capacity:
            self._grow()
        return np.concatenate((numbers, np.arange(begin, self.used, dtype=np.int64)))

    def give_back(self, numbers: Rows) -> None:
        self._free[self._free_count : self._free_count + len(numbers)] = numbers
        self._free_count += len(numbers)

    def _grow(self) -> None:
        self._capacity = max(_CAPACITY_MIN, self.used + self.used // 2)
        self._free = self._grown(self._free)
        for name in self.columns:
            setattr(self, name, self._grown(getattr(self, name)))

    def _grown(self, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        grown = np.zeros(self._capacity, column.dtype)
        grown[: len(column)] = column
        return grown


class _Pieces(Pool):
    columns: ClassVar[Mapping[str, npt.DTypeLike]] = {
        "entry": np.int64,
        "first": np.int32,
        "count": np.int32,
        "next": np.int32,
    }
    entry: npt.NDArray[np.int64]
    first: npt.NDArray[np.int32]
    count: npt.NDArray[np.int32]
    next: npt.NDArray[np.int32]


class Slots(Pool):
    """The open windows."""

    columns: ClassVar[Mapping[str, npt.DTypeLike]] = {
        "start": np.int64,
        "end": np.int64,
        "rows": np.int64,
        "early": np.int32,
        "seen": np.int64,
        "head": np.int32,
        "tail": np.int32,
        "open": np.bool_,
        "key": np.object_,
    }
    start: npt.NDArray[np.int64]
    """Of the window, microseconds."""
    end: npt.NDArray[np.int64]
    """Of the window; END_OF_TIME_US in a slot that is free."""
    rows: npt.NDArray[np.int64]
    """0 in a slot that is free."""
    early: npt.NDArray[np.int32]
    """Number of the last early result."""
    seen: npt.NDArray[np.int64]
    """Rows that it held."""
    head: npt.NDArray[np.int32]
    """First piece of the chain."""
    tail: npt.NDArray[np.int32]
    open: npt.NDArray[np.bool_]
    """Takes rows in."""
    key: npt.NDArray[np.object_]

    def __init__(self) -> None:
        super().__init__()
        self._pieces = _Pieces()
        self.entries = Entries()
        self.open_rows = 0

    def make(self, keys: Sequence[Key], starts: Rows | int, ends: Rows | int) -> Rows:
        """Open slots without rows, one for each key."""
        slots = self.take(len(keys))
        self.key[slots] = keys
        self.start[slots], self.end[slots] = starts, ends
        self.rows[slots], self.early[slots], self.seen[slots] = 0, 0, 0
        self.head[slots], self.tail[slots] = NONE, NONE
        self.open[slots] = True
        return slots

    def attach(self, slots: Rows, entry: int, firsts: Rows, counts: Rows) -> None:
        """Attaches a piece of the entry to each slot, to none twice."""
        pieces = self._pieces.take(len(slots))
        chained = self._pieces
        chained.entry[pieces], chained.first[pieces], chained.count[pieces] = entry, firsts, counts
        chained.next[pieces] = NONE
        tails = self.tail[slots]
        empty = tails == NONE
        chained.next[tails[~empty]] = pieces[~empty]
        self.head[slots[empty]] = pieces[empty]
        self.tail[slots] = pieces
        self.rows[slots] += counts
        self.open_rows += int(counts.sum())

    def attach_one(self, slot: int, entry: int, first: int, count: int) -> None:
        """Attaches a piece of the entry to one slot."""
        piece = int(self._pieces.take(1)[0])
        chained = self._pieces
        chained.entry[piece], chained.first[piece], chained.count[piece] = entry, first, count
        chained.next[piece] = NONE
        tail = self.tail[slot]
        if tail == NONE:
            self.head[slot] = piece
        else:
            chained.next[tail] = piece
        self.tail[slot] = piece
        self.rows[slot] += count
        self.open_rows += count

    def join(self, slot: int, other: int) -> None:
        """Makes the first take over the pieces and the span of the other, which becomes free."""
        self.start[slot] = min(self.start[slot], self.start[other])
        self.end[slot] = max(self.end[slot], self.end[other])
        self.rows[slot] += self.rows[other]
        self.seen[slot] += self.seen[other]
        self.early[slot] = max(self.early[slot], self.early[other])
        self._pieces.next[self.tail[slot]] = self.head[other]
        self.tail[slot] = self.tail[other]
        self._clear(np.array([other], np.int64))

    def contents(self, slots: Rows) -> list[tuple[Piece, ...]]:
        """The pieces of each, in the order of the log; those that follow each other are joined."""
        owners, (entry, first, count) = self._joined(slots)
        pieces = self.entries.make(entry, first, count)
        bounds = np.searchsorted(owners, np.arange(len(slots) + 1)).tolist()
        return [tuple(pieces[begin:end]) for begin, end in pairwise(bounds)]

    def table(self, slots: Rows, *, keyed: bool) -> WindowTable:
        """The same by columns, as windows whose rows no other window needs."""
        owners, (entry, first, count) = self._joined(slots)
        numbers, piece_entries = np.unique(entry, return_inverse=True)
        rows = self.rows[slots]
        return WindowTable(
            self.start[slots],
            self.end[slots],
            self.key[slots].tolist() if keyed else None,
            rows,
            np.bincount(owners, minlength=len(slots)),
            np.array([self.entries.location(number) for number in numbers.tolist()], np.int64),
            (piece_entries, first, count),
            released=rows,
        )

    def _joined(self, slots: Rows) -> tuple[Rows, tuple[Rows, Rows, Rows]]:
        """As `triples`; pieces that follow each other are one."""
        owners, triples = self.triples(slots)
        entry, first, count = triples.T
        follows = (owners[1:] == owners[:-1]) & (entry[1:] == entry[:-1]) & (first[1:] == first[:-1] + count[:-1])
        begins = np.concatenate((np.zeros(1, np.int64), np.flatnonzero(~follows) + 1))
        return owners[begins], (entry[begins], first[begins], np.add.reduceat(count, begins))

    def triples(self, slots: Rows) -> tuple[Rows, Rows]:
        """The pieces of at least one slot, not joined, slot by slot in the order of the log: the index of the slot that
        each belongs to, and a table of entry, first row and rows."""
        owners, pieces = self._chains(slots)
        chained = self._pieces
        table: Rows = np.stack((chained.entry[pieces], chained.first[pieces], chained.count[pieces]), axis=1)
        order = np.lexsort((table[:, 1], table[:, 0], owners))
        return owners[order], table[order]

    def free(self, slots: Rows) -> None:
        """Their rows are no longer needed."""
        if not len(slots):
            return
        _, pieces = self._chains(slots)
        entries, counts = np.unique(self._pieces.entry[pieces], return_counts=True)
        for entry, count in zip(entries.tolist(), counts.tolist(), strict=True):
            self.entries.drop(entry, count)
        self._pieces.give_back(pieces)
        self.open_rows -= int(self.rows[slots].sum())
        self._clear(slots)

    def _clear(self, slots: Rows) -> None:
        self.rows[slots], self.end[slots] = 0, END_OF_TIME_US
        self.open[slots], self.key[slots] = False, None
        self.give_back(slots)

    def _chains(self, slots: Rows) -> tuple[Rows, Rows]:
        """All pieces of the slots: the index of the slot that each belongs to, and its number."""
        owner, piece = np.arange(len(slots)), self.head[slots]
        owners, pieces = [owner], [piece]
        while True:
            following = self._pieces.next[piece]
            more = following != NONE
            owner, piece = owner[more], following[more]
            if not len(piece):
                return np.concatenate(owners), np.concatenate(pieces).astype(np.int64)
            owners.append(owner)
            pieces.append(piece)

    def alive(self) -> Rows:
        """Numbers of the slots that are not free."""
        return np.flatnonzero(self.rows[: self.used])
