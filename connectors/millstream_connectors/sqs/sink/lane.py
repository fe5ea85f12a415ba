"""Sends records to an SQS queue, ten per request, each with an id that is the same at every attempt.

    write ─► requests ─► taken: written
                     └► refused by the service, because the message is invalid: refused
                     └► refused for now, no answer: retried

A FIFO queue keeps the order of a group, so its requests are sequential; those of other queues are concurrent.

Above it: the delivery. Below it: requests to the service.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from operator import attrgetter

from millstream import codes
from millstream.background import all_of
from millstream.errors import RetryLaterError
from millstream.record import Position
from millstream_connectors.shared.first_try import first_try
from millstream_connectors.shared.requests import requests_of
from millstream_connectors.sqs.client import BATCH, SqsLink, linked
from millstream_connectors.sqs.settings import SqsSink
from millstream_connectors.sqs.sink.messages import BYTES_MAX, Put, convert
from millstream_writer.connector import SinkOwner
from millstream_writer.sink import SinkFailure, SinkFrame, SinkLane, UnkeptLane, WriteResult

_log = logging.getLogger(__name__)

REFUSED = "SQS refuses it"
_REQUESTS = 8
"""Concurrent requests."""


class SqsSinkLane(UnkeptLane):
    """A lane that sends messages."""

    def __init__(self, settings: SqsSink, owner: SinkOwner, link: SqsLink) -> None:
        self._settings = settings
        self._owner = owner
        self._link = link

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        failures: list[list[SinkFailure]] = []
        owner = self._owner
        for item in frames:
            made, unfit = convert(item, owner.ledger_id, owner.name, fifo=self._settings.fifo)
            requests = requests_of(made, attrgetter("size"), BYTES_MAX, BATCH)
            at_once = 1 if self._settings.fifo else _REQUESTS
            for start in range(0, len(requests), at_once):
                found = await all_of(self._send(request) for request in requests[start : start + at_once])
                unfit += [failure for part in found for failure in part]
            failures.append(sorted(unfit, key=lambda failure: failure.index))
        return WriteResult(failures if any(failures) else ())

    async def _send(self, request: Sequence[Put]) -> list[SinkFailure]:
        answer = await self._link.ask("send_message_batch", Entries=[put.entry for put in request])
        refused = []
        for failed in answer.get("Failed", ()):
            said = f"{failed.get('Code')}: {failed.get('Message')}"
            if not failed.get("SenderFault"):
                what = f"{self._owner.where}: SQS at {self._settings.address} does not accept messages now: {said}"
                raise RetryLaterError(codes.TARGET_AWAY, what)
            refused.append(SinkFailure(int(failed["Id"]), REFUSED, retryable=False, detail=said))
        return refused


@asynccontextmanager
async def open_sqs_sink(settings: SqsSink, owner: SinkOwner) -> AsyncIterator[SinkLane]:
    """The lane's target. If the service is away, the first write waits for it."""
    async with linked(settings, owner.base_dir, owner.where) as link:
        await first_try(link.ask("get_queue_attributes", AttributeNames=["QueueArn"]), _log)
        yield SqsSinkLane(settings, owner, link)
