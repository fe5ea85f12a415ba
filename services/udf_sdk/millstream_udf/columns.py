"""Columns of a frame, to and from Python lists.

Works on encoded columns (`bytes`), as described in `proto/millstream/frame/v1/frame.proto`. The mesh also uses this
module, so both sides agree by construction. Everything here is pure, and raises `ValueError` for bytes that are not a
column.

Functions that visit every record also exist in C (`_columns.c`), which is built when the package is installed and a C
compiler is found. The C functions return None for columns that these functions would not write, including damaged ones,
and then the Python code below does the work. The two agree to the byte, and only Python raises.
"""

from __future__ import annotations

import importlib
import sys
import zlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from typing import Protocol, TypeVar, cast

from google.protobuf.message import DecodeError

from millstream_udf.fields import field
from millstream_udf.wire.frame.v1 import frame_pb2

KEY_SEPARATOR = b"\x1f"
"""Joins the parts of a key for the partition hash."""

_BYTES, _LISTS, _HEADERS = range(3)
"""Kinds of columns, for `_columns.c`."""

_SWAP = sys.byteorder == "big"
_OFFSET_BYTES = 4
_TIME_BYTES = 8
_OFFSET_BITS = 32

_Column = TypeVar("_Column", frame_pb2.SealedBytesColumn, frame_pb2.SealedListColumn, frame_pb2.SealedHeadersColumn)
_T = TypeVar("_T")
Groups = Sequence["array[int]"]
"""Indexes of records, in arrays of the type `I`."""


class _Compiled(Protocol):
    """The functions of `_columns.c`, which return None if the Python code has to do the work. Indexes are packed in the
    machine's byte order."""

    def slice(self, kind: int, column: bytes, start: int, stop: int, /) -> bytes | None:
        """See `slice_bytes`, `slice_lists` and `slice_headers`."""

    def pick(self, kind: int, column: bytes, records: int, groups: list[bytes], /) -> list[bytes] | None:
        """See `split_bytes`, `split_lists` and `split_headers`. -1 records: as many as there are."""

    def join(self, kind: int, columns: list[bytes], counts: list[int], /) -> bytes | None:
        """See `join_bytes`, `join_lists` and `join_headers`. A count of -1: as in `pick`."""

    def check(self, kind: int, column: bytes, records: int, text: bool, /) -> int | None:
        """The number of items of a valid column, all of whose texts are UTF-8 if it is `text`."""

    def unpack(self, column: bytes, /) -> list[bytes] | None:
        """See `unpack_bytes`."""

    def pack(self, items: object, /) -> bytes | None:
        """See `pack_bytes`."""

    def partition(self, column: bytes, records: int, partitions: int, keyless: int, /) -> list[bytes] | None:
        """See `partition_lists`."""

    def distinct(self, column: bytes, records: int, /) -> tuple[list[bytes], bytes] | None:
        """See `distinct_lists`."""

    def bounds(self, times: bytes, /) -> tuple[int, int] | None:
        """See `time_bounds`."""

    def pick_times(self, times: bytes, groups: list[bytes], /) -> list[bytes] | None:
        """See `split_times`."""


def _load() -> _Compiled | None:
    try:
        return cast("_Compiled", importlib.import_module("millstream_udf._columns"))
    except ImportError:
        # There was no C compiler at the installation, or the package is in an archive.
        return None


_compiled = _load()


def is_compiled() -> bool:
    """Whether the C code is used."""
    return _compiled is not None


def pack_offsets(offsets: Iterable[int]) -> bytes:
    """Little-endian unsigned 32-bit."""
    packed = array("I", offsets)
    if _SWAP:
        packed.byteswap()
    return packed.tobytes()


def unpack_offsets(data: bytes) -> array[int]:
    """The inverse of `pack_offsets`."""
    return _unpack_numbers("I", data, "offsets")


