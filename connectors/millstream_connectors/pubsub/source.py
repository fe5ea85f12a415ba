"""Messages of a Pub/Sub subscription, for a lane that acknowledges them.

    subscription ─ Pull ─► messages ─ ModifyAckDeadline: our lease, not that of the subscription ─► inbox
                 ◄─ Acknowledge, once committed

Above it: `acknowledged`, by way of `leased`. Below it: requests to the service.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from google.api_core.exceptions import DeadlineExceeded, FailedPrecondition, InvalidArgument, PermissionDenied
from google.pubsub_v1 import SubscriberAsyncClient
from google.pubsub_v1.types import (
    AcknowledgeRequest,
    GetSubscriptionRequest,
    ModifyAckDeadlineRequest,
    PullRequest,
    PullResponse,
)

from millstream.errors import MillstreamError, UserError
from millstream.extract import EPOCH_US
from millstream_connectors.pubsub.client import PubsubLink, linked_subscriber
from millstream_connectors.pubsub.settings import PubsubSource
from millstream_connectors.shared.acknowledged import AcknowledgedMessage
from millstream_connectors.shared.leased import LeasedSubscription, Pace
from millstream_connectors.shared.messages import event_time
from millstream_reader.connector import SourceOwner

KIND = "pubsub"
ORDERING_KEY = "PubSub-Ordering-Key"
_POLLS = 4
_POLL_S = 10
_BATCH = 1000
"""Maximum number of messages in a request: the most that the service delivers at once. It accepts far more
acknowledgements."""


class PulledMessages:
    """See `LeasingQueue`."""

    def __init__(self, spec: PubsubSource, link: PubsubLink[SubscriberAsyncClient]) -> None:
        self._spec = spec
        self._link = link

    async def take(self, room: int) -> Sequence[AcknowledgedMessage]:
        request = PullRequest(subscription=self._spec.path, max_messages=min(room, _BATCH))
        try:
            answer = await self._link.ask(self._link.client.pull, request, wait_s=_POLL_S)
        except MillstreamError as error:
            if isinstance(error.__cause__, DeadlineExceeded):
                # While there are no messages, the service delays its answer for longer than this client waits.
                return ()
            raise
        found = [message_of(message, self._spec.id_attribute) for message in PullResponse.pb(answer).received_messages]
        if found:
            # Until then, their lease is that of the subscription, which may be shorter than `ackDeadline`.
            await self.hide(found, int(self._spec.ack_deadline_s))
        return found

    async def delete(self, messages: Sequence[AcknowledgedMessage]) -> None:
        request = AcknowledgeRequest(subscription=self._spec.path, ack_ids=[message.tag for message in messages])
        await _unless_late(self._link, self._link.client.acknowledge, request)

    async def hide(self, messages: Sequence[AcknowledgedMessage], lease_s: int) -> None:
        request = ModifyAckDeadlineRequest(
            subscription=self._spec.path, ack_ids=[message.tag for message in messages], ack_deadline_seconds=lease_s
        )
        await _unless_late(self._link, self._link.client.modify_ack_deadline, request)

    def waiting(self) -> int | None:
        """Unknown: only the service's monitoring has this number."""
        return None


def subscription(spec: PubsubSource, owner: SourceOwner) -> LeasedSubscription:
    """The subscription that a lane reads."""

    @asynccontextmanager
    async def open_queue() -> AsyncIterator[PulledMessages]:
        async with linked_subscriber(spec, owner.base_dir, owner.where) as link:
            await _check(spec, link)
            yield PulledMessages(spec, link)

    return LeasedSubscription(open_queue, Pace(int(spec.ack_deadline_s), _POLLS, _BATCH))


async def look(spec: PubsubSource, base_dir: Path) -> None:
    """Check for `validate --online` that the subscription exists. Raises Millstream errors."""
    async with linked_subscriber(spec, base_dir, "validate --online") as link:
        await _check(spec, link)


async def _check(spec: PubsubSource, link: PubsubLink[SubscriberAsyncClient]) -> None:
    try:
        await link.ask(link.client.get_subscription, GetSubscriptionRequest(subscription=spec.path))
    except UserError as error:
        if not isinstance(error.__cause__, PermissionDenied):
            raise
        # Some accounts may read a subscription but not get its settings. This request changes nothing, and needs only
        # the permission to read.
        request = ModifyAckDeadlineRequest(subscription=spec.path, ack_ids=["none"], ack_deadline_seconds=1)
        await _unless_late(link, link.client.modify_ack_deadline, request)


async def _unless_late(link: PubsubLink[SubscriberAsyncClient], call: Callable[..., Any], request: object) -> None:
    """Send a request that may come too late: a subscription with exactly-once delivery refuses a request for an expired
    lease. Those messages are delivered again, and are recognized by their ids."""
    try:
        await link.ask(call, request)
    except UserError as error:
        if not isinstance(error.__cause__, InvalidArgument | FailedPrecondition):
            raise


def _published_us(published: Any) -> int:
    return EPOCH_US(published.ToMicroseconds())


def message_of(found: Any, id_attribute: str | None) -> AcknowledgedMessage:
    """A received message, converted for the inbox. Pure. `found`: a `ReceivedMessage` of the protocol."""
    message = found.message
    headers = {name: value.encode() for name, value in message.attributes.items()}
    if message.ordering_key:
        headers[ORDERING_KEY] = message.ordering_key.encode()
    given = message.attributes.get(id_attribute, "") if id_attribute is not None else ""
    time_us, fault = event_time(_published_us, message.publish_time)
    return AcknowledgedMessage(
        value=message.data,
        tag=found.ack_id,
        time_us=time_us,
        fault=fault,
        record_id=given or message.message_id,
        headers=headers,
        redelivered=found.delivery_attempt > 1,
    )
