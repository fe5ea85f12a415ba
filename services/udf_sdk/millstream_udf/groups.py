"""Groups of records for a reduce function: the contents of parts, and the records as the function reads them.

Above it: `reducing`. Below it: the column codecs; Arrow only if a caller or a function uses it. It does not know the
origin of parts: a gRPC stream (`reduce_stream`), a Spark task (`reducing.load`) or a test.

    parts ──► Cursor ──► complete groups, one by one
                   └───► Feed of a group that continues: pulls the next parts while the function reads
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from millstream_udf.context import Context
from millstream_udf.failures import Gone
from millstream_udf.inputs import FrameInputs
from millstream_udf.typed_values import Decoder
from millstream_udf.values import Record, Window
from millstream_udf.wire.udf.v1 import udf_pb2

if TYPE_CHECKING:
    import pyarrow as pa


class Group(NamedTuple):
    """One window or, in a keyed vertex, one key of a window."""

    window: Window
    keys: tuple[str, ...] = ()
    context: Context | None = None
    """Its origin, if the groups of a call have different origins."""

    def __str__(self) -> str:
        return f"{self.window} {'/'.join(self.keys)}" if self.keys else str(self.window)


class Rows(Protocol):
    """Records in columns, decoded as far as a function needs them. Raises `ValueError` if they cannot be decoded."""

    @property
    def values(self) -> Sequence[bytes]:
        """Their values, as JSON where they are Arrow columns."""

    @property
    def event_times_us(self) -> Sequence[int]:
        """Their event times, in microseconds since the epoch."""

    @property
    def own_keys(self) -> Sequence[tuple[str, ...]] | None:
        """Keys of the records; None if each record has its group's."""

    @property
    def own_headers(self) -> Sequence[dict[str, bytes]] | None:
        """Headers of the records; None if no record has any."""

    @property
    def batch(self) -> pa.RecordBatch:
        """value: binary, event_time: timestamp[us, UTC], keys: list<string>, headers: map<string, binary>."""


class Part(NamedTuple):
    """Records of groups, in the order of the groups: a form of the protocol's `ReducePart`."""

    groups: Sequence[Group]
    """Groups that begin here."""
    counts: Sequence[int]
    """Number of records of each group; with one more number at the beginning if the previous part was unfinished."""
    rows: Rows
    unfinished: bool = False
    """Whether the last group continues in the next part."""


class FrameRows(FrameInputs):
    """Rows of an encoded frame; none if it is empty."""

    @cached_property
    def own_keys(self) -> Sequence[tuple[str, ...]] | None:
        return self.keys if self.keys_column else None

    @cached_property
    def own_headers(self) -> Sequence[dict[str, bytes]] | None:
        return self.headers if self.headers_column else None

    @cached_property
    def batch(self) -> pa.RecordBatch:
        from millstream_udf.arrow import batch_of_frame

        return batch_of_frame(self)


def decode_part(message: udf_pb2.SealedReducePart, *, continues: bool) -> Part:
    """`continues`: whether the previous part was unfinished. Raises `ValueError` for an inconsistent part."""
    groups = [Group(Window(group.start_us, group.end_us, group.early), tuple(group.keys)) for group in message.groups]
    rows = FrameRows(message.frame)
    counts = message.counts
    if len(counts) != len(groups) + continues or not counts:
        raise ValueError(
            f"a part has {len(groups)} groups and {len(counts)} counts, {'behind' if continues else 'without'} an "
            "unfinished one"
        )
    if sum(counts) != rows.count:
        raise ValueError(f"the counts of a part add up to {sum(counts)}, but its frame has {rows.count} records")
    return Part(groups, counts, rows, message.unfinished)


def encode_group(group: Group) -> udf_pb2.Group:
    """A group that begins, as it is in a part."""
    window = group.window
    return udf_pb2.Group(start_us=window.start_us, end_us=window.end_us, early=window.early, keys=group.keys)


class PartSource(Protocol):
    """A source of parts."""

    async def next(self) -> Part | None:
        """The next part; None at the end."""

    def next_blocking(self) -> Part | None:
        """The same for functions that are not async, which have to block."""


class Chunk(NamedTuple):
    """Some records of one group: rows from `start` up to `stop`."""

    rows: Rows
    start: int
    stop: int