def pack_times(times_us: Iterable[int]) -> bytes:
    """Event times, microseconds: little-endian signed 64-bit."""
    packed = times_us if isinstance(times_us, array) and not _SWAP else array("q", times_us)
    if _SWAP:
        packed.byteswap()
    return packed.tobytes()


def unpack_times(data: bytes) -> array[int]:
    """The inverse of `pack_times`."""
    return _unpack_numbers("q", data, "times")


def _unpack_numbers(code: str, data: bytes, what: str) -> array[int]:
    numbers: array[int] = array(code)
    if len(data) % numbers.itemsize:
        raise ValueError(f"a column of {what} has {len(data)} bytes, which is not a multiple of {numbers.itemsize}")
    numbers.frombytes(data)
    if _SWAP:
        numbers.byteswap()
    return numbers


def slice_times(times: bytes, start: int, stop: int) -> bytes:
    """Times `start` to `stop`, exclusive."""
    return times[_TIME_BYTES * start : _TIME_BYTES * stop]


def split_times(times: bytes, groups: Groups) -> list[bytes]:
    """For each group of indexes, the times at these indexes."""
    if _compiled is not None and (split := _compiled.pick_times(times, _packed(groups))) is not None:
        return split
    plain = unpack_times(times)
    return [pack_times(array("q", _pick(plain, group))) for group in groups]


def time_bounds(times: bytes) -> tuple[int, int]:
    """The smallest and the largest time; at least one is required."""
    if _compiled is not None and (bounds := _compiled.bounds(times)) is not None:
        return bounds
    plain = unpack_times(times)
    return min(plain), max(plain)


def pack_bytes(items: Sequence[bytes]) -> bytes:
    """An encoded `BytesColumn` of `items`."""
    if _compiled is not None and (packed := _compiled.pack(items)) is not None:
        return packed
    return b"".join([*field(1, _offsets_of(items)), *field(2, b"".join(items))])


def pack_numbered(prefix: bytes, start: int, stop: int) -> bytes:
    """An encoded `BytesColumn` of texts: the prefix, and a number from `start` to `stop`, exclusive."""
    numbers, offsets = _numbered(len(prefix), start, stop)
    return b"".join([*field(1, offsets), *field(2, prefix.join(numbers))])


@lru_cache(maxsize=8)
def _numbered(prefix_bytes: int, start: int, stop: int) -> tuple[Sequence[bytes], bytes]:
    """The numbers, with an empty text before them, and the offsets. Cached, because senders send batches of one
    size."""
    numbers = [b"%d" % number for number in range(start, stop)]
    offsets = accumulate([prefix_bytes + len(number) for number in numbers], initial=0)
    return (b"", *numbers), pack_offsets(offsets)


def unpack_bytes(column: bytes) -> list[bytes]:
    """Items of an encoded `BytesColumn`; an empty column has none."""
    if not column:
        return []
    if _compiled is not None and (items := _compiled.unpack(column)) is not None:
        return items
    message = _parse(frame_pb2.SealedBytesColumn, column)
    return _cut(message.offsets, message.data)


def slice_bytes(column: bytes, start: int, stop: int) -> bytes:
    """Items `start` to `stop`, exclusive, of an encoded `BytesColumn`, as a column, without creating the items."""
    if not column:
        return b""
    if _compiled is not None and (part := _compiled.slice(_BYTES, column, start, stop)) is not None:
        return part
    return _slice(_parse(frame_pb2.SealedBytesColumn, column), start, stop).SerializeToString()


def split_bytes(column: bytes, groups: Groups) -> list[bytes]:
    """For each group of indexes, an encoded `BytesColumn` of the items at these indexes, in that order."""
    return _split(_BYTES, column, -1, groups, _unpack_bytes_of, pack_bytes)


def join_bytes(encoded: Sequence[bytes]) -> bytes:
    """An encoded `BytesColumn` of the items of all columns."""
    return _join(_BYTES, encoded, [-1] * len(encoded), _unpack_bytes_of, pack_bytes)


