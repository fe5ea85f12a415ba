"""Parses `pgoutput`: the messages with which PostgreSQL's logical replication describes changes. Pure.

    bytes of one message ─► Begin, Commit, Relation, Change, Truncate; None for messages that a source does not need

Version 1 of the protocol: whole transactions, in the order in which they were committed, values as text. Anything else
raises `NotPgoutputError`. Above it: the source's changes. It knows no connection and no JSON.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias

from millstream.extract import EPOCH_US

_BEGIN = struct.Struct("!xQqI")
_COMMIT = struct.Struct("!xxQQq")
_YEAR_2000_US = 946_684_800_000_000
"""PostgreSQL counts from the year 2000."""
_NULL, _UNCHANGED, _TEXT = b"nut"
_INSERT, _UPDATE, _DELETE = b"IUD"
_KEY, _OLD, _NEW = b"KON"
_SET_ASIDE = b"OYM"
"""Messages to ignore: origins, types, and messages of applications."""


class NotPgoutputError(ValueError):
    """Bytes that are not a message of this protocol."""


class UnchangedValue(Enum):
    """A large value that an UPDATE did not change, so it is not sent."""

    UNCHANGED = "unchanged"


UNCHANGED = UnchangedValue.UNCHANGED
Texts: TypeAlias = list[bytes | UnchangedValue | None]
"""The values of a row, as the server writes them, in the order of the relation's columns."""


class Begin(NamedTuple):
    """A transaction begins."""

    commit_lsn: int
    """Position of its commit."""
    time_us: int
    """Time of its commit, since 1970."""
    xid: int
    """Its id, with 32 bits."""


class TransactionEnd(NamedTuple):
    """The transaction is complete."""

    end_lsn: int
    """Position after it; later transactions were committed at or after this position."""


class Column(NamedTuple):
    """A column of a relation."""

    name: str
    type_oid: int
    in_identity: bool
    """Whether it is part of the row's identity in updates and deletions."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A table, in its state when the following changes were written."""

    oid: int
    schema: str
    name: str
    identity: str
    """How rows are identified: `d` by the primary key, `i` by an index, `f` by all columns, `n` not at all."""
    columns: tuple[Column, ...]


class ReplicatedChange(NamedTuple):
    """A row that was inserted, updated or deleted."""

    op: str
    """`c`, `u` or `d`."""
    relation: int
    old: Texts | None
    """The old values that identify the row, or all of them if `is_whole`; None if the server did not send them."""
    is_whole: bool
    new: Texts | None


class Truncate(NamedTuple):
    """Tables that were truncated."""

    relations: tuple[int, ...]


Message: TypeAlias = Begin | TransactionEnd | Relation | ReplicatedChange | Truncate


def parse(data: bytes) -> Message | None:
    """Parse one message; None for one that is not about rows."""
    try:
        kind = data[0]
        if kind in (_INSERT, _UPDATE, _DELETE):
            return _change(data, kind)
        if kind == b"B"[0]:
            commit_lsn, time_us, xid = _BEGIN.unpack(data)
            return Begin(commit_lsn, EPOCH_US(time_us + _YEAR_2000_US), xid)
        if kind == b"C"[0]:
            return TransactionEnd(_COMMIT.unpack(data)[1])
        if kind == b"R"[0]:
            return _relation(data)
        if kind == b"T"[0]:
            (count,) = struct.unpack_from("!I", data, 1)
            return Truncate(struct.unpack(f"!{count}I", data[6:]))
    except (IndexError, struct.error, ValueError, MemoryError, OverflowError) as error:
        raise NotPgoutputError(f"{data[:40]!r} is not a message of pgoutput: {error}") from error
    if kind in _SET_ASIDE:
        return None
    raise NotPgoutputError(f"{data[:40]!r} is not a message of version 1 of pgoutput")


def _change(data: bytes, kind: int) -> ReplicatedChange:
    relation = int.from_bytes(data[1:5], "big")
    part, at = data[5], 6
    old: Texts | None = None
    is_whole = False
    if part in (_KEY, _OLD):
        is_whole = part == _OLD
        old, at = _row(data, at)
        if kind == _UPDATE:
            part, at = data[at], at + 1
    new: Texts | None = None
    if kind != _DELETE:
        if part != _NEW:
            raise NotPgoutputError(f"{data[:40]!r}: expected a row, found {bytes((part,))!r}")
        new, at = _row(data, at)
    # A slice past the end is too short, which shows here.
    if at != len(data) or (kind == _DELETE) != (new is None and old is not None):
        raise NotPgoutputError(f"{data[:40]!r} has {len(data)} bytes, expected {at}")
    return ReplicatedChange("c" if kind == _INSERT else "u" if kind == _UPDATE else "d", relation, old, is_whole, new)


def _row(data: bytes, at: int) -> tuple[Texts, int]:
    texts: Texts = []
    add = texts.append
    count = data[at] << 8 | data[at + 1]
    at += 2
    for _ in range(count):
        kind = data[at]
        if kind == _TEXT:
            start = at + 5
            at = start + int.from_bytes(data[at + 1 : start], "big")
            add(data[start:at])
        else:
            at += 1
            if kind == _NULL:
                add(None)
            elif kind == _UNCHANGED:
                add(UNCHANGED)
            else:
                raise NotPgoutputError(f"{data[:40]!r}: {bytes((kind,))!r} is not a kind of value")
    return texts, at


def _relation(data: bytes) -> Relation:
    schema, at = _name(data, 5)
    name, at = _name(data, at)
    identity = chr(data[at])
    (count,) = struct.unpack_from("!H", data, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        flags = data[at]
        column, at = _name(data, at + 1)
        (type_oid,) = struct.unpack_from("!I", data, at)
        at += 8
        columns.append(Column(column, type_oid, bool(flags & 1)))
    if at != len(data):
        raise NotPgoutputError(f"{data[:40]!r} has {len(data)} bytes, expected {at}")
    # The server's own catalog has an empty name here.
    return Relation(int.from_bytes(data[1:5], "big"), schema or "pg_catalog", name, identity, tuple(columns))


def _name(data: bytes, at: int) -> tuple[str, int]:
    end = data.find(b"\0", at)
    if end < 0:
        raise NotPgoutputError(f"{data[:40]!r}: a name has no end")
    return data[at:end].decode(), end + 1
