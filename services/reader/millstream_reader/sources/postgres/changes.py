"""From the messages of a slot to records: a JSON object for each change, and the place behind it. Pure.

    Begin ─► Relation, Change, Truncate … ─► Commit          Passed: nothing more was committed before
      └─ lsn of the commit, index in the transaction ─► the position

A place is a position in the server's log and a count: all transactions that were committed before it are done, and so
many changes of the one that was committed there. Above it: the lane, which asks the server what this cannot know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from millstream.postgres.replication import lsn_text
from millstream_reader.sources.postgres.pgoutput import (
    UNCHANGED,
    Begin,
    Change,
    Commit,
    NotPgoutputError,
    Relation,
    Texts,
)
from millstream_reader.sources.postgres.snapshot import Key, Snapshot
from millstream_reader.sources.postgres.texts import UserType, quoted, to_json

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class MustAskError(Exception):
    """The server alone can say which part of the snapshot has a key."""

    def __init__(self, table: int, key: Key) -> None:
        super().__init__(table, key)
        self.table = table
        self.key = key


class TruncatedError(Exception):
    """A table was truncated between two parts of its snapshot, so what the later part read cannot be told apart."""


class Made(NamedTuple):
    """A record."""

    value: bytes
    keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Tail:
    """What all records of a transaction end with."""

    text: bytes
    time_us: int


def tail_of(lsn: int, time_us: int, xid: int | None) -> Tail:
    """The end of records that were committed like that."""
    moment = _EPOCH + timedelta(microseconds=time_us)
    commit = moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
    number = "null" if xid is None else str(xid)
    return Tail(f',"lsn":"{lsn_text(lsn)}","xid":{number},"commitTime":"{commit}","index":'.encode(), time_us)


class Table:
    """How rows of a relation become records."""

    def __init__(self, relation: Relation, keys: Sequence[str], user_types: Mapping[int, UserType]) -> None:
        """`keys`: the columns that identify a row, the most significant one first."""
        self.relation = relation
        names = [column.name for column in relation.columns]
        self.keys = [names.index(name) for name in keys if name in names]
        self._members = [
            (quoted(column.name.encode()), quoted(column.name.encode()) + b":", to_json(column.type_oid, user_types))
            for column in relation.columns
        ]
        place = b'"schema":' + quoted(relation.schema.encode()) + b',"table":' + quoted(relation.name.encode())
        self._heads = {op: b'{"op":"%b",%b,"before":' % (op.encode(), place) for op in "rcudt"}

    def key_of(self, texts: Texts, older: Texts | None = None) -> tuple[bytes, ...]:
        """The values that identify a row; what an update left as it was comes from the older row."""
        found: list[bytes] = []
        for index in self.keys:
            text = texts[index]
            if text is UNCHANGED and older is not None:
                text = older[index]
            if isinstance(text, bytes):
                found.append(text)
        return tuple(found)

    def record(self, op: str, old: Texts | None, is_whole: bool, new: Texts | None, tail: Tail, index: int) -> Made:
        """The record of a change."""
        before = after = b"null"
        keys: tuple[bytes, ...] = ()
        if old is not None:
            before, _ = self._row(old, None if is_whole else self.keys)
            keys = self.key_of(old)
        if new is not None:
            keys = self.key_of(new, old)
            after, unchanged = self._row(new, None)
            if unchanged:
                after += b',"unchanged":[' + b",".join(unchanged) + b"]"
        value = b'%b%b,"after":%b%b%d}' % (self._heads[op], before, after, tail.text, index)
        return Made(value, keys)

    def _row(self, texts: Texts, only: Sequence[int] | None) -> tuple[bytes, list[bytes]]:
        if len(texts) != len(self._members):
            what = f"a row of {self.relation.schema}.{self.relation.name} has {len(texts)} values"
            raise NotPgoutputError(f"{what}, and its table {len(self._members)} columns")
        parts: list[bytes] = []
        unchanged: list[bytes] = []
        places = range(len(texts)) if only is None else only
        members = self._members
        for place in places:
            text = texts[place]
            name, member, convert = members[place]
            if text is None:
                parts.append(member + b"null")
            elif text is UNCHANGED:
                unchanged.append(name)
            else:
                parts.append(member + convert(text))
        return b"{" + b",".join(parts) + b"}", unchanged


class Changes:
    """Where a lane stands in a slot's changes, and what they become."""

    def __init__(self, lsn: int, index: int, snapshot: Snapshot | None) -> None:
        self.lsn = lsn
        self.index = index
        self.snapshot = snapshot
        self.tables: dict[int, Table | None] = {}
        """By the number of the relation; None: of no interest."""
        self.regions: dict[tuple[int, Key], int] = {}
        """Which part of the snapshot has a key, as far as the server was asked."""
        self.tail: Tail | None = None
        """Of the transaction that has begun; None between two."""
        self._seen = 0
        """Changes of it that were taken."""
        self._skip = 0
        """So many were given before."""
        self._saw = 0
        """The first part of the snapshot that saw it."""

    def begin(self, message: Begin) -> None:
        """A transaction follows."""
        self.tail = tail_of(message.commit_lsn, message.time_us, message.xid)
        self._seen = 0
        if message.commit_lsn > self.lsn:
            self.lsn, self.index = message.commit_lsn, 0
        self._skip = self.index if message.commit_lsn == self.lsn else 1 << 62
        if self.snapshot is not None:
            if self.snapshot.is_over(message.commit_lsn):
                self.snapshot = None
                self.regions.clear()
            else:
                self._saw = self.snapshot.first_that_saw(message.xid)

    def commit(self, message: Commit) -> None:
        """The transaction is complete."""
        self.tail = None
        self.passed(message.end_lsn)

    def passed(self, lsn: int) -> None:
        """Nothing that was committed before is missing."""
        if self.tail is None and lsn > self.lsn:
            self.lsn, self.index = lsn, 0

    def made(self, message: Change) -> Made | None:
        """The record of the next change; None where there is none. Nothing moves before `took`."""
        if self._seen < self._skip:
            return None
        table = self._table(message.relation)
        if table is None:
            return None
        op, old, new = message.op, message.old, message.new
        if new is not None and old is not None and message.is_whole and len(new) == len(old):
            new = [was if text is UNCHANGED else text for text, was in zip(new, old, strict=True)]
        if self.snapshot is not None and self._saw < len(self.snapshot.parts):
            if new is not None and not self._is_kept(table, table.key_of(new, old)):
                new = None
            if old is not None:
                if not self._is_kept(table, table.key_of(old)):
                    old = None
            elif new is None:
                return None
            if old is None and new is None:
                return None
            # A row whose key changed went from what one part read to what another did.
            op = op if op != "u" or (new is not None and (old is not None or message.old is None)) else _half(new)
        return table.record(op, old, message.is_whole and old is not None, new, self._tail, self._seen)

    def truncated(self, relation: int) -> Made | None:
        """The record of a table that was emptied. See `made`."""
        table = self._table(relation)
        if self._seen < self._skip or table is None:
            return None
        if self.snapshot is not None and self._saw < len(self.snapshot.parts):
            number = self.snapshot.number_of(table.relation.schema, table.relation.name)
            if number is not None:
                first, last = self.snapshot.parts_of(number)
                if self._saw <= first:
                    return None
                if self._saw <= last:
                    raise TruncatedError(f"{table.relation.schema}.{table.relation.name}")
        return table.record("t", None, False, None, self._tail, self._seen)

    def took(self) -> None:
        """The next change is done."""
        self._seen += 1
        if self._seen > self._skip:
            self.index = self._seen

    @property
    def _tail(self) -> Tail:
        if self.tail is None:
            raise NotPgoutputError("a change came outside of a transaction")
        return self.tail

    def _table(self, relation: int) -> Table | None:
        if self.tail is None or relation not in self.tables:
            raise NotPgoutputError(f"a change of relation {relation}, which was not described")
        return self.tables[relation]

    def _is_kept(self, table: Table, key: tuple[bytes, ...]) -> bool:
        """Whether no row that the snapshot has given shows the change of that key."""
        assert self.snapshot is not None
        number = self.snapshot.number_of(table.relation.schema, table.relation.name)
        if number is None:
            return True
        first, last = self.snapshot.parts_of(number)
        if self._saw > last or self._saw <= first:
            return self._saw > last
        text = tuple(part.decode("utf-8", "surrogateescape") for part in key)
        region = self.regions.get((number, text))
        if region is None:
            raise MustAskError(number, text)
        return region < self._saw


def _half(new: Texts | None) -> str:
    return "d" if new is None else "c"
