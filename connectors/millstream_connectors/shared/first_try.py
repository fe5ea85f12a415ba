"""Opens the lanes of sinks whose target may be away: the first write waits for it.

Above it: sinks whose target is a server. Below it: the interface of sinks.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

from millstream.errors import RetryLaterError
from millstream_writer.sink import SinkLane


class OpenableLane(SinkLane, Protocol):
    """A lane with a connection of its own."""

    async def open(self) -> object:
        """Reach the target, and fence every former owner if it can do that. Raises Millstream errors."""

    async def close(self) -> None:
        """Close the connection."""


_LaneT = TypeVar("_LaneT", bound=OpenableLane)


async def first_try(opening: Awaitable[object], log: logging.Logger) -> None:
    """Wait for `opening`. If the server is away, logs it, and the first write waits for it. Raises other errors."""
    try:
        await opening
    except RetryLaterError as error:
        log.warning("%s", error)


@asynccontextmanager
async def opened(lane: _LaneT, log: logging.Logger) -> AsyncIterator[_LaneT]:
    """The lane, which is closed afterwards. If the target is away, the first write waits for it."""
    try:
        await first_try(lane.open(), log)
        yield lane
    finally:
        await lane.close()
