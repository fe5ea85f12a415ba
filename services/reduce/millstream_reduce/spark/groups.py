"""The rows of a task as groups: one for each window and, in a keyed vertex, each key of it. In Spark's Python workers.

    whole windows ─► rows ─► sorted by window and key ─► parts of many groups

Above it: `reducing`. Below it: `rows`. A group's rows stand in the order of arrival. Memory is bounded by `PASS_BYTES`,
however large a window is: one that is not keyed is handed on as it is read; of one that is keyed, some keys at a time,
so that it is read several times. Only a single key's rows may be more, and these are handed on as they are read too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from millstream.limits import MIB
from millstream_reduce.spark.manifest import KEY_SEPARATOR, Manifest, Runs
from millstream_reduce.spark.rows import Chunk, Log, chunks_of, join
from millstream_udf.context import Context
from millstream_udf.groups import Group, Part
from millstream_udf.reduce_arrow import arrow_part
from millstream_udf.values import Window

_compute: Any = pyarrow.compute

PASS_BYTES = 256 * MIB
"""Of values and headers that are held at a time."""
PART_ROWS = 65536
"""Rows in a part at most."""

_Codes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class GroupsPart:
    """A part, and the window that each of the groups that begin in it belongs to."""

    part: Part
    windows: Sequence[int]


class GroupReader:
    """Reads the groups of a task."""

    def __init__(
        self, manifest: Manifest, *, keyed: bool, within: Context | None = None, pass_bytes: int = PASS_BYTES
    ) -> None:
        """`within`: the context that all groups share; they have it with what their windows came with."""
        self._manifest = manifest
        within = within or Context()
        self._contexts = [replace(within, **origin._asdict()) for origin in manifest.origins]
        self._keyed = keyed
        self._pass_bytes = pass_bytes
        self._names = ("value", "event_time", "headers") if keyed else ("value", "event_time", "headers", "keys")

    def parts(self, log: Log, task: int) -> Iterator[GroupsPart]:
        """Every group once, window by window."""
        for some in self._manifest.by_window(task, self._pass_bytes):
            if some.size <= self._pass_bytes:
                names = (*self._names, "keys") if self._keyed else self._names
                yield from self._sorted(join(list(chunks_of(log, some.entries, names))))
            elif self._keyed:
                yield from self._in_passes(log, some.entries)
            else:
                window = int(some.entries[0].windows[0])
                yield from self._stream(chunks_of(log, some.entries, self._names), window, None)

    def _in_passes(self, log: Log, entries: Sequence[Runs]) -> Iterator[GroupsPart]:
        """Of a large window: as many of its keys at a time as fit."""
        window = int(entries[0].windows[0])
        sizes: dict[bytes | None, int] = {}
        for chunk in chunks_of(log, entries, ("value", "headers", "keys")):
            codes, keys = _keys_of(chunk)
            of_rows = np.full(len(chunk), (chunk.arrays["value"].nbytes + chunk.arrays["headers"].nbytes) / len(chunk))
            for key, size in zip(keys, np.bincount(codes, of_rows, len(keys)).tolist(), strict=True):
                sizes[key] = sizes.get(key, 0) + int(size) + 1
        for some in _packed(sizes, self._pass_bytes):
            chosen = chunks_of(log, entries, (*self._names, "keys"))
            kept = (_only(chunk, some) for chunk in chosen)
            if len(some) == 1:
                yield from self._stream((chunk for chunk in kept if len(chunk)), window, some[0])
            else:
                yield from self._sorted(join(list(kept)))

    def _sorted(self, chunk: Chunk) -> Iterator[GroupsPart]:
        """Groups of rows that are in memory."""
        codes, keys = _keys_of(chunk) if self._keyed else (np.zeros(len(chunk), np.int64), [None])
        places = chunk.windows.astype(np.int64) * len(keys) + codes
        if (np.diff(places) < 0).any():
            order = np.argsort(places, kind="stable")
            places = places[order]
            indexes: Any = pa.array(order)
            chunk = Chunk(chunk.windows[order], {name: chunk.arrays[name].take(indexes) for name in self._names})
        starts = np.flatnonzero(np.diff(places, prepend=-1))
        counts = np.diff(starts, append=len(places))
        windows, of_keys = np.divmod(places[starts], len(keys))
        groups = [
            self._group(window, keys[key]) for window, key in zip(windows.tolist(), of_keys.tolist(), strict=True)
        ]
        batch = self._batch(chunk)
        # As many groups to a part as have some rows together, at least one; a large one is sliced by who sends it.
        ends = np.cumsum(counts)
        first = 0
        while first < len(groups):
            begin = int(ends[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(ends, begin + PART_ROWS, side="right")))
            rows = batch.slice(begin, int(ends[last - 1]) - begin)
            part = arrow_part(groups[first:last], counts[first:last].tolist(), rows, unfinished=False)
            yield GroupsPart(part, windows[first:last].tolist())
            first = last

    def _stream(self, chunks: Iterator[Chunk], window: int, key: bytes | None) -> Iterator[GroupsPart]:
        """One group, as it is read."""
        group = self._group(window, key)
        waiting = next(chunks, None)
        begun = False
        while waiting is not None:
            following = next(chunks, None)
            groups, windows = ([], []) if begun else ([group], [window])
            unfinished = following is not None
            part = arrow_part(groups, [len(waiting)], self._batch(waiting), unfinished=unfinished)
            yield GroupsPart(part, windows)
            begun, waiting = True, following

    def _batch(self, chunk: Chunk) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([chunk.arrays[name] for name in self._names], names=list(self._names))

    def _group(self, index: int, key: bytes | None) -> Group:
        """`key`: None for the whole window, which may belong to a key itself."""
        span = self._manifest.spans[index]
        key = span.key if key is None else key
        parts = tuple(key.decode().split(KEY_SEPARATOR.decode())) if key else ()
        return Group(Window(span.start_us, span.end_us, span.early), parts, self._contexts[span.origin])


def _keys_of(chunk: Chunk) -> tuple[_Codes, list[bytes | None]]:
    """The key of each row as an index into the keys, parts joined."""
    joined = _compute.binary_join(chunk.arrays["keys"], KEY_SEPARATOR.decode()).dictionary_encode()
    keys: list[bytes | None] = [key.encode() for key in joined.dictionary.to_pylist()]
    return joined.indices.to_numpy().astype(np.int64), keys


def _only(chunk: Chunk, keys: Sequence[bytes | None]) -> Chunk:
    """The rows that have one of these keys."""
    joined = _compute.binary_join(chunk.arrays["keys"], KEY_SEPARATOR.decode()).cast(pa.binary())
    mask = _compute.is_in(joined, pa.array(keys, pa.binary()))
    arrays = {name: array.filter(mask) for name, array in chunk.arrays.items()}
    return Chunk(chunk.windows[mask.to_numpy(zero_copy_only=False)], arrays)


def _packed(sizes: dict[bytes | None, int], size_max: int) -> Iterator[list[bytes | None]]:
    """The keys in turn, as many at a time as have `size_max` bytes together, at least one."""
    some: list[bytes | None] = []
    size = 0
    for key, of_key in sizes.items():
        if some and size + of_key > size_max:
            yield some
            some, size = [], 0
        some.append(key)
        size += of_key
    if some:
        yield some