def check_bytes(column: bytes, records: int, *, text: bool = False) -> None:
    """Raises `ValueError` unless `records` items can be extracted from an encoded `BytesColumn`, as UTF-8 if it is
    `text`. Does not create them."""
    if not column and not records:
        return
    if _compiled is not None and _compiled.check(_BYTES, column, records, text) is not None:
        return
    message = _parse(frame_pb2.SealedBytesColumn, column)
    items = _count_offsets(message.offsets)
    if items != records:
        raise ValueError(f"a column has {items} items for {records} records")
    _check_items(message, text=text)


def check_lists(column: bytes, records: int, *, items_max: int | None = None) -> None:
    """The same for an encoded `ListColumn` of texts, which may be absent; with at most `items_max` texts."""
    if not column or _is_sound(_LISTS, column, records, items_max):
        return
    message = _parse(frame_pb2.SealedListColumn, column)
    items = max(0, _count_offsets(message.items.offsets))
    if items_max is not None and items > items_max:
        raise ValueError(f"a list column has {items} items; at most {items_max} are taken")
    if message.items.offsets or message.items.data:
        _check_items(message.items, text=True)
    if message.starts:
        _check_starts(message.starts, items, records)
    else:
        _check_entries(items, records)


def check_headers(column: bytes, records: int, *, items_max: int | None = None) -> None:
    """The same for an encoded `HeadersColumn`. (Names are UTF-8, or it could not be decoded.)"""
    if not column or _is_sound(_HEADERS, column, records, items_max):
        return
    message = _parse(frame_pb2.SealedHeadersColumn, column)
    names = len(message.names)
    if names != len(message.values):
        raise ValueError(f"a headers column has {names} names and {len(message.values)} values")
    if items_max is not None and names > items_max:
        raise ValueError(f"a headers column has {names} headers; at most {items_max} are taken")
    _check_starts(message.starts, names, records)


def check_rising(numbers: bytes) -> None:
    """Raises `ValueError` unless packed unsigned 32-bit numbers are below 2**31 and none is smaller than the previous
    one. It checks them together, as one long integer whose borrows show where a number decreases."""
    if len(numbers) % _OFFSET_BYTES:
        raise ValueError(f"a column of offsets has {len(numbers)} bytes, which is not a multiple of {_OFFSET_BYTES}")
    count = len(numbers) // _OFFSET_BYTES
    tops = _tops(count)
    all_of_them = int.from_bytes(numbers, "little")
    later = all_of_them >> _OFFSET_BITS
    earlier = all_of_them & ((1 << _OFFSET_BITS * max(0, count - 1)) - 1)
    # With the topmost bit set, no difference borrows from its neighbour, and it keeps that bit unless the number fell.
    kept = _tops(count - 1)
    if all_of_them & tops or ((later | kept) - earlier) & kept != kept:
        plain = unpack_offsets(numbers)
        place = next((n for n in range(1, count) if plain[n] < plain[n - 1]), None)
        raise ValueError("an offset is too large" if place is None else f"offsets fall at place {place}")


@lru_cache(maxsize=8)
def _tops(count: int) -> int:
    """The topmost bit of each of `count` packed numbers."""
    return int.from_bytes(b"\0\0\0\x80" * max(0, count), "little")


def pack_lists(lists: Sequence[Sequence[bytes]]) -> bytes:
    """An encoded `ListColumn`; empty if every list is empty."""
    if not any(lists):
        return b""
    items = list(chain.from_iterable(lists))
    column = frame_pb2.SealedListColumn(
        items=frame_pb2.SealedBytesColumn(offsets=_offsets_of(items), data=b"".join(items))
    )
    if any(len(parts) != 1 for parts in lists):
        column.starts = _offsets_of(lists)
    return column.SerializeToString()


def pack_no_lists(records: int) -> bytes:
    """An encoded `ListColumn` in which every list is empty, for places where an absent column has another meaning."""
    return frame_pb2.SealedListColumn(starts=pack_offsets([0] * (records + 1))).SerializeToString()


