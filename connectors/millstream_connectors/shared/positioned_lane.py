"""The base of lanes that continue from a position of their own kind.

Above it: the lanes of built-in sources. Below it: the form of positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from zlib import crc32

from millstream_connectors.shared.positions import pack_position, unpack_position, unreadable_position
from millstream_reader.connector import SourceOwner


class PositionedLane:
    """The part of `SourceLane` that such lanes have in common, unless they say otherwise: their source returns the same
    records again from a position, and nothing outside needs to know what was committed."""

    kind: str
    """The kind of their positions."""
    noun: str
    """What they are, for messages: `a kafka source`."""
    replayable: bool = True
    _draining = False

    def __init__(self, owner: SourceOwner) -> None:
        self._owner = owner
        self._where = owner.where

    async def committed(self, position: bytes) -> None:
        """Nothing outside needs an acknowledgement."""

    def pending(self) -> int | None:
        """How many records wait is not known before they are read."""
        return None

    async def drain(self) -> None:
        self._draining = True

    def _owns(self, name: str, number: int = 0) -> bool:
        """Whether this lane reads the partition of that number of what has this name."""
        checksum = crc32(name.encode("utf-8", "surrogateescape"))
        return (checksum + number) % self._owner.partitions == self._owner.lane.partition

    def _unpacked(self, position: bytes) -> dict[str, Any] | None:
        """The body of a position; None for the empty one. Errors: those of `unpack_position`."""
        return unpack_position(position, self.kind, self._owner.partitions, self._owner.lane)

    def _packed(self, body: dict[str, Any]) -> bytes:
        return pack_position(self.kind, self._owner.partitions, body)

    @contextmanager
    def _restoring(self) -> Iterator[None]:
        """Converts errors of a body that is not one of this kind of lane to `DamageError`."""
        try:
            yield
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise unreadable_position(self._where, self._owner.position, self.noun) from error

    def _now_s(self) -> float:
        return self._owner.clock.monotonic_s()
