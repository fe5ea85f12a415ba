"""What a function reads of its lazy states during a call: entries of the image, as they were when the call began. Pure.

    StateRead ─► the items, or the items of the range, in order ─► those that are there and not over ─► StateFound

A lane makes one call at a time, and nothing expires or is taken back during it, so the image does not change meanwhile.
Above it: the state of the lane. Below it: the image.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from millstream.limits import STATE_FOUND_BYTES_MAX, STATE_FOUND_ENTRIES_MAX
from millstream.udf.states import StateFound, StateRead
from millstream_vertex.keyed.image import Image, Stored, parts_of

IsOver = Callable[[int, int, int], bool]
"""Whether an entry that expires at a time is not there for a key of the call: by number of the key, and of the
state."""


class CallReads:
    """The reads of one call."""

    def __init__(self, image: Image, keys: Sequence[bytes], states: Mapping[int, int], is_over: IsOver) -> None:
        """`states`: the number in the image of each state that can be read."""
        self._image = image
        self._keys = keys
        self._states = states
        self._is_over = is_over
        self.count = 0
        """How many there were."""
        self._orders: dict[tuple[int, int, bytes], tuple[bytes, list[bytes]]] = {}
        """Where the first range with a certain end began, and its items in order, by key and state, if the image has to
        sort them: a function reads on from page to page, and may have many items."""

    def __call__(self, read: StateRead) -> StateFound:
        """See `StateReader`."""
        self.count += 1
        if read.key >= len(self._keys) or read.state not in self._states:
            raise ValueError(f"key {read.key} of the call has no lazy state {read.state}")
        return self._items(read) if read.items else self._range(read)

    def _items(self, read: StateRead) -> StateFound:
        page = _Page(read.items_only, STATE_FOUND_ENTRIES_MAX)
        covered = 0
        for item, stored in self._stored(read, read.items):
            if stored is not None and not page.add(item, stored):
                break
            covered += 1
        return page.found(covered=covered)

    def _range(self, read: StateRead) -> StateFound:
        most = STATE_FOUND_ENTRIES_MAX
        page = _Page(read.items_only, min(read.entries_max or most, most))
        for item, stored in self._stored(read, self._order(read)):
            if stored is not None and not page.add(item, stored):
                return page.found(has_more=True)
        return page.found()

    def _order(self, read: StateRead) -> Iterable[bytes]:
        """The items of the range, in order."""
        place = read.key, read.state, read.end
        known = self._orders.get(place)
        if known is not None and known[0] <= read.first:
            return islice(known[1], bisect_left(known[1], read.first), None)
        order = self._image.items_from(self._states[read.state], self._keys[read.key], read.first, read.end)
        if isinstance(order, list):
            self._orders[place] = read.first, order
        return order

    def _stored(self, read: StateRead, items: Iterable[bytes]) -> Iterator[tuple[bytes, Stored | None]]:
        """What each of the items has; None for nothing."""
        get, state, key = self._image.get, self._states[read.state], self._keys[read.key]
        for item in items:
            stored = get(state, key, item)
            if stored is not None and not isinstance(stored, bytes):
                _, expires_us, _ = stored
                if expires_us and self._is_over(read.key, state, expires_us):
                    stored = None
            yield item, stored


class _Page:
    """What goes into one answer."""

    def __init__(self, items_only: bool, entries_max: int) -> None:
        self._items_only = items_only
        self._entries_max = entries_max
        self._items: list[bytes] = []
        self._values: list[bytes] = []
        self._versions: list[int] = []
        self._size = 0

    def add(self, item: bytes, stored: Stored) -> bool:
        """Add an entry; False if there is no room for it."""
        value, _, version = parts_of(stored)
        size = len(item) + (0 if self._items_only else len(value))
        if self._items and (self._size + size > STATE_FOUND_BYTES_MAX or len(self._items) >= self._entries_max):
            return False
        self._size += size
        self._items.append(item)
        if not self._items_only:
            self._values.append(value)
            self._versions.append(version)
        return True

    def found(self, *, covered: int = 0, has_more: bool = False) -> StateFound:
        return StateFound(self._items, self._values, self._versions, covered, has_more)
