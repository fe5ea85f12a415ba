"""Decides which record goes into which buffer. Pure.

A frame that leaves a vertex goes to every edge whose condition its records' tags meet, and there to the partition of
its keys, or to all of them if it is for a table. Without conditions and with one partition, a frame is passed on
unchanged, without reading its columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from millstream import codes
from millstream.errors import MillstreamError
from millstream.frame import Frame
from millstream.limits import FRAME_BYTES_MAX, FRAME_RECORDS_MAX, PACK_BYTES_MAX, PACK_RECORDS_MAX
from millstream.record import BufferId
from millstream_udf.columns import is_compiled

Tags = Sequence[tuple[bytes, ...]]
"""Tags of each record of a frame, UTF-8."""


class FrameLimits(NamedTuple):
    """Maximum size of a written frame, unless it is a single record."""

    records: int = FRAME_RECORDS_MAX
    size: int = FRAME_BYTES_MAX
    """Bytes."""


JOIN_BELOW_RECORDS = FRAME_RECORDS_MAX // 8
"""Smaller frames are always joined with their neighbours, because storing them separately costs more."""
_USUAL = FrameLimits()
_ANY = FrameLimits(1 << 62, 1 << 62)
_NO_PACK = FrameLimits(0, 0)


@dataclass(frozen=True, slots=True)
class Route:
    """One outgoing edge, ready for use."""

    edge: str
    partitions: int
    condition: Callable[[frozenset[bytes]], bool] | None
    """The test of tags; None to accept every record."""
    discard_when_full: bool = False
    """`onFull: discardLatest`."""
    keeps: bool = False
    """Records stay in the buffers until their windows are committed."""
    piece: FrameLimits = _ANY
    """Maximum to write to a buffer at once: a fraction of its capacity, so that watermarks advance in it."""
    takes_arrow: bool = False
    """Whether its reader takes frames with Arrow columns in place of values."""
    is_table: bool = False
    """Whether its reader reads it as a table: every partition gets every record."""
    also: tuple[str, ...] = ()
    """Further edges that share the stored frames of this one: what goes to it is written once, for all of them."""


def shared_route(routes: Sequence[Route]) -> Route:
    """The route of edges that share their frames: for each of them a frame is small enough."""
    return replace(
        routes[0],
        takes_arrow=all(route.takes_arrow for route in routes),
        also=tuple(route.edge for route in routes[1:]),
        piece=FrameLimits(min(route.piece.records for route in routes), min(route.piece.size for route in routes)),
    )


def tag_condition(operator: str, values: Sequence[str]) -> Callable[[frozenset[bytes]], bool] | None:
    """The test of `conditions.tags`; None if there are no values, which accepts every record."""
    wanted = frozenset(value.encode() for value in values)
    if not wanted:
        return None
    if operator == "or":
        return lambda tags: not wanted.isdisjoint(tags)
    if operator == "and":
        return lambda tags: wanted <= tags
    if operator == "not":
        return wanted.isdisjoint
    raise MillstreamError(codes.IMPOSSIBLE, f"the spec has accepted an unknown tag operator: {operator!r}")


@dataclass(slots=True)
class RoutedFrames:
    """Frames by buffer, and the number of records that no edge accepted."""

    frames: list[tuple[BufferId, Frame]] = field(default_factory=list)
    unrouted: int = 0
    """Records that met no edge's condition."""


