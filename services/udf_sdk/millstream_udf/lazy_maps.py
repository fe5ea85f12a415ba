"""A map whose items stay with the pipeline until the function reads them.

Above it: `states`, and users' functions. Below it: `state_reads`, which waits for what is read, and `key_states`, which
keeps what was read and written for the records of the call that follow.

What is read twice is asked for once. What is written is not read before: that it was there is known to the pipeline.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar, cast, overload

from millstream_udf.key_states import GONE, Column, Turn
from millstream_udf.state_codecs import SCALARS
from millstream_udf.state_found import Found
from millstream_udf.state_reads import Reading, awaited, is_in_loop, parts_of, waited
from millstream_udf.state_specs import StateError
from millstream_udf.state_views import Items
from millstream_udf.wire.udf.v1 import udf_pb2

_K = TypeVar("_K")
_V = TypeVar("_V")
_D = TypeVar("_D")

_RAISES: Any = object()
"""In place of a default: there is none."""


class _Range(NamedTuple):
    """Encoded items from one on to before another one."""

    first: bytes
    end: bytes
    """Empty: to the end."""

    def has(self, place: bytes) -> bool:
        return self.first <= place and (not self.end or place < self.end)


class LazyMap(Items, Generic[_K, _V]):
    """A lazy map state of one key of the records. Its items are in the order of their encoded form.

    In a function that is not async it is read like a dictionary. Where an event loop runs, each read has a method to
    await, whose name begins with `a`; writing (`orders[item] = value`, `discard`, `update`) reads nothing.
    """

    __slots__ = ("_ask", "_known")

    def __init__(self, turn: Turn, column: Column) -> None:
        super().__init__(turn, column)
        self._known: dict[bytes, bytes | None] = column.stored.setdefault(turn.key, {})
        """What is stored, as far as it is known; None: there is no such item."""
        self._stored = self._known
        self._ask = turn.call.ask(turn, column)

    # Writing.

    def __setitem__(self, item: _K, value: _V) -> None:
        self._check_open()
        self._set(self._column.item(item), value)

    def update(self, values: Mapping[_K, _V] | Iterable[tuple[_K, _V]]) -> None:
        """Set several items."""
        for item, value in values.items() if isinstance(values, Mapping) else values:
            self[item] = value

    def discard(self, item: _K) -> None:
        """Delete an item, whether or not there is one. Reads nothing."""
        self._check_open()
        self._set(self._column.item(item), GONE)

    # Reading, in a thread without an event loop.

    def __getitem__(self, item: _K) -> _V:
        return cast("_V", self._waited(self._one(item, _RAISES), "aget(item)"))

    @overload
    def get(self, item: _K, default: None = None, /) -> _V | None: ...
    @overload
    def get(self, item: _K, default: _D, /) -> _V | _D: ...
    def get(self, item: _K, default: Any = None, /) -> Any:
        """The value of an item, or the default."""
        return self._waited(self._one(item, default), "aget(item)")

    def get_many(self, items: Iterable[_K], /) -> dict[_K, _V]:
        """The values of these items, of those that there are, with one read for many of them."""
        found: dict[_K, _V] = self._waited(self._many(items), "aget_many(items)")
        return found

    def __contains__(self, item: object) -> bool:
        return self._waited(self._one(item, GONE), "ahas(item)") is not GONE

    def __delitem__(self, item: _K) -> None:
        self._waited(self._popped(item, _RAISES), "apop(item), or without `await`: discard(item)")

    @overload
    def pop(self, item: _K, /) -> _V: ...
    @overload
    def pop(self, item: _K, default: _D, /) -> _V | _D: ...
    def pop(self, item: _K, default: Any = _RAISES, /) -> Any:
        """Delete an item, and return its value. Raises `KeyError` if there is none and no default."""
        return self._waited(self._popped(item, default), "apop(item)")

    def setdefault(self, item: _K, default: _V, /) -> _V:
        """The value of an item, which is set to the default before if there is none."""
        found = self._waited(self._one(item, GONE), "aget(item)")
        if found is GONE:
            self[item] = found = default
        return cast("_V", found)

    def __bool__(self) -> bool:
        return next(iter(self), GONE) is not GONE

    def __iter__(self) -> Iterator[_K]:
        return self.keys()

    def keys(self, *, start: _K | None = None, stop: _K | None = None, prefix: _K | None = None) -> Iterator[_K]:
        """The items, page by page, without their values: all, or those from `start` on, to before `stop`, or that begin
        with `prefix` (of text or bytes)."""
        return (self._column.spec.read_item(place) for place, _ in self._walked(start, stop, prefix, items_only=True))

    def items(
        self, *, start: _K | None = None, stop: _K | None = None, prefix: _K | None = None
    ) -> Iterator[tuple[_K, _V]]:
        """Items with their values. Arguments: as for `keys`."""
        read = self._column.spec.read_item
        return ((read(place), value) for place, value in self._walked(start, stop, prefix))

    def values(self, *, start: _K | None = None, stop: _K | None = None, prefix: _K | None = None) -> Iterator[_V]:
        """The values. Arguments: as for `keys`."""
        return (value for _, value in self._walked(start, stop, prefix))

    def clear(self) -> None:
        """Delete all items, which are read for it, without their values."""
        for place, _ in self._walked(None, None, None, items_only=True, instead="aclear()"):
            self._set(place, GONE)

    # Reading where an event loop runs.

    @overload
    async def aget(self, item: _K, default: None = None, /) -> _V | None: ...
    @overload
    async def aget(self, item: _K, default: _D, /) -> _V | _D: ...
    async def aget(self, item: _K, default: Any = None, /) -> Any:
        """As `get`."""
        return await self._awaited(self._one(item, default))

    async def aget_many(self, items: Iterable[_K], /) -> dict[_K, _V]:
        """As `get_many`."""
        found: dict[_K, _V] = await self._awaited(self._many(items))
        return found

    async def ahas(self, item: _K, /) -> bool:
        """Whether there is an item."""
        return await self._awaited(self._one(item, GONE)) is not GONE

    @overload
    async def apop(self, item: _K, /) -> _V: ...
    @overload
    async def apop(self, item: _K, default: _D, /) -> _V | _D: ...
    async def apop(self, item: _K, default: Any = _RAISES, /) -> Any:
        """As `pop`."""
        return await self._awaited(self._popped(item, default))

    async def akeys(
        self, *, start: _K | None = None, stop: _K | None = None, prefix: _K | None = None
    ) -> AsyncIterator[_K]:
        """As `keys`."""
        async for place, _ in self._awalked(start, stop, prefix, items_only=True):
            yield self._column.spec.read_item(place)

    async def aitems(
        self, *, start: _K | None = None, stop: _K | None = None, prefix: _K | None = None
    ) -> AsyncIterator[tuple[_K, _V]]:
        """As `items`."""
        async for place, value in self._awalked(start, stop, prefix):
            yield self._column.spec.read_item(place), value

    async def avalues(
        self, *, start: _K | None = None, stop: _K | None = None, prefix: _K | None = None
    ) -> AsyncIterator[_V]:
        """As `values`."""
        async for _, value in self._awalked(start, stop, prefix):
            yield value

    async def aclear(self) -> None:
        """As `clear`."""
        async for place, _ in self._awalked(None, None, None, items_only=True):
            self._set(place, GONE)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._column.spec.name}{'' if self._turn.is_open else ', closed'}>"

    # How it is read.

    def _waited(self, reading: Reading[Any], instead: str) -> Any:
        self._check_plain(instead)
        return waited(reading, self._ask)

    async def _awaited(self, reading: Reading[Any]) -> Any:
        self._check_open()
        return await awaited(reading, self._ask)

    def _check_plain(self, instead: str) -> None:
        self._check_open()
        if is_in_loop():
            raise StateError(
                f"state {self._column.spec.name} is lazy, and reading it like this would keep the event loop waiting. "
                f"In an async function write `await ...{self._column.spec.name}.{instead}`; iterate with `async for` "
                "over akeys(), aitems() or avalues()"
            )

    def _one(self, item: Any, default: Any) -> Reading[Any]:
        place = self._column.item(item)
        yield from self._fetched([place])
        value = self._object(place)
        if value is not GONE:
            return value
        if default is _RAISES:
            raise KeyError(item)
        return default

    def _many(self, items: Iterable[Any]) -> Reading[dict[Any, Any]]:
        places = {item: self._column.item(item) for item in items}
        yield from self._fetched(list(places.values()))
        found = {item: self._object(place) for item, place in places.items()}
        return {item: value for item, value in found.items() if value is not GONE}

    def _popped(self, item: Any, default: Any) -> Reading[Any]:
        value = yield from self._one(item, default)
        self._set(self._column.item(item), GONE)
        return value

    def _is_known(self, place: bytes) -> bool:
        return place in self._objects or place in self._known

    def _fetched(self, places: list[bytes]) -> Reading[None]:
        """Read the items that are not known."""
        unknown = [place for place in dict.fromkeys(places) if not self._is_known(place)]
        for part in parts_of(unknown):
            left = part
            while left:
                found = yield udf_pb2.StateRead(items=left)
                if not 0 < found.covered <= len(left) or (found.items and not found.values):
                    _refuse(f"an answer covers {found.covered} of {len(left)} items, with {len(found.values)} values")
                self._take(found)
                for place in left[: found.covered]:
                    self._known.setdefault(place, None)
                left = left[found.covered :]

    def _take(self, found: Found) -> None:
        for at, (place, data) in enumerate(zip(found.items, found.values, strict=True)):
            self._keep(place, data, found.versions[at] if found.versions else 1)

    def _keep(self, place: bytes, data: bytes, version: int) -> None:
        """Know what is stored for an item, unless a record of the call has written it."""
        if place not in self._known:
            self._known[place] = data
            self._turn.call.note_version(self._column, self._turn.key, place, version)

    def _passing(self, place: bytes, data: bytes, version: int) -> Any:
        """The object of an item in a page, which is kept if it may be changed in place: there may be more items than
        fit into memory."""
        call, column, key = self._turn.call, self._column, self._turn.key
        call.note_version(column, key, place, version)
        value = call.object(column, key, place, data)
        if type(value) not in SCALARS:
            self._known[place], self._objects[place] = data, value
        return value

    # Ranges.

    def _range(self, start: Any, stop: Any, prefix: Any) -> _Range:
        """The range of what users say. Raises `TypeError`."""
        if prefix is not None:
            if start is not None or stop is not None:
                raise TypeError("a range has a prefix, or start and stop")
            first = self._bound(prefix)
            return _Range(first, _after(first))
        return _Range(b"" if start is None else self._bound(start), b"" if stop is None else self._bound(stop))

    def _bound(self, item: Any) -> bytes:
        """What the encoded form of an item, and of all that begin with it, begins with."""
        spec = self._column.spec
        kind = spec.item_codec.kind if spec.item_codec is not None else None
        if kind is bytes:
            return self._column.item(item)
        if kind is str:
            # Without the quotation mark at its end.
            return self._column.item(item)[:-1]
        raise TypeError(
            f"state {spec.name} has no ranges: the order of its encoded items is that of the text in JSON, so a range "
            "is of items that are str or bytes"
        )

    def _walked(
        self,
        start: Any,
        stop: Any,
        prefix: Any,
        *,
        items_only: bool = False,
        instead: str = "aitems()",
    ) -> Iterator[tuple[bytes, Any]]:
        """The encoded items of a range, with their values."""
        self._check_plain(instead)
        walk = _Walk(self, self._range(start, stop, prefix), items_only=items_only)

        def walked() -> Iterator[tuple[bytes, Any]]:
            while not walk.is_over:
                self._check_plain(instead)
                yield from walk.taken(self._ask(walk.read()).result())

        return walked()

    async def _awalked(
        self, start: Any, stop: Any, prefix: Any, *, items_only: bool = False
    ) -> AsyncIterator[tuple[bytes, Any]]:
        self._check_open()
        walk = _Walk(self, self._range(start, stop, prefix), items_only=items_only)

        def page() -> Reading[Found]:
            return (yield walk.read())

        while not walk.is_over:
            found = await self._awaited(page())
            for entry in walk.taken(found):
                yield entry


class _Walk:
    """One way through a range, page by page: what is stored, with what the records of the call have changed of it."""

    def __init__(self, of: LazyMap[Any, Any], within: _Range, *, items_only: bool) -> None:
        self._of = of
        self._range = within
        self._items_only = items_only
        self._first = within.first
        """Where the next page begins."""
        self._written = sorted(filter(within.has, of._objects.keys() | of._known.keys()))
        """What is known at the beginning. What is written later may be missing."""
        self.is_over = bool(within.end) and within.end <= within.first

    def read(self) -> udf_pb2.StateRead:
        return udf_pb2.StateRead(first=self._first, end=self._range.end, items_only=self._items_only)

    def taken(self, found: Found) -> Iterator[tuple[bytes, Any]]:
        """The entries up to the end of a page."""
        of, items = self._of, found.items
        if (found.has_more and not items) or (items and not found.values and not self._items_only):
            _refuse("a page has no items")
        end = items[-1] + b"\0" if found.has_more else b""
        until = bisect_left(self._written, end) if end else len(self._written)
        known, self._written = self._written[:until], self._written[until:]
        stored = {place: at for at, place in enumerate(items)}
        self._first, self.is_over = end, not found.has_more
        for place in sorted(stored.keys() | known):
            of._check_open()
            if of._is_known(place):
                value = of._object(place)
            elif self._items_only:
                value = None
            else:
                at = stored[place]
                value = of._passing(place, found.values[at], found.versions[at] if found.versions else 1)
            if value is not GONE:
                yield place, value


def _after(prefix: bytes) -> bytes:
    """The first bytes after all that begin with a prefix; empty if there are none."""
    prefix = prefix.rstrip(b"\xff")
    return prefix[:-1] + bytes((prefix[-1] + 1,)) if prefix else b""


def _refuse(what: str) -> NoReturn:
    raise StateError(f"the state cannot be read, because the pipeline breaks the protocol: {what}")
