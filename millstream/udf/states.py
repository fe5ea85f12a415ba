"""What a function with states says and gets of them, in our own types, for every protocol.

Above it: the lanes. Below it: nothing. States and keys are known by their numbers: of a state, its place among those
that the function has declared; of a key, its place in the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum


class StateKind(IntEnum):
    """What a state has for a key. The numbers are those of the protocol and of what is stored."""

    VALUE = 1
    """One value."""
    MAP = 2
    """Values by item."""
    LIST = 3
    """Values in the order of their items."""
    COUNTER = 4
    """A number."""
    TIMER = 5
    """Timers by name. They do not come with calls."""
    TABLE = 6
    """Values of all keys of a table, which a lane has for its function. Only in what is stored."""

    @property
    def has_items(self) -> bool:
        return self in (StateKind.MAP, StateKind.LIST, StateKind.TIMER)


class StateClock(IntEnum):
    """The clock by which entries expire and timers fire. The numbers are those of the protocol and of storage."""

    EVENT_TIME = 1
    """The watermark of the lane."""
    PROCESSING_TIME = 2
    """The clock of the vertex."""


@dataclass(frozen=True, slots=True)
class DeclaredState:
    """A state, as its function declares it."""

    name: str
    kind: StateKind
    codec: str
    item_codec: str = ""
    version: int = 1
    """Of the values that the function writes."""
    oldest_version: int = 1
    """The lowest version of a value that it can read."""
    clock: StateClock = StateClock.EVENT_TIME
    is_lazy: bool = False
    """Whether its entries do not come with calls: the function reads those that it needs."""


@dataclass(frozen=True, slots=True)
class TableUpdate:
    """Entries of a table that a function did not have, or has otherwise."""

    base: int
    """The number of the update that the function got before; 0: it has nothing of any table."""
    version: int
    """The number of this one."""
    table: str
    """The name of the table."""
    keys: Sequence[tuple[bytes, ...]]
    values: Sequence[bytes]
    """Empty: the key is gone."""


@dataclass(frozen=True, slots=True)
class StateEntries:
    """What is remembered for the keys of the records of a call."""

    record_keys: Sequence[int]
    """The key of each record."""
    keys: Sequence[int]
    """The key of each entry, never decreasing; for each key ordered by state and by item."""
    states: bytes
    """The state of each entry."""
    items: Sequence[bytes]
    """Empty for states without items."""
    values: Sequence[bytes]
    versions: Sequence[int] = ()
    """Empty: all are of version 1."""

    @property
    def size(self) -> int:
        """Bytes of items and values."""
        return sum(map(len, self.items)) + sum(map(len, self.values))


@dataclass(frozen=True, slots=True)
class StateChanges:
    """What a call has changed of it. Each entry occurs once."""

    keys: Sequence[int] = ()
    states: bytes = b""
    items: Sequence[bytes] = ()
    """Absent if no state has items; otherwise one for each entry."""
    values: Sequence[bytes] = ()
    deleted: bytes = b""
    """1 for each entry that is gone. Absent: none is."""
    expires_us: Sequence[int] = ()
    """When each expires; 0: never. Absent: none does."""


NO_CHANGES = StateChanges()


@dataclass(frozen=True, slots=True)
class StateRead:
    """What a function reads of a lazy state during a call: items of a key, or a range of them."""

    key: int
    state: int
    items: Sequence[bytes] = ()
    """None: a range."""
    first: bytes = b""
    """Where the range begins."""
    end: bytes = b""
    """The range ends before this item; empty: with the last one."""
    entries_max: int = 0
    """At most so many of the range; 0: as many as fit into an answer."""
    items_only: bool = False
    """Without values."""


@dataclass(frozen=True, slots=True)
class StateFound:
    """The entries that a read has found, in the order of its items, or of a range in that of their bytes."""

    items: Sequence[bytes]
    values: Sequence[bytes]
    """Empty where they are not wanted."""
    versions: Sequence[int]
    covered: int = 0
    """How many of the items of the read this answers, from the first on."""
    has_more: bool = False
    """Whether the range may have others after the last item."""


StateReader = Callable[[StateRead], StateFound]
"""Reads entries as they were at the beginning of a call. Raises `ValueError` if there is no such key or lazy state."""