def unpack_lists(column: bytes, records: int) -> list[tuple[bytes, ...]]:
    """`records` tuples; all empty if the column is absent."""
    if not column:
        return [()] * records
    message = _parse(frame_pb2.SealedListColumn, column)
    items = _cut(message.items.offsets, message.items.data) if message.items.offsets else []
    if not message.starts:
        lists: list[tuple[bytes, ...]] = [(item,) for item in items]
    else:
        starts = unpack_offsets(message.starts)
        _check_ends(starts, len(items))
        lists = [tuple(items[start:stop]) for start, stop in pairwise(starts)]
    _check_entries(len(lists), records)
    return lists


def distinct_lists(column: bytes, records: int) -> tuple[list[bytes], array[int]] | None:
    """The entries of an encoded `ListColumn`, each once, with their items joined by 0x1f; and for each record, which of
    them it has. None if an item has 0x1e or 0x1f, if the only one of an entry is empty, or if this is not compiled."""
    if _compiled is None or (found := _compiled.distinct(column, records)) is None:
        return None
    entries, packed = found
    numbers = array("I")
    numbers.frombytes(packed)
    return entries, numbers


def slice_lists(column: bytes, start: int, stop: int) -> bytes:
    """Entries `start` to `stop`, exclusive, of an encoded `ListColumn`, as a column; empty if they are."""
    if not column:
        return b""
    if _compiled is not None and (part := _compiled.slice(_LISTS, column, start, stop)) is not None:
        return part
    message = _parse(frame_pb2.SealedListColumn, column)
    if not message.starts:
        return frame_pb2.SealedListColumn(items=_slice(message.items, start, stop)).SerializeToString()
    starts = _part_of(message.starts, start, stop)
    if starts[0] == starts[-1]:
        return b""
    items = _slice(message.items, starts[0], starts[-1])
    one_each = starts == array("I", range(starts[0], starts[0] + len(starts)))
    return frame_pb2.SealedListColumn(starts=b"" if one_each else _from_zero(starts), items=items).SerializeToString()


def split_lists(column: bytes, records: int, groups: Groups) -> list[bytes]:
    """For each group of indexes, an encoded `ListColumn` of the entries at these indexes, in that order; empty if they
    are."""
    return _split(_LISTS, column, records, groups, unpack_lists, pack_lists)


def join_lists(encoded: Sequence[bytes], records: Sequence[int]) -> bytes:
    """An encoded `ListColumn` of the entries of all columns, with their numbers of records; empty if they are."""
    return _join(_LISTS, encoded, records, unpack_lists, pack_lists)


def partition_of(keys: Iterable[bytes], partitions: int) -> int:
    """The partition for a record with these key parts."""
    return zlib.crc32(KEY_SEPARATOR.join(keys)) % partitions


def partition_lists(column: bytes, records: int, partitions: int, *, keyless: int) -> list[array[int]]:
    """For each partition, the indexes of its records, by their keys (a `ListColumn`). A record without keys goes to the
    partition `keyless`."""
    if _compiled is not None and (found := _compiled.partition(column, records, partitions, keyless)) is not None:
        return [array("I", indexes) for indexes in found]
    groups = [array("I") for _ in range(partitions)]
    for index, keys in enumerate(unpack_lists(column, records)):
        groups[partition_of(keys, partitions) if keys else keyless].append(index)
    return groups


def pack_headers(headers: Sequence[Mapping[str, bytes]]) -> bytes:
    """An encoded `HeadersColumn`; empty if no record has headers."""
    if not any(headers):
        return b""
    return frame_pb2.SealedHeadersColumn(
        starts=_offsets_of(headers),
        names=list(chain.from_iterable(headers)),
        values=list(chain.from_iterable(h.values() for h in headers)),
    ).SerializeToString()


