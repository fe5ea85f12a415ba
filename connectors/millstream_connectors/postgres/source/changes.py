"""Converts the messages of a slot to records: a JSON object for each change, and the place after it. Pure.

    Begin ─► Relation, Change, Truncate … ─► Commit          Passed: nothing more was committed before
      └─ lsn of the commit, index in the transaction ─► the position

A place is a position in the server's WAL and a count: all transactions that were committed before it are done, and that
many changes of the one that was committed there. Above it: the lane, which asks the server for what this module cannot
know.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from millstream.limits import RECORD_BYTES_MAX
from millstream_connectors.postgres.replication import lsn_text
from millstream_connectors.postgres.source.pgoutput import (
    UNCHANGED,
    Begin,
    NotPgoutputError,
    Relation,
    ReplicatedChange,
    Texts,
    TransactionEnd,
)
from millstream_connectors.postgres.source.snapshot import Key, Snapshot
from millstream_connectors.postgres.source.texts import KnownType, quoted, to_json
from millstream_connectors.shared.record_batch import RecordBatch

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class MustAskError(Exception):
    """Only the server can tell which part of the snapshot has a key."""

    def __init__(self, table: int, key: Key) -> None:
        super().__init__(table, key)
        self.table = table
        self.key = key


class TruncatedError(Exception):
    """A table was truncated between two parts of its snapshot, so rows from before and after cannot be
    distinguished."""


class ChangeRecord(NamedTuple):
    """A record."""

    value: bytes
    keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Tail:
    """The members at the end of all records of a transaction."""

    text: bytes
    time_us: int


def tail_of(lsn: int, time_us: int, xid: int | None) -> Tail:
    """The tail for records of this commit."""
    commit = (_EPOCH + timedelta(microseconds=time_us)).isoformat(timespec="microseconds").replace("+00:00", "Z")
    number = "null" if xid is None else str(xid)
    return Tail(f',"lsn":"{lsn_text(lsn)}","xid":{number},"commitTime":"{commit}","index":'.encode(), time_us)


class Table:
    """The conversion of a relation's rows to records."""

    def __init__(self, relation: Relation, keys: Sequence[str], user_types: Mapping[int, KnownType]) -> None:
        """`keys`: the columns that identify a row, the most significant one first."""
        self.relation = relation
        names = [column.name for column in relation.columns]
        self.keys = [names.index(name) for name in keys if name in names]
        self._members = [
            (quoted(column.name.encode()), quoted(column.name.encode()) + b":", to_json(column.type_oid, user_types))
            for column in relation.columns
        ]
        self.parts = [
            ((b"," if number else b"{") + member, None if convert is bytes else convert, number in self.keys)
            for number, (_, member, convert) in enumerate(self._members)
        ]
        """For each column of a whole row: the text before its value, the conversion to JSON, and whether it belongs to
        the key."""
        self.is_in_order = self.keys == sorted(self.keys)
        """Whether the columns of the key are in the order of the row."""
        place = b'"schema":' + quoted(relation.schema.encode()) + b',"table":' + quoted(relation.name.encode())
        self.inserted = b'{"op":"c",%b,"before":null,"after":' % place
        self._heads = {op: b'{"op":"%b",%b,"before":' % (op.encode(), place) for op in "rcudt"}

    def key_of(self, texts: Texts, older: Texts | None = None) -> tuple[bytes, ...]:
        """The values that identify a row; values that an update did not send come from the old row."""
        found: list[bytes] = []
        for index in self.keys:
            text = texts[index]
            if text is UNCHANGED and older is not None:
                text = older[index]
            if isinstance(text, bytes):
                found.append(text)
        return tuple(found)

    def record(
        self, op: str, old: Texts | None, is_whole: bool, new: Texts | None, tail: Tail, index: int
    ) -> ChangeRecord:
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
        return ChangeRecord(b'%b%b,"after":%b%b%d}' % (self._heads[op], before, after, tail.text, index), keys)

    def _row(self, texts: Texts, only: Sequence[int] | None) -> tuple[bytes, list[bytes]]:
        if len(texts) != len(self._members):
            what = f"a row of {self.relation.schema}.{self.relation.name} has {len(texts)} values"
            raise NotPgoutputError(f"{what}, but its table has {len(self._members)} columns")
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


