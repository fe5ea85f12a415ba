"""Messages of an SQS queue, for a lane that acknowledges them.

A FIFO queue is read by one poll at a time, so that messages arrive in order.

Above it: `acknowledged`, by way of `leased`. Below it: requests to the service.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from millstream.extract import EPOCH_MS
from millstream_connectors.shared.acknowledged import AcknowledgedMessage
from millstream_connectors.shared.leased import LeasedSubscription, Pace
from millstream_connectors.shared.messages import event_time
from millstream_connectors.sqs.client import BATCH, SqsLink, linked
from millstream_connectors.sqs.settings import SqsSource
from millstream_reader.connector import SourceOwner

KIND = "sqs"
GROUP, DEDUPLICATION = "SQS-Message-Group-Id", "SQS-Message-Deduplication-Id"
_POLLS = 4
_POLL_S = 10


class SqsMessages:
    """See `LeasingQueue`."""

    def __init__(self, spec: SqsSource, link: SqsLink, there: int) -> None:
        """`there`: messages that waited when the connection was made."""
        self._spec = spec
        self._link = link
        self._there = there

    async def take(self, room: int) -> Sequence[AcknowledgedMessage]:
        # Each request costs money, so it asks for as many as the service gives, whatever the room.
        answer = await self._link.ask(
            "receive_message",
            wait_s=_POLL_S,
            MaxNumberOfMessages=BATCH,
            WaitTimeSeconds=_POLL_S,
            VisibilityTimeout=int(self._spec.visibility_timeout_s),
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["All"],
        )
        found = [message_of(message) for message in answer.get("Messages", ())]
        self._there = max(0, self._there - len(found))
        return found

    async def delete(self, messages: Sequence[AcknowledgedMessage]) -> None:
        # A message that cannot be deleted (its handle is too old) is redelivered, and recognized by its id.
        await self._about("delete_message_batch", messages, {})

    async def hide(self, messages: Sequence[AcknowledgedMessage], lease_s: int) -> None:
        # A message that cannot be hidden for longer (after 12 hours) is redelivered, and recognized by its id.
        await self._about("change_message_visibility_batch", messages, {"VisibilityTimeout": lease_s})

    def waiting(self) -> int | None:
        return self._there

    async def _about(self, request: str, messages: Sequence[AcknowledgedMessage], more: Mapping[str, Any]) -> None:
        await self._link.ask(
            request, Entries=[{"Id": str(n), "ReceiptHandle": item.tag, **more} for n, item in enumerate(messages)]
        )


def subscription(spec: SqsSource, owner: SourceOwner) -> LeasedSubscription:
    """Of a lane."""

    @asynccontextmanager
    async def open_queue() -> AsyncIterator[SqsMessages]:
        async with linked(spec, owner.base_dir, owner.where) as link:
            answer = await link.ask("get_queue_attributes", AttributeNames=["ApproximateNumberOfMessages"])
            yield SqsMessages(spec, link, int(answer.get("Attributes", {}).get("ApproximateNumberOfMessages", 0)))

    pace = Pace(int(spec.visibility_timeout_s), polls=1 if spec.fifo else _POLLS, batch=BATCH)
    return LeasedSubscription(open_queue, pace)


def message_of(found: Mapping[str, Any]) -> AcknowledgedMessage:
    """A delivered message, converted for the inbox. Pure."""
    system = found.get("Attributes", {})
    headers: dict[str, bytes] = {}
    for name, attribute in found.get("MessageAttributes", {}).items():
        binary = attribute.get("BinaryValue")
        headers[name] = bytes(binary) if binary is not None else str(attribute.get("StringValue", "")).encode()
    for name, key in ((GROUP, "MessageGroupId"), (DEDUPLICATION, "MessageDeduplicationId")):
        if key in system:
            headers[name] = str(system[key]).encode()
    time_us, fault = event_time(EPOCH_MS, system.get("SentTimestamp", 0))
    return AcknowledgedMessage(
        value=str(found.get("Body", "")).encode(),
        tag=found["ReceiptHandle"],
        time_us=time_us,
        fault=fault,
        record_id=str(found["MessageId"]),
        headers=headers,
        redelivered=str(system.get("ApproximateReceiveCount", "1")) != "1",
    )
