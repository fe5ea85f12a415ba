"""The bytes of a checkpoint: open windows as columns, as `proto/millstream/reduce/v1/windows.proto` says. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from millstream import codes
from millstream.errors import DamageError, UserError
from millstream.wire.reduce.v1 import windows_pb2
from millstream_reduce.values import Key, Location, Rows
from millstream_reduce.windows.entries import Triple

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Panes:
    """Fixed and sliding windows."""

    numbers: list[int]
    """Ascending."""
    pieces: list[int]
    """Of each pane."""
    triples: list[Triple]
    """Pieces, pane by pane; the first number counts the entries of the checkpoint."""
    first: int | None
    """The first window that is not handed over; None: all that are closed are."""
    frozen: list[tuple[int, int]]
    """Windows up to the first number hold only rows of so many entries."""
    early: list[tuple[int, int, int]]
    """Window, number of its last early result, and the rows that it held."""


@dataclass(frozen=True, slots=True)
class SlotTable:
    """Sessions and global windows: columns, one row for each open window."""

    starts: Rows
    ends: Rows
    early: Rows
    seen: Rows
    kept: Rows
    """1 where it holds what results so far were over."""
    pieces: Rows
    """How many each has."""
    keys: list[Key]
    triples: Rows
    """Three columns; the first counts the entries of the checkpoint."""
    floor_us: int
    named: dict[Key, int]


def encode_panes(settings: str, closed_us: int, locations: Sequence[Location], panes: Panes) -> bytes:
    message = _message(settings, closed_us, locations, np.array(panes.triples, np.int64).reshape(-1, 3))
    message.panes.numbers = _packed(panes.numbers, "<i8")
    message.panes.pieces = _packed(panes.pieces, "<u4")
    if panes.first is not None:
        message.panes.first = panes.first
    for window, entries in panes.frozen:
        message.panes.frozen.add(window=window, entries=entries)
    for window, number, rows in panes.early:
        message.panes.early.add(window=window, number=number, rows=rows)
    return message.SerializeToString()


def decode_panes(checkpoint: bytes, settings: str) -> tuple[int, list[Location], Panes]:
    """Inverse of `encode_panes`: `closed_us`, entries, windows.

    Raises:
        DamageError: it is not such a checkpoint.
        UserError: it is one of other settings.
    """
    message, locations, triples = _parsed(checkpoint, settings, "panes")
    open_ = message.panes
    panes = Panes(
        numbers=_column(open_.numbers, "<i8").tolist(),
        pieces=_column(open_.pieces, "<u4").tolist(),
        triples=[(entry, first, rows) for entry, first, rows in triples.tolist()],
        first=open_.first if open_.HasField("first") else None,
        frozen=[(one.window, one.entries) for one in open_.frozen],
        early=[(one.window, one.number, one.rows) for one in open_.early],
    )
    _check(len(panes.numbers) == len(panes.pieces) and sum(panes.pieces) == len(panes.triples))
    return message.closed_us, locations, panes


def encode_slots(settings: str, closed_us: int, locations: Sequence[Location], slots: SlotTable) -> bytes:
    message = _message(settings, closed_us, locations, slots.triples)
    open_ = message.slots
    open_.starts, open_.ends = _packed(slots.starts, "<i8"), _packed(slots.ends, "<i8")
    open_.early, open_.seen = _packed(slots.early, "<u4"), _packed(slots.seen, "<u8")
    open_.kept, open_.pieces = _packed(slots.kept, "u1"), _packed(slots.pieces, "<u4")
    keys = [key for key in slots.keys if key is not None]
    # Windows of all rows have no key; otherwise each has one.
    open_.keyless = len(keys) < len(slots.keys)
    open_.key_lengths, open_.keys = _packed([len(key) for key in keys], "<u4"), b"".join(keys)
    open_.floor_us = slots.floor_us
    for name, end_us in slots.named.items():
        open_.named.add(key=name, end_us=end_us)
    return message.SerializeToString()


def decode_slots(checkpoint: bytes, settings: str) -> tuple[int, list[Location], SlotTable]:
    """Inverse of `encode_slots`: `closed_us`, entries, windows.

    Raises:
        DamageError: it is not such a checkpoint.
        UserError: it is one of other settings.
    """
    message, locations, triples = _parsed(checkpoint, settings, "slots")
    open_ = message.slots
    starts = _column(open_.starts, "<i8")
    slots = SlotTable(
        starts=starts,
        ends=_column(open_.ends, "<i8"),
        early=_column(open_.early, "<u4"),
        seen=_column(open_.seen, "<u8"),
        kept=_column(open_.kept, "u1"),
        pieces=_column(open_.pieces, "<u4"),
        keys=[None] * len(starts) if open_.keyless else _keys(open_),
        triples=triples,
        floor_us=open_.floor_us,
        named={one.key if one.HasField("key") else None: one.end_us for one in open_.named},
    )
    columns = (slots.ends, slots.early, slots.seen, slots.kept, slots.pieces, slots.keys)
    _check(all(len(column) == len(starts) for column in columns) and int(slots.pieces.sum()) == len(triples))
    return message.closed_us, locations, slots


def set_back(checkpoint: bytes, closed_us: int, floor_us: int, last: int) -> bytes:
    """The same open windows, with windows closed up to an earlier time only.

    Args:
        checkpoint: As `encode_panes` or `encode_slots` has made it.
        closed_us: Windows that end by then, lateness included, stay closed.
        floor_us: The same without the lateness.
        last: Of panes, the number of the last window that stays closed.
    """
    message = windows_pb2.OpenWindows.FromString(checkpoint)
    message.closed_us = closed_us
    if message.HasField("slots"):
        message.slots.floor_us = floor_us
        return message.SerializeToString()
    panes = message.panes
    # Windows of a later time were handed over; those before them are open again.
    if panes.HasField("first") and panes.first > last + 1:
        panes.ClearField("first")
    frozen = [one for one in panes.frozen if one.window <= last]
    del panes.frozen[:]
    panes.frozen.extend(frozen)
    return message.SerializeToString()


def renamed(checkpoint: bytes, key_of: Callable[[bytes, Location, int], bytes]) -> bytes:
    """The same open windows of other keys. `key_of`: gets the key of a window, and the entry and the number of its
    first row."""
    message = windows_pb2.OpenWindows.FromString(checkpoint)
    open_ = message.slots
    if not message.HasField("slots") or open_.keyless:
        return checkpoint
    entries, rows = _column(message.piece_entries, "<u4").tolist(), _column(message.piece_first_rows, "<u4").tolist()
    places = (_column(column, "<u8").tolist() for column in (message.segments, message.offsets, message.lengths))
    locations = list(map(Location, *places))
    pieces = _column(open_.pieces, "<u4")
    firsts = (np.cumsum(pieces) - pieces).tolist()
    old = _keys(open_)
    new = [key_of(key or b"", locations[entries[at]], rows[at]) for key, at in zip(old, firsts, strict=True)]
    open_.key_lengths, open_.keys = _packed([len(key) for key in new], "<u4"), b"".join(new)
    # The last results of a key that has no window now keep their name.
    ends = {one.key: one.end_us for one in open_.named}
    for key, name in zip(old, new, strict=True):
        if name != key and key in ends and name not in ends:
            ends[name] = ends[key]
            open_.named.add(key=name, end_us=ends[key])
    return message.SerializeToString()


def _keys(open_: windows_pb2.Slots) -> list[Key]:
    ends = np.cumsum(_column(open_.key_lengths, "<u4")).tolist()
    _check((ends[-1] if ends else 0) == len(open_.keys))
    joined = open_.keys
    return [joined[begin:end] for begin, end in pairwise([0, *ends])]


def _message(settings: str, closed_us: int, locations: Sequence[Location], triples: Rows) -> windows_pb2.OpenWindows:
    segments, offsets, lengths = zip(*locations, strict=True) if locations else ((), (), ())
    return windows_pb2.OpenWindows(
        format=FORMAT,
        settings=settings,
        closed_us=closed_us,
        segments=_packed(segments, "<u8"),
        offsets=_packed(offsets, "<u8"),
        lengths=_packed(lengths, "<u8"),
        piece_entries=_packed(triples[:, 0], "<u4"),
        piece_first_rows=_packed(triples[:, 1], "<u4"),
        piece_rows=_packed(triples[:, 2], "<u4"),
    )


def _parsed(checkpoint: bytes, settings: str, kind: str) -> tuple[windows_pb2.OpenWindows, list[Location], Rows]:
    try:
        message = windows_pb2.OpenWindows.FromString(checkpoint)
    except DecodeError as error:
        raise DamageError(
            codes.CHECKPOINT_UNREADABLE, f"a checkpoint of open windows cannot be read ({error}): restore the log"
        ) from error
    if message.format != FORMAT:
        raise DamageError(
            codes.CHECKPOINT_UNREADABLE,
            f"a checkpoint of open windows has format {message.format}, this version reads {FORMAT}: continue with the"
            " version that wrote it, or restore the log",
        )
    open_ = message.WhichOneof("open")
    _check(open_ is not None)
    if message.settings != settings:
        raise UserError(
            codes.WINDOWS_CHANGED,
            f"the open windows have different settings ({message.settings}) than the vertex has now ({settings}): "
            "restore those settings and drain the pipeline, or start it with a new data directory",
        )
    places = [_column(column, "<u8").tolist() for column in (message.segments, message.offsets, message.lengths)]
    pieces = [
        _column(column, "<u4") for column in (message.piece_entries, message.piece_first_rows, message.piece_rows)
    ]
    _check(open_ == kind)
    _check(len({len(column) for column in places}) == 1 and len({len(column) for column in pieces}) == 1)
    locations = [Location(*values) for values in zip(*places, strict=True)]
    triples = np.stack(pieces, axis=1)
    _check(not len(triples) or int(triples[:, 0].max()) < len(locations))
    return message, locations, triples


def _check(whole: bool) -> None:
    if not whole:
        raise DamageError(
            codes.CHECKPOINT_UNREADABLE, "a checkpoint of open windows does not fit together: restore the log"
        )


def _packed(values: Sequence[int] | npt.NDArray[Any], dtype: str) -> bytes:
    return np.asarray(values, dtype).tobytes()


def _column(packed: bytes, dtype: str) -> Rows:
    _check(len(packed) % np.dtype(dtype).itemsize == 0)
    return np.frombuffer(packed, dtype).astype(np.int64)