class SlotChanges:
    """A lane's place in a slot's changes, and their conversion."""

    def __init__(self, lsn: int, index: int, snapshot: Snapshot | None) -> None:
        self.lsn = lsn
        self.index = index
        self.snapshot = snapshot
        self.tables: dict[int, Table | None] = {}
        """By the relation's id; None if it is not read."""
        self.regions: dict[tuple[int, Key], int] = {}
        """Which part of the snapshot has a key, for keys that the server was asked about."""
        self.tail: Tail | None = None
        """The tail of the current transaction; None between transactions."""
        self._seen = 0
        """Number of its changes that were taken."""
        self._skip = 0
        """Number of its changes that were read before."""
        self._saw = 0
        """The first part of the snapshot that saw it."""

    def begin(self, message: Begin) -> None:
        """A transaction begins."""
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

    def commit(self, message: TransactionEnd) -> None:
        """The transaction is complete."""
        self.tail = None
        self.passed(message.end_lsn)

    def passed(self, lsn: int) -> None:
        """Nothing that was committed before this position is missing."""
        if self.tail is None and lsn > self.lsn:
            self.lsn, self.index = lsn, 0

    def made(self, message: ReplicatedChange) -> ChangeRecord | None:
        """The record of the next change; None if it has none. The place does not advance before `took`."""
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
            # A row whose key changed has moved from the range of one part to that of another.
            if op == "u" and (new is None or (old is None and message.old is not None)):
                op = "d" if new is None else "c"
        return table.record(op, old, message.is_whole and old is not None, new, self._tail, self._seen)

    def insertions(self, waiting: deque[Any], into: RecordBatch, records_max: int, bytes_max: int) -> None:
        """Take insertions into one table from the front of the queue, as long as they are ordinary. It does what
        `made`, `took` and their caller do one by one, in a fast loop."""
        if self.tail is None or self._seen < self._skip:
            return
        if self.snapshot is not None and self._saw < len(self.snapshot.parts):
            return
        tail, seen, size = self.tail, self._seen, into.size
        values, keys, before = into.values, into.keys, len(into.values)
        relation, table = b"", None
        while waiting and len(values) < records_max:
            data = waiting[0]
            if type(data) is not bytes or data[:1] != b"I" or data[5:6] != b"N":
                break
            if data[1:5] != relation:
                relation = data[1:5]
                table = self.tables.get(int.from_bytes(relation, "big"))
                if table is None or not table.is_in_order:
                    break
            if table is None or int.from_bytes(data[6:8], "big") != len(table.parts):
                break
            found = [table.inserted]
            key: list[bytes] = []
            at = 8
            for head, convert, is_key in table.parts:
                kind = data[at : at + 1]
                if kind == b"t":
                    start = at + 5
                    at = start + int.from_bytes(data[at + 1 : start], "big")
                    text = data[start:at]
                    found += (head, text if convert is None else convert(text))
                    if is_key:
                        key.append(text)
                elif kind == b"n":
                    at += 1
                    found += (head, b"null")
                else:
                    at = 0
                    break
            found += (b"}", tail.text, b"%d}" % seen)
            value = b"".join(found)
            if at != len(data) or len(value) > RECORD_BYTES_MAX or (values and size + len(value) > bytes_max):
                break
            waiting.popleft()
            seen += 1
            size += len(value)
            values.append(value)
            keys.append(tuple(key))
        into.times.extend(array("q", [tail.time_us]) * (len(values) - before))
        into.size = size
        if seen > self._seen:
            self._seen = self.index = seen

    def truncated(self, relation: int) -> ChangeRecord | None:
        """The record of a table that was truncated. See `made`."""
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
        """Advance past the next change."""
        self._seen += 1
        if self._seen > self._skip:
            self.index = self._seen

    @property
    def _tail(self) -> Tail:
        if self.tail is None:
            raise NotPgoutputError("a change arrived outside a transaction")
        return self.tail

    def _table(self, relation: int) -> Table | None:
        if self.tail is None or relation not in self.tables:
            raise NotPgoutputError(f"a change of relation {relation}, which the server has not described")
        return self.tables[relation]

    def _is_kept(self, table: Table, key: tuple[bytes, ...]) -> bool:
        """Whether no row that was read in the snapshot shows the change of that key."""
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
