"""A queue whose messages are hidden from other readers for a while, the lease, for a lane that acknowledges.

    queue ─ long polls, several at once, while the inbox has room ─► inbox
         ◄─ deleted, once committed
         ◄─ hidden for longer, while held
         ◄─ hidden no longer, when the lane closes

What is not deleted comes again when its lease is over, and is known by its id.

Above it: `acknowledged`. Below it: the requests of one kind of server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from millstream.background import all_of
from millstream.errors import MillstreamError
from millstream_reader.sources.acknowledged import Inbox, Message

_CLOSE_S = 2.0
_REQUESTS = 8
"""At once, for messages that are held."""


class LeasingQueue(Protocol):
    """Requests about one queue. Errors are ours: `RetryLaterError` where it helps to try again."""

    async def take(self, room: int) -> Sequence[Message]:
        """The next messages, hidden from now on; none if none come for a while. `room`: as many are wanted."""

    async def delete(self, messages: Sequence[Message]) -> None:
        """These are committed."""

    async def hide(self, messages: Sequence[Message], lease_s: int) -> None:
        """Begin their leases again. 0: hand them out to the next reader."""

    async def close(self) -> None:
        """Called once."""

    def waiting(self) -> int | None:
        """Messages that wait at the server, as far as is known."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How a queue is asked."""

    lease_s: int
    """How long a message is hidden."""
    polls: int
    """At once. A queue that keeps an order among all messages is asked by one."""
    batch: int
    """Messages of a request to delete or to hide, at most."""


class LeasedSubscription:
    """See `Subscription`."""

    def __init__(self, open_queue: Callable[[], Awaitable[LeasingQueue]], pace: Pace) -> None:
        """`open_queue`: raises where the queue is not there."""
        self._open_queue = open_queue
        self._pace = pace
        self._queue: LeasingQueue | None = None
        self._inbox: Inbox | None = None

    @property
    def lease_s(self) -> float | None:
        return float(self._pace.lease_s)

    async def connect(self, inbox: Inbox) -> None:
        self._queue, self._inbox = await self._open_queue(), inbox

    async def receive(self, inbox: Inbox) -> None:
        queue = self._queue
        if queue is None:
            return
        async with asyncio.TaskGroup() as polls:
            for _ in range(self._pace.polls):
                polls.create_task(self._poll(queue, inbox))

    async def acknowledge(self, messages: Sequence[Message]) -> None:
        queue = self._queue
        if queue is not None:
            await self._in_parts(queue.delete, messages)

    async def extend(self, messages: Sequence[Message]) -> None:
        await self._hide(messages, self._pace.lease_s)

    async def adjust(self, inbox: Inbox) -> None:
        """Polls wait for room themselves."""

    async def close(self) -> None:
        queue, inbox = self._queue, self._inbox
        if queue is None:
            return
        try:
            if inbox is not None and inbox.lost is None:
                with suppress(MillstreamError, TimeoutError):
                    async with asyncio.timeout(_CLOSE_S):
                        await self._hide(inbox.unacknowledged(), 0)
        finally:
            self._queue = self._inbox = None
            await queue.close()

    def pending(self) -> int | None:
        return self._queue.waiting() if self._queue is not None else None

    async def _poll(self, queue: LeasingQueue, inbox: Inbox) -> None:
        while inbox.lost is None:
            await inbox.room()
            room = max(1, (inbox.bounds.messages - inbox.held) // self._pace.polls)
            try:
                found = await queue.take(room)
            except MillstreamError as error:
                inbox.lose(error)
                return
            for message in found:
                inbox.put(message)

    async def _hide(self, messages: Sequence[Message], lease_s: int) -> None:
        queue = self._queue
        if queue is not None:
            hide = queue.hide
            await self._in_parts(lambda part: hide(part, lease_s), messages)

    async def _in_parts(
        self, ask: Callable[[Sequence[Message]], Coroutine[None, None, None]], messages: Sequence[Message]
    ) -> None:
        batch = self._pace.batch
        parts = [messages[start : start + batch] for start in range(0, len(messages), batch)]
        for start in range(0, len(parts), _REQUESTS):
            await all_of(ask(part) for part in parts[start : start + _REQUESTS])
