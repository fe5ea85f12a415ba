"""The base of lanes that continue from a position: their source returns the same records again from there.

Above it: the lanes of such sources. Below it: nothing.
"""

from __future__ import annotations


class PositionedLane:
    """The part of `SourceLane` that such lanes have in common. Nothing outside needs to know what was committed."""

    replayable = True
    _draining = False

    async def committed(self, position: bytes) -> None:
        """Nothing outside needs an acknowledgement."""

    def pending(self) -> int | None:
        """How many records wait is not known before they are read."""
        return None

    async def drain(self) -> None:
        self._draining = True
