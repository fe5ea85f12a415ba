"""Which changes are already part of a snapshot that was read in several parts. Pure.

    part 1: what its transaction saw ─────────┬─ part 2 ──────┬─ part 3, to the end ─
    tables and keys, in the order of reading ─►

A snapshot is read table by table in the order of keys, inside one transaction, which sees one state. If that
transaction is interrupted, another continues after the last key, and sees a later state. A change was read with its row
if the part that has its key saw it; all other changes follow. Above it: the lane. It knows no connection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Key = tuple[str, ...]
"""Key of a row, as the server writes it."""
_XIDS = 1 << 32


class Bound(NamedTuple):
    """A place in the reading order: after a row, or before a table's first row if `key` is None."""

    table: int
    key: Key | None


BEGINNING = Bound(0, None)


@dataclass(frozen=True, slots=True)
class TransactionView:
    """What a transaction sees, from `pg_current_snapshot()`."""

    xmin: int
    xmax: int
    running: frozenset[int]

    def has(self, xid: int) -> bool:
        """Whether it sees the changes of a transaction; `xid` is from the WAL, without its high bits."""
        # The two ids are less than half the id space apart, or the server would have stopped.
        whole = self.xmax + ((xid - self.xmax + _XIDS // 2) % _XIDS - _XIDS // 2)
        return whole < self.xmax and (whole < self.xmin or whole not in self.running)

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, sorted(self.running)))}"


def parse_seen(text: str) -> TransactionView:
    """Parse the server's text. Raises `ValueError`."""
    xmin, xmax, running = text.split(":")
    return TransactionView(int(xmin), int(xmax), frozenset(int(xid) for xid in running.split(",") if xid))


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """The part that one transaction has read."""

    seen: TransactionView
    until_lsn: int
    """Everything that it sees was committed before this position."""
    upto: Bound | None
    """The last place that it read; None if it reads to the end."""


@dataclass(frozen=True, slots=True)
class SnapshotTable:
    """A table of the snapshot."""

    schema: str
    name: str
    keys: tuple[tuple[str, str], ...]
    """The columns of its key, each with its type."""


@dataclass(slots=True)
class Snapshot:
    """The progress of a snapshot, and what its parts saw."""

    tables: Sequence[SnapshotTable]
    parts: list[SnapshotPart] = field(default_factory=list)
    at: Bound | None = field(default_factory=lambda: BEGINNING)
    """The place after the last row that was returned; None if all were."""

    def begin(self, seen: TransactionView, until_lsn: int) -> None:
        """Begin another part at this place."""
        self.cut()
        self.parts.append(SnapshotPart(seen, until_lsn, None))

    def cut(self) -> None:
        """End the last part at the rows that were returned."""
        if self.at is None or not self.parts or self.parts[-1].upto is not None:
            return
        last = self.parts.pop()
        if self.at != (self.parts[-1].upto if self.parts else BEGINNING):
            self.parts.append(SnapshotPart(last.seen, last.until_lsn, self.at))

    def after(self, table: int) -> Bound | None:
        """The place after all rows of a table: the beginning of the next one; None after the last table."""
        return Bound(table + 1, None) if table + 1 < len(self.tables) else None

    def is_over(self, lsn: int) -> bool:
        """Whether no part saw any change that is committed from this position on."""
        return self.at is None and (not self.parts or lsn >= self.parts[-1].until_lsn)

    def number_of(self, schema: str, name: str) -> int | None:
        """Index of a table; None if the snapshot does not have it."""
        return next((n for n, table in enumerate(self.tables) if (table.schema, table.name) == (schema, name)), None)

    def bounds_of(self, table: int) -> list[tuple[int, Key]]:
        """Keys of a table at which a part ends, each with the number of that part."""
        uptos = ((number, part.upto) for number, part in enumerate(self.parts))
        return [(n, upto.key) for n, upto in uptos if upto is not None and upto.table == table and upto.key is not None]

    def first_that_saw(self, xid: int) -> int:
        """The number of the first part that sees a transaction, as all later ones do; the number of parts if none
        does."""
        return next((number for number, part in enumerate(self.parts) if part.seen.has(xid)), len(self.parts))

    def parts_of(self, table: int) -> tuple[int, int]:
        """The numbers of the first and the last part that have read rows of a table."""
        first = last = len(self.parts) - 1
        for number, part in reversed(list(enumerate(self.parts))):
            if part.upto is None or part.upto.table > table:
                first = last = number
            elif part.upto.table == table and part.upto.key is not None:
                first = number
            else:
                break
        return first, last

    def packed(self) -> dict[str, Any]:
        """The form in a position."""
        return {
            "tables": [[table.schema, table.name, table.keys] for table in self.tables],
            "parts": [[str(part.seen), part.until_lsn, part.upto] for part in self.parts],
            "at": self.at,
        }


def unpacked(body: Mapping[str, Any]) -> Snapshot:
    """The inverse of `Snapshot.packed`. Raises `ValueError`, `TypeError` and `KeyError`."""
    tables = [
        SnapshotTable(str(schema), str(name), tuple((str(column), str(of)) for column, of in keys))
        for schema, name, keys in body["tables"]
    ]
    parts = [SnapshotPart(parse_seen(seen), int(lsn), _bound(upto, tables)) for seen, lsn, upto in body["parts"]]
    return Snapshot(tables, parts, _bound(body["at"], tables))


def _bound(written: Any, tables: Sequence[SnapshotTable]) -> Bound | None:
    if written is None:
        return None
    table, key = written
    if not 0 <= int(table) < max(1, len(tables)) or (key is not None and len(key) != len(tables[table].keys)):
        raise ValueError(written)
    return Bound(int(table), None if key is None else tuple(map(str, key)))
