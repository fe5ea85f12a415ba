"""Messages of a queue of SQS, for a lane that acknowledges.

    queue ─ long polls, of ten messages, while the inbox has room ─► message: id, attributes, time ─► inbox
         ◄─ deleted in tens, once committed
         ◄─ hidden for longer, while held

A queue that keeps an order is asked by one poll at a time, so that messages arrive in it.

Above it: `acknowledged`. Below it: requests to the service.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from millstream.errors import MillstreamError
from millstream.sqs.link import BATCH, SqsLink, all_of, open_link, parts_of
from millstream_reader.connector import SourceOwner
from millstream_reader.sources.acknowledged import Inbox, Message
from millstream_reader.sources.sqs.connector import SqsSource

KIND = "sqs"
GROUP, DEDUPLICATION = "SQS-Message-Group-Id", "SQS-Message-Deduplication-Id"
_POLLS = 4
_POLL_S = 10
_CLOSE_S = 2.0
_REQUESTS = 8
"""At once, for messages that are held."""


class SqsSubscription:
    """See `Subscription`."""

    def __init__(self, spec: SqsSource, owner: SourceOwner) -> None:
        self._spec = spec
        self._owner = owner
        self._link: SqsLink | None = None
        self._inbox: Inbox | None = None
        self._there = 0
        """Messages that waited when the connection was made, less those that came."""

    @property
    def lease_s(self) -> float | None:
        return float(int(self._spec.visibility_timeout_s))

    async def connect(self, inbox: Inbox) -> None:
        link = await open_link(self._spec, self._owner.base_dir, f"lane {self._owner.lane}")
        try:
            answer = await link.ask("get_queue_attributes", AttributeNames=["ApproximateNumberOfMessages"])
        except BaseException:
            await link.close()
            raise
        self._there = int(answer.get("Attributes", {}).get("ApproximateNumberOfMessages", 0))
        self._link, self._inbox = link, inbox

    async def receive(self, inbox: Inbox) -> None:
        link = self._link
        if link is None:
            return
        async with asyncio.TaskGroup() as polls:
            for _ in range(1 if self._spec.fifo else _POLLS):
                polls.create_task(self._poll(link, inbox))

    async def _poll(self, link: SqsLink, inbox: Inbox) -> None:
        while inbox.lost is None:
            await inbox.room()
            try:
                answer = await link.ask(
                    "receive_message",
                    wait_s=_POLL_S,
                    MaxNumberOfMessages=BATCH,
                    WaitTimeSeconds=_POLL_S,
                    VisibilityTimeout=int(self._spec.visibility_timeout_s),
                    MessageAttributeNames=["All"],
                    MessageSystemAttributeNames=["All"],
                )
            except MillstreamError as error:
                inbox.lose(error)
                return
            for message in answer.get("Messages", ()):
                self._there = max(0, self._there - 1)
                inbox.put(message_of(message))

    async def acknowledge(self, messages: Sequence[Message]) -> None:
        # One that cannot be deleted (its handle is too old) comes again, and is known by its id.
        await self._for_all("delete_message_batch", messages, {})

    async def extend(self, messages: Sequence[Message]) -> None:
        # One that cannot be hidden for longer (after 12 hours) comes again, and is known by its id.
        hidden = {"VisibilityTimeout": int(self._spec.visibility_timeout_s)}
        await self._for_all("change_message_visibility_batch", messages, hidden)

    async def adjust(self, inbox: Inbox) -> None:
        """Polls wait for room themselves."""

    async def close(self) -> None:
        link, inbox = self._link, self._inbox
        if link is None:
            return
        try:
            if inbox is not None and inbox.lost is None:
                with suppress(MillstreamError, TimeoutError):
                    async with asyncio.timeout(_CLOSE_S):
                        held = inbox.unacknowledged()
                        await self._for_all("change_message_visibility_batch", held, {"VisibilityTimeout": 0})
        finally:
            self._link = self._inbox = None
            await link.close()

    def pending(self) -> int | None:
        return self._there

    async def _for_all(self, request: str, messages: Sequence[Message], more: Mapping[str, Any]) -> None:
        link = self._link
        if link is None:
            return
        parts = parts_of(messages)
        for start in range(0, len(parts), _REQUESTS):
            await all_of(
                link.ask(
                    request,
                    Entries=[{"Id": str(n), "ReceiptHandle": item.tag, **more} for n, item in enumerate(part)],
                )
                for part in parts[start : start + _REQUESTS]
            )


def message_of(found: Mapping[str, Any]) -> Message:
    """A message as it was handed out. Pure."""
    system = found.get("Attributes", {})
    headers: dict[str, bytes] = {}
    for name, attribute in found.get("MessageAttributes", {}).items():
        binary = attribute.get("BinaryValue")
        headers[name] = bytes(binary) if binary is not None else str(attribute.get("StringValue", "")).encode()
    for name, key in ((GROUP, "MessageGroupId"), (DEDUPLICATION, "MessageDeduplicationId")):
        if key in system:
            headers[name] = str(system[key]).encode()
    return Message(
        value=str(found.get("Body", "")).encode(),
        tag=found["ReceiptHandle"],
        time_us=int(system.get("SentTimestamp", 0)) * 1000,
        record_id=str(found["MessageId"]),
        headers=headers,
        redelivered=int(system.get("ApproximateReceiveCount", 1)) > 1,
    )