def pack_no_headers(records: int) -> bytes:
    """An encoded `HeadersColumn` in which no record has headers, for places where an absent column has another
    meaning."""
    return frame_pb2.SealedHeadersColumn(starts=pack_offsets([0] * (records + 1))).SerializeToString()


def unpack_headers(column: bytes, records: int) -> list[dict[str, bytes]]:
    """One dictionary per record; all empty if the column is absent."""
    if not column:
        return [{} for _ in range(records)]
    return [dict(pairs) for pairs in _pairs(column, records)]


def slice_headers(column: bytes, start: int, stop: int) -> bytes:
    """Records `start` to `stop`, exclusive, of an encoded `HeadersColumn`, as a column; empty if none has any."""
    if not column:
        return b""
    if _compiled is not None and (cut := _compiled.slice(_HEADERS, column, start, stop)) is not None:
        return cut
    message = _parse(frame_pb2.SealedHeadersColumn, column)
    starts = _part_of(message.starts, start, stop)
    if starts[0] == starts[-1]:
        return b""
    if starts[-1] > min(len(message.names), len(message.values)):
        raise ValueError("a headers column ends before its last entry")
    return frame_pb2.SealedHeadersColumn(
        starts=_from_zero(starts),
        names=message.names[starts[0] : starts[-1]],
        values=message.values[starts[0] : starts[-1]],
    ).SerializeToString()


def split_headers(column: bytes, records: int, groups: Groups) -> list[bytes]:
    """For each group of indexes, an encoded `HeadersColumn` of the entries at these indexes, in that order; empty if
    they are."""
    return _split(_HEADERS, column, records, groups, _pairs, _pack_pairs)


def join_headers(encoded: Sequence[bytes], records: Sequence[int]) -> bytes:
    """An encoded `HeadersColumn` of the entries of all columns, with their numbers of records; empty if they are."""
    return _join(_HEADERS, encoded, records, _pairs, _pack_pairs)


def _pairs(column: bytes, records: int) -> list[list[tuple[str, bytes]]]:
    """Names and values of each record's headers, as stored: a name may be repeated."""
    if not column:
        return [[] for _ in range(records)]
    message = _parse(frame_pb2.SealedHeadersColumn, column)
    starts = unpack_offsets(message.starts)
    pairs = list(zip(message.names, message.values, strict=False))
    if len(message.names) != len(message.values) or len(starts) != records + 1:
        raise ValueError(f"a headers column has {len(starts) - 1} entries for {records} records")
    _check_ends(starts, len(pairs))
    return [pairs[start:stop] for start, stop in pairwise(starts)]


def _pack_pairs(entries: Sequence[Sequence[tuple[str, bytes]]]) -> bytes:
    if not any(entries):
        return b""
    names, values = zip(*chain.from_iterable(entries), strict=True)
    return frame_pb2.SealedHeadersColumn(starts=_offsets_of(entries), names=names, values=values).SerializeToString()


def _unpack_bytes_of(column: bytes, records: int) -> list[bytes]:
    return unpack_bytes(column)


def _split(
    kind: int,
    column: bytes,
    records: int,
    groups: Groups,
    unpack: Callable[[bytes, int], Sequence[_T]],
    pack: Callable[[Sequence[_T]], bytes],
) -> list[bytes]:
    """For each group of indexes, a column of this kind with the entries at these indexes, in that order."""
    if not column:
        return [b""] * len(groups)
    if _compiled is not None and (split := _compiled.pick(kind, column, records, _packed(groups))) is not None:
        return split
    entries = unpack(column, records)
    return [pack(_pick(entries, group)) for group in groups]


def _join(
    kind: int,
    encoded: Sequence[bytes],
    records: Sequence[int],
    unpack: Callable[[bytes, int], Sequence[_T]],
    pack: Callable[[Sequence[_T]], bytes],
) -> bytes:
    """A column of this kind with the entries of all columns."""
    if _compiled is not None and (joined := _compiled.join(kind, list(encoded), list(records))) is not None:
        return joined
    return pack(list(chain.from_iterable(map(unpack, encoded, records))))


