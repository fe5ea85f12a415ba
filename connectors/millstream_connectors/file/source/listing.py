"""Which objects a lane has read, which it reads next, and whether those that it has read are unchanged. Pure.

Names alone do not identify new objects: an object may appear late under a name that sorts early. A list of all objects
that were read would grow without bound in every commit. So a position has a digest of them, which is their count and
the sum of numbers derived from name and etag, and the greatest name. These and a listing determine what was read:

1. The objects up to the greatest name have that count and sum: exactly these were read.
2. There are more, and count and sum match without some of the newest ones: these appeared late. They are read next.
3. There are fewer, and none is newer than those that were read: some were removed, which users may do.
4. Anything else: an object that was read was replaced, or a late one cannot be distinguished from it. That is damage.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice
from typing import NamedTuple

_MODULUS = 1 << 64
_NEIGHBOURS = 8
_TRIES_MAX = 20_000


class ListedObject(NamedTuple):
    """An object in a listing."""

    name: str
    """The whole URL."""
    etag: str
    modified_us: int
    size: int

    @property
    def number(self) -> int:
        """A number derived from name and etag."""
        return int.from_bytes(hashlib.blake2b(f"{self.name}\0{self.etag}".encode(), digest_size=8).digest())


@dataclass(slots=True)
class Past:
    """The digest of the objects that were read and still exist."""

    count: int = 0
    total: int = 0
    """Sum of their numbers."""
    greatest: str = ""
    """The greatest name among all that were read."""
    newest_us: int = 0
    """When the newest object was written, by the store's clock."""

    def add(self, item: ListedObject) -> None:
        """Add an object that was read."""
        self.count += 1
        self.total = (self.total + item.number) % _MODULUS
        self.greatest = max(self.greatest, item.name)
        self.newest_us = max(self.newest_us, item.modified_us)

    def forget(self, item: ListedObject) -> None:
        """Remove an object that no longer exists."""
        self.count -= 1
        self.total = (self.total - item.number) % _MODULUS

    def pack(self) -> list[object]:
        """The form in a position."""
        return [self.count, self.total, self.greatest, self.newest_us]


class ReplacedError(Exception):
    """Objects may have been replaced; their names."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(", ".join(names))
        self.names = names


@dataclass(slots=True)
class ObjectPositions:
    """The objects of one lane."""

    past: Past = field(default_factory=Past)
    read: dict[str, ListedObject] = field(default_factory=dict)
    """The objects that were read and still exist."""

    def recognize(self, listing: Iterable[ListedObject], in_hand: str) -> None:
        """After a restart: determine which of the objects were read. `in_hand`: the one that is being read. Raises
        `ReplacedError`."""
        past = self.past
        known = [item for item in listing if item.name <= past.greatest and item.name != in_hand]
        late = max(0, len(known) - past.count)
        by_age = sorted(known, key=lambda item: item.modified_us, reverse=True)
        fresh = _late(by_age, late, (sum(item.number for item in known) - past.total) % _MODULUS)
        if fresh is None:
            newer = [item for item in known if item.modified_us > past.newest_us]
            if len(known) >= past.count or newer:
                raise ReplacedError([item.name for item in newer or by_age[: max(late, 1)]])
            fresh = ()
        came_late = {item.name for item in fresh}
        self.read = {item.name: item for item in known if item.name not in came_late}
        total = sum(item.number for item in self.read.values())
        self.past = Past(len(self.read), total % _MODULUS, past.greatest, past.newest_us)

    def unread(self, listing: Sequence[ListedObject], in_hand: str) -> list[ListedObject]:
        """The unread objects, by name. Raises `ReplacedError` for objects that were replaced after they were read."""
        there = {item.name: item for item in listing}
        replaced = [name for name, item in self.read.items() if name in there and there[name].etag != item.etag]
        if replaced:
            raise ReplacedError(sorted(replaced))
        for name in [name for name in self.read if name not in there]:
            self.past.forget(self.read.pop(name))
        return sorted(item for name, item in there.items() if name not in self.read and name != in_hand)

    def finish(self, item: ListedObject) -> None:
        """Mark an object as read to its end."""
        self.read[item.name] = item
        self.past.add(item)


def _late(by_age: Sequence[ListedObject], count: int, total: int) -> Sequence[ListedObject] | None:
    """`count` objects among the newest whose numbers have that sum; None if there are none.

    Stores report times in seconds, so the newest ones need not be the first.
    """
    if count == 1:
        return next(((item,) for item in by_age if item.number == total), None)
    few = islice(combinations(by_age[: count + _NEIGHBOURS], count), _TRIES_MAX)
    return next((found for found in few if sum(item.number for item in found) % _MODULUS == total), None)
