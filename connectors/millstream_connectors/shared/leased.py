"""A queue that leases its messages, for a lane that acknowledges: a leased message is hidden from other readers.

    queue ─ long polls, several at once, while the inbox has room ─► inbox
         ◄─ deleted, once committed
         ◄─ hidden for longer, while held
         ◄─ visible again, when the lane closes

A message that is not deleted is delivered again when its lease ends, and is recognized by its id.

Above it: `acknowledged`. Below it: the requests of one kind of server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Protocol

from millstream.background import all_of
from millstream.errors import MillstreamError
from millstream_connectors.shared.acknowledged import AcknowledgedInbox, AcknowledgedMessage

_CLOSE_S = 2.0
_REQUESTS = 8
"""Maximum number of concurrent requests to delete or hide messages."""


class LeasingQueue(Protocol):
    """The requests to one queue. They raise Millstream errors: `RetryLaterError` if another attempt may help."""

    async def take(self, room: int) -> Sequence[AcknowledgedMessage]:
        """The next messages, hidden from now on; none if none arrive for a while. `room`: how many messages fit."""

    async def delete(self, messages: Sequence[AcknowledgedMessage]) -> None:
        """Remove these messages from the queue: they are committed."""

    async def hide(self, messages: Sequence[AcknowledgedMessage], lease_s: int) -> None:
        """Restart the leases of these messages. 0 ends them: the next reader gets the messages."""

    def waiting(self) -> int | None:
        """Number of messages that wait at the server, if it is known."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How requests to a queue are made."""

    lease_s: int
    """How long a message is hidden, in seconds."""
    polls: int
    """Number of concurrent polls. A queue with one order for all its messages allows only one."""
    batch: int
    """Maximum number of messages in one request to delete or hide."""


class LeasedSubscription:
    """See `Subscription`."""

    def __init__(self, open_queue: Callable[[], AbstractAsyncContextManager[LeasingQueue]], pace: Pace) -> None:
        """`open_queue`: a connection to the queue. Raises an error if the queue does not exist."""
        self._open_queue = open_queue
        self._pace = pace
        self.lease_s: float | None = pace.lease_s
        self._queue: LeasingQueue | None = None
        self._inbox: AcknowledgedInbox | None = None
        self._connection = AsyncExitStack()

    async def connect(self, inbox: AcknowledgedInbox) -> None:
        self._queue, self._inbox = await self._connection.enter_async_context(self._open_queue()), inbox

    async def receive(self, inbox: AcknowledgedInbox) -> None:
        queue = self._queue
        if queue is None:
            return
        async with asyncio.TaskGroup() as polls:
            for _ in range(self._pace.polls):
                polls.create_task(self._poll(queue, inbox))

    async def acknowledge(self, messages: Sequence[AcknowledgedMessage]) -> None:
        queue = self._queue
        if queue is not None:
            await self._in_parts(queue.delete, messages)

    async def extend(self, messages: Sequence[AcknowledgedMessage]) -> None:
        await self._hide(messages, self._pace.lease_s)

    async def adjust(self, inbox: AcknowledgedInbox) -> None:
        """Has nothing to do: each poll waits until messages fit into the inbox."""

    async def close(self) -> None:
        inbox = self._inbox
        try:
            if inbox is not None and inbox.lost is None:
                with suppress(MillstreamError, TimeoutError):
                    async with asyncio.timeout(_CLOSE_S):
                        await self._hide(inbox.unacknowledged(), 0)
        finally:
            self._queue = self._inbox = None
            await self._connection.aclose()

    def pending(self) -> int | None:
        return self._queue.waiting() if self._queue is not None else None

    async def _poll(self, queue: LeasingQueue, inbox: AcknowledgedInbox) -> None:
        while inbox.lost is None:
            await inbox.room()
            room = max(1, (inbox.messages_max - inbox.held) // self._pace.polls)
            try:
                found = await queue.take(room)
            except MillstreamError as error:
                inbox.lose(error)
                return
            for message in found:
                inbox.put(message)

    async def _hide(self, messages: Sequence[AcknowledgedMessage], lease_s: int) -> None:
        queue = self._queue
        if queue is not None:
            hide = queue.hide
            await self._in_parts(lambda part: hide(part, lease_s), messages)

    async def _in_parts(
        self,
        ask: Callable[[Sequence[AcknowledgedMessage]], Coroutine[None, None, None]],
        messages: Sequence[AcknowledgedMessage],
    ) -> None:
        batch = self._pace.batch
        parts = [messages[start : start + batch] for start in range(0, len(messages), batch)]
        for start in range(0, len(parts), _REQUESTS):
            await all_of(ask(part) for part in parts[start : start + _REQUESTS])