class Cursor:
    """Splits the parts of a source into groups."""

    def __init__(self, source: PartSource) -> None:
        self.source = source
        self._whole: list[tuple[Group, Chunk]] = []
        self._open: tuple[Group, Chunk] | None = None

    async def advance(self) -> bool:
        """Move to the next part, or to the rest of the part in which an unfinished group ended. False at the end."""
        if self._whole or self._open is not None:
            return True
        part = await self.source.next()
        if part is None:
            return False
        self._cut(part, 0)
        return True

    def whole(self) -> list[tuple[Group, Chunk]]:
        """The complete groups of the part, once."""
        taken, self._whole = self._whole, []
        return taken

    def unfinished(self) -> tuple[Group, Feed] | None:
        """The group that continues in the next part, once, after the complete ones."""
        if self._open is None:
            return None
        (group, chunk), self._open = self._open, None
        return group, Feed(chunk, self)

    def next_chunk(self, part: Part | None) -> tuple[Chunk | None, bool]:
        """The records of the unfinished group in the next part, and whether the group continues after that."""
        if part is None:
            raise Gone("the parts ended in the middle of a group")
        goes_on = part.unfinished and len(part.counts) == 1
        count = part.counts[0]
        if not goes_on:
            self._cut(part, 1)
        return (Chunk(part.rows, 0, count) if count else None), goes_on

    def _cut(self, part: Part, skipped: int) -> None:
        start = sum(part.counts[:skipped])
        for group, count in zip(part.groups, part.counts[skipped:], strict=True):
            self._whole.append((group, Chunk(part.rows, start, start + count)))
            start += count
        if part.unfinished:
            self._open = self._whole.pop()


class Feed:
    """The chunks of one group, read once, as they arrive."""

    def __init__(self, first: Chunk, cursor: Cursor | None = None) -> None:
        """Without a cursor the group is complete."""
        self._next: Chunk | None = first
        self._cursor = cursor

    def __iter__(self) -> Iterator[Chunk]:
        while True:
            chunk, self._next = self._next, None
            if chunk is not None and chunk.stop > chunk.start:
                yield chunk
            if self._cursor is None:
                return
            self._next, goes_on = self._cursor.next_chunk(self._cursor.source.next_blocking())
            if not goes_on:
                self._cursor = None

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        while True:
            chunk, self._next = self._next, None
            if chunk is not None and chunk.stop > chunk.start:
                yield chunk
            if self._cursor is None:
                return
            self._next, goes_on = self._cursor.next_chunk(await self._cursor.source.next())
            if not goes_on:
                self._cursor = None

    async def skip(self) -> None:
        """Read the records that the function has not read, to the end of the group."""
        async for _ in self:
            pass


class Records:
    """The records of a group as a function reads them: once, with `for` or `async for`.

    They are decoded while they are read, so a group may be larger than memory.
    """

    def __init__(self, group: Group, feed: Feed, *, values: bool, decode: Decoder | None = None) -> None:
        """`values`: only the values. `decode`: decodes the values; None if they stay bytes."""
        self._group = group
        self._feed = feed
        self._values = values
        self._decode = decode
        self._read = False

    def __iter__(self) -> Iterator[Any]:
        self._begin()
        return chain.from_iterable(
            items_of(chunk, self._group, values=self._values, decode=self._decode) for chunk in self._feed
        )

    async def __aiter__(self) -> AsyncIterator[Any]:
        self._begin()
        async for chunk in self._feed:
            for item in items_of(chunk, self._group, values=self._values, decode=self._decode):
                yield item

    def _begin(self) -> None:
        if self._read:
            raise RuntimeError(
                "the records of a group can be read only once, because they need not fit into memory; to read them "
                "again, keep them: records = list(records)"
            )
        self._read = True


def items_of(chunk: Chunk, group: Group, *, values: bool, decode: Decoder | None = None) -> Iterable[Any]:
    """The values or `Record`s of a chunk. Raises `Misfit` for a value that cannot be decoded, which fails its group."""
    rows, part = chunk.rows, slice(chunk.start, chunk.stop)
    own: Sequence[Any] = rows.values[part]
    if decode is not None:
        own, misfits = decode.many(own)
        for misfit in misfits.values():
            raise misfit
    if values:
        return own
    times, keys, headers = rows.event_times_us[part], rows.own_keys, rows.own_headers
    own_keys = repeat(group.keys) if keys is None else keys[part]
    if headers is None:
        return map(Record, own, times, own_keys)
    return map(Record, own, times, own_keys, headers[part])