class Router:
    """The outgoing edges of one vertex for one lane."""

    def __init__(self, routes: Sequence[Route], dead_letter: Sequence[Route] = (), late: Sequence[Route] = ()) -> None:
        self._routes = tuple(routes)
        self._dead_letter = tuple(dead_letter)
        self._late = tuple(late)
        every = (*routes, *dead_letter, *late)
        self._buffers = {
            (route.edge, partition): BufferId(route.edge, partition)
            for route in every
            for partition in range(route.partitions)
        }
        self._joined_whole = {route.edge for route in every} - {
            route.edge
            for route in every
            if route.discard_when_full or route.piece.records < FRAME_RECORDS_MAX or not is_compiled()
        }
        self._packs = {
            route.edge: FrameLimits(min(PACK_RECORDS_MAX, route.piece.records), min(PACK_BYTES_MAX, route.piece.size))
            for route in every
            if not route.discard_when_full
        }
        self._discarding = frozenset(route.edge for route in every if route.discard_when_full)
        self._next_partition = 0
        self.needs_tags = any(route.condition is not None for route in routes)
        self.buffers: Sequence[BufferId] = tuple(
            BufferId(edge, partition)
            for route in every
            for edge in (route.edge, *route.also)
            for partition in range(route.partitions)
        )
        """All buffers that this vertex writes to, also those that share frames with others."""
        self.copies_max = sum(route.partitions if route.is_table else 1 for route in (*routes, *dead_letter))
        """Frames that one record may be stored in."""
        self.has_dead_letter = bool(dead_letter)
        self.takes_arrow = bool(routes) and all(route.takes_arrow for route in routes)
        """Whether the readers of all edges for outputs take frames with Arrow columns in place of values."""
        self.piece = FrameLimits(
            min((route.piece.records for route in every), default=_ANY.records),
            min((route.piece.size for route in every), default=_ANY.size),
        )
        """Maximum input that a lane should process at once, so that no buffer gets more than its maximum."""
        self.keeping_edges = [route.edge for route in every if route.keeps]
        """Edges whose buffers may be full of records that were already read."""

    def joins_below(self, buffer: BufferId) -> int:
        """Number of records in a frame below which a commit joins it with its neighbours in a buffer.

        With the C extension, joining frames that were split by key costs almost nothing. In a small buffer, and on an
        edge that discards, frames are removed or left out as a whole, so they stay small.
        """
        return FRAME_RECORDS_MAX if buffer.edge in self._joined_whole else JOIN_BELOW_RECORDS

    def pack(self, buffer: BufferId) -> FrameLimits:
        """The maximum size of a pack of frames for a buffer. On an edge that discards there are none, because frames
        are left out one by one."""
        return self._packs.get(buffer.edge, _NO_PACK)

    def discards_when_full(self, buffer: BufferId) -> bool:
        return buffer.edge in self._discarding

    def route(self, frame: Frame, tags: Tags | None, limits: FrameLimits = _USUAL) -> RoutedFrames:
        """Route `frame`. `tags` is None if no record has any."""
        if not self.needs_tags:
            return self._to_all(self._routes, frame, limits)
        routed = RoutedFrames()
        sets = (
            [frozenset(record_tags) for record_tags in tags]
            if tags is not None
            else [frozenset[bytes]()] * frame.records
        )
        wanted = [False] * frame.records
        for route in self._routes:
            if route.condition is None:
                wanted = [True] * frame.records
                self._spread(route, frame, routed, limits)
                continue
            indexes = [index for index, record_tags in enumerate(sets) if route.condition(record_tags)]
            for index in indexes:
                wanted[index] = True
            if len(indexes) == frame.records:
                self._spread(route, frame, routed, limits)
            elif indexes:
                self._spread(route, frame.take(indexes), routed, limits)
        routed.unrouted = wanted.count(False)
        return routed

    def route_dead_letter(self, frame: Frame) -> RoutedFrames:
        """Send records that could not be processed to the dead-letter edges."""
        return self._to_all(self._dead_letter, frame)

    def route_late(self, frame: Frame) -> RoutedFrames:
        """Send records that came too late for their windows to the late edges."""
        return self._to_all(self._late, frame)

    def _to_all(self, routes: Sequence[Route], frame: Frame, limits: FrameLimits = _USUAL) -> RoutedFrames:
        routed = RoutedFrames()
        for route in routes:
            self._spread(route, frame, routed, limits)
        return routed

    def _spread(self, route: Route, frame: Frame, routed: RoutedFrames, limits: FrameLimits) -> None:
        if route.partitions == 1:
            routed.frames.extend((self._buffers[route.edge, 0], part) for part in cut(frame, limits))
            return
        if route.is_table:
            for part in cut(frame, limits):
                routed.frames.extend((self._buffers[route.edge, number], part) for number in range(route.partitions))
            return
        # Records without keys take turns, all of one frame together.
        self._next_partition = (self._next_partition + 1) % route.partitions
        for partition, part in frame.by_partition(route.partitions, keyless=self._next_partition):
            routed.frames.extend((self._buffers[route.edge, partition], piece) for piece in cut(part, limits))


def cut(frame: Frame, limits: FrameLimits = _USUAL) -> list[Frame]:
    """`frame` in pieces within the limits, of equally many records if these are equally large; a single record may
    exceed the limit of bytes."""
    if frame.records <= 1 or (frame.records <= limits.records and frame.size <= limits.size):
        return [frame]
    # Each piece has columns of its own, which take some bytes.
    bytes_max = limits.size - limits.size // 64
    pieces = max(2, -(-frame.records // limits.records), -(-frame.size // bytes_max))
    middle = max(1, frame.records * (pieces // 2) // pieces)
    return [*cut(frame.slice(0, middle), limits), *cut(frame.slice(middle, frame.records), limits)]
