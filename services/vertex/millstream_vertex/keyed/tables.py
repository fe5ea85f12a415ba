"""The tables of a lane, which its function reads: what is in them, and what the function does not have of it. Pure.

    frame of a table ─► entries of the lane's state, committed with it ─┬─► all of them, for a function that has none
                                                                        └─► those that changed since it got some

A table has the latest value of each key; an empty one removes the key. The function has a copy, with the number of the
last update that it got. Above it: the stage. Below it: the state of the lane.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from millstream import codes
from millstream.errors import UserError
from millstream.frame import Frame
from millstream.limits import MIB, TABLE_PIECE_BYTES_MAX
from millstream.spec.tables import TableInput
from millstream.udf.states import DeclaredState, StateKind, TableUpdate
from millstream_vertex.keyed.image import Stored, parts_of, size_of
from millstream_vertex.keyed.keys import parts_of as key_parts_of
from millstream_vertex.keyed.keys import table_key_of
from millstream_vertex.keyed.state import EntryChange, KeyedState

FORGOTTEN_MAX = 1000
"""Entries of tables without an edge that are removed at once, so that records do not wait for them."""
_NO_ITEM = b""


class _Place(NamedTuple):
    """An entry of a table."""

    table: int
    """The number of its table."""
    key: bytes


class Tables:
    """The tables of one lane. Empty until `open`."""

    def __init__(self, where: str, state: KeyedState, inputs: Sequence[TableInput] = ()) -> None:
        """`where`: names the lane in messages."""
        self._where = where
        self._state = state
        self._inputs = tuple(inputs)
        self.edges = {table.edge: number for number, table in enumerate(self._inputs)}
        """The number of the table of each edge."""
        self._states: list[int] = []
        """The number of the state of each table."""
        self._sizes = [0] * len(self._inputs)
        """Bytes of each table."""
        self._sizes_before = tuple(self._sizes)
        self._records = [0] * len(self._inputs)
        """How many records of each were read."""
        self._records_before = tuple(self._records)
        self._former: list[int] = []
        """The states of tables that have no edge now, and perhaps entries."""
        self._updates = 0
        """The number of the last update that was made."""
        self.version = 0
        """The number of the last one that the function has; 0: it has nothing."""
        self._changed: dict[_Place, None] = {}
        """What has changed since then."""

    def __bool__(self) -> bool:
        return bool(self._inputs)

    @property
    def names(self) -> Sequence[str]:
        return [table.name for table in self._inputs]

    def declared(self) -> Sequence[DeclaredState]:
        """The states that have the entries."""
        return [DeclaredState(_state_name(table), StateKind.TABLE, "") for table in self._inputs]

    def open(self) -> None:
        """Begin with what is stored, after the states were declared and loaded."""
        numbers = {one.name: number for number, one in enumerate(self._state.stored)}
        self._states = [numbers[_state_name(table)] for table in self._inputs]
        self._former = [
            number
            for number, one in enumerate(self._state.stored)
            if one.kind == StateKind.TABLE and number not in self._states
        ]
        for table, number in enumerate(self._states):
            self._sizes[table] = sum(size_of(*entry) for entry in self._state.of_state(number))
            self._records[table] = self._state.stored[number].records
        self._update_state()
        self.begin()

    def records_of(self, edge: str) -> int:
        """How many records of an edge were read into its table; 0 if there is none."""
        table = self.edges.get(edge)
        return 0 if table is None else self._records[table]

    # What becomes of records.

    def apply(self, edge: str, frame: Frame) -> None:
        """Put the records of an edge into its table. Raises `UserError` if it would be too large."""
        table = self.edges[edge]
        state, size = self._states[table], self._sizes[table]
        for parts, value in zip(frame.keys(), frame.values(), strict=True):
            key, stored = table_key_of(parts), value or None
            before = self._state.entry(state, key, _NO_ITEM)
            if before == stored:
                # What is read again and again changes nothing.
                continue
            self._state.write(EntryChange(key, state, _NO_ITEM, stored))
            size += size_of(key, _NO_ITEM, stored) - size_of(key, _NO_ITEM, before)
            self._changed[_Place(table, key)] = None
        self._sizes[table] = size
        self._records[table] += frame.records
        self._update_state()
        size_max = self._inputs[table].table.max_bytes
        if size > size_max:
            name = self._inputs[table].name
            raise UserError(
                codes.TABLE_TOO_LARGE,
                f"{self._where}: table `{name}` would have {size:,} bytes; at most {size_max:,} are allowed "
                f"(`maxBytes` of the table). Set it to, say, {-(-2 * size // MIB)}Mi and start again, or let fewer "
                "records, or smaller ones, come by its edge",
            )

    def forget(self) -> None:
        """Remove entries of tables that have no edge now, some of them if they are many."""
        while self._former:
            state = self._former[-1]
            keys = [key for (key, _, _), _ in zip(self._state.of_state(state), range(FORGOTTEN_MAX), strict=False)]
            for key in keys:
                self._state.write(EntryChange(key, state, _NO_ITEM, None))
            if keys:
                return
            self._former.pop()

    def begin(self) -> None:
        """Everything up to now stays, whatever happens to the next result."""
        self._sizes_before, self._records_before = tuple(self._sizes), tuple(self._records)

    def undo(self) -> None:
        """The state has taken back everything since `begin`. (What has changed is read when it is sent.)"""
        self._sizes = list(self._sizes_before)
        self._records = list(self._records_before)
        self._update_state()

    def _update_state(self) -> None:
        """Let the state know how many bytes and records the tables have."""
        self._state.tables_size = sum(self._sizes)
        for number, records in zip(self._states, self._records, strict=True):
            self._state.stored[number].records = records

    # What the function gets.

    def updates(self) -> Iterator[TableUpdate]:
        """The updates that the function lacks, each to be `received`, or `lost`, before the next."""
        if not self.version:
            for table, state in enumerate(self._states):
                # While the function gets them, results are committed, and with `store: disk` that moves entries.
                entries = [(key, stored) for key, _, stored in self._state.of_state(state)]
                yield from self._pieces(table, entries, at_least_one=True)
        elif self._changed:
            changed: list[list[bytes]] = [[] for _ in self._inputs]
            for place in self._changed:
                changed[place.table].append(place.key)
            for table, keys in enumerate(changed):
                now = [(key, self._state.entry(self._states[table], key, _NO_ITEM)) for key in keys]
                yield from self._pieces(table, now, at_least_one=False)
        self._changed.clear()

    def _pieces(
        self, table: int, entries: Iterable[tuple[bytes, Stored | None]], *, at_least_one: bool
    ) -> Iterator[TableUpdate]:
        keys, values, size = list[tuple[bytes, ...]](), list[bytes](), 0
        for key, stored in entries:
            value = b"" if stored is None else parts_of(stored)[0]
            added = len(key) + len(value)
            if keys and size + added > TABLE_PIECE_BYTES_MAX:
                yield self._update(table, keys, values)
                keys, values, size = [], [], 0
            keys.append(key_parts_of(key))
            values.append(value)
            size += added
        if keys or at_least_one:
            yield self._update(table, keys, values)

    def _update(self, table: int, keys: Sequence[tuple[bytes, ...]], values: Sequence[bytes]) -> TableUpdate:
        self._updates += 1
        return TableUpdate(self.version, self._updates, self._inputs[table].name, keys, values)

    def received(self, update: TableUpdate) -> None:
        """The function has it."""
        self.version = update.version

    def lost(self) -> None:
        """The function has nothing: it was restarted, or its stream is another one."""
        self.version = 0


def _state_name(table: TableInput) -> str:
    # Names of edges are not used again, so a table whose edge is replaced begins without entries. No state of a
    # function can have such a name.
    return f"table {table.name} of {table.edge}"