def _packed(groups: Groups) -> list[bytes]:
    return [group.tobytes() for group in groups]


def _pick(items: Sequence[_T], indexes: Iterable[int]) -> list[_T]:
    return [items[index] for index in indexes]


def _is_sound(kind: int, column: bytes, records: int, items_max: int | None) -> bool:
    """Whether a column is known to be valid. False means unknown."""
    items = None if _compiled is None else _compiled.check(kind, column, records, True)
    return items is not None and (items_max is None or items <= items_max)


def _count_offsets(offsets: bytes) -> int:
    """Number of items between packed offsets; -1 if there are no offsets."""
    return len(offsets) // _OFFSET_BYTES - 1


def _check_items(column: frame_pb2.SealedBytesColumn, *, text: bool) -> None:
    data = column.data
    _check_ends(unpack_offsets(column.offsets[:_OFFSET_BYTES] + column.offsets[-_OFFSET_BYTES:]), len(data))
    check_rising(column.offsets)
    if text and not data.isascii():
        _check_text(data, unpack_offsets(column.offsets))


def _check_text(data: bytes, offsets: array[int]) -> None:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"a text is not UTF-8: {error}") from error
    # The whole data is UTF-8, so each text is, too, if it begins with a character.
    if any(data[offset] & 0xC0 == 0x80 for offset in offsets if offset < len(data)):
        raise ValueError("a text is not UTF-8: it begins in the middle of a character")


def _check_starts(starts: bytes, items: int, records: int) -> None:
    _check_entries(_count_offsets(starts), records)
    _check_ends(unpack_offsets(starts[:_OFFSET_BYTES] + starts[-_OFFSET_BYTES:]), items)
    check_rising(starts)


def _check_entries(entries: int, records: int) -> None:
    if entries != records:
        raise ValueError(f"a list column has {entries} entries for {records} records")


def _slice(column: frame_pb2.SealedBytesColumn, start: int, stop: int) -> frame_pb2.SealedBytesColumn:
    offsets = _part_of(column.offsets, start, stop)
    if offsets[-1] > len(column.data):
        raise ValueError("offsets pass the end of the data")
    return frame_pb2.SealedBytesColumn(offsets=_from_zero(offsets), data=column.data[offsets[0] : offsets[-1]])


def _part_of(offsets_data: bytes, start: int, stop: int) -> array[int]:
    """The offsets of the items `start` to `stop`, exclusive."""
    part = unpack_offsets(offsets_data[_OFFSET_BYTES * start : _OFFSET_BYTES * (stop + 1)])
    if len(part) != stop + 1 - start:
        raise ValueError(f"a column has no items {start} to {stop}")
    if any(before > after for before, after in pairwise(part)):
        raise ValueError("offsets fall")
    return part


def _from_zero(offsets: array[int]) -> bytes:
    return pack_offsets(offset - offsets[0] for offset in offsets)


def _offsets_of(items: Sequence[Sequence[object]] | Sequence[bytes] | Sequence[Mapping[str, bytes]]) -> bytes:
    return pack_offsets(accumulate(map(len, items), initial=0))


def _cut(offsets_data: bytes, data: bytes) -> list[bytes]:
    offsets = unpack_offsets(offsets_data)
    _check_ends(offsets, len(data))
    items = [data[start:stop] for start, stop in pairwise(offsets)]
    # Within the data, decreasing offsets give slices whose lengths do not add up.
    if sum(map(len, items)) != len(data) or max(offsets) != len(data):
        raise ValueError("offsets fall")
    return items


def _check_ends(offsets: array[int], length: int) -> None:
    if not offsets or offsets[0] != 0 or offsets[-1] != length:
        raise ValueError(f"offsets do not begin at 0 and end at {length}")


def _parse(kind: type[_Column], data: bytes) -> _Column:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise ValueError(f"not a column: {error}") from error
