"""The base of source lanes that change the records of another lane.

Above it: such lanes. Below it: the other lane, of any source.
"""

from __future__ import annotations

from millstream_reader.source import SourceLane, is_held_up, pending_bytes, pending_versions


class WrappedLane:
    """What such a lane leaves to the other one. See `SourceLane`."""

    def __init__(self, lane: SourceLane) -> None:
        self._lane = lane

    @property
    def replayable(self) -> bool:
        return self._lane.replayable

    async def committed(self, position: bytes) -> None:
        await self._lane.committed(position)

    def pending(self) -> int | None:
        return self._lane.pending()

    def pending_bytes(self) -> int | None:
        return pending_bytes(self._lane)

    def pending_versions(self) -> int | None:
        return pending_versions(self._lane)

    def is_held_up(self) -> bool:
        return is_held_up(self._lane)

    async def drain(self) -> None:
        await self._lane.drain()
