"""Publishes records to a Pub/Sub topic, up to 1000 per request. The id of a record is the same at every attempt.

    write ─► requests ─► published: written
                     └► invalid ─► halved, until the invalid records are found: refused
                     └► refused for now, no answer: retried

Requests with the same ordering key are sent one after another; other requests are sent concurrently.

Above it: the delivery. Below it: requests to the service.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from google.api_core.exceptions import InvalidArgument, PermissionDenied
from google.pubsub_v1 import PublisherAsyncClient
from google.pubsub_v1.types import GetTopicRequest, PublishRequest

from millstream.background import all_of
from millstream.errors import UserError
from millstream.record import Position
from millstream_connectors.pubsub.client import PubsubLink, linked_publisher
from millstream_connectors.pubsub.settings import PubsubSink
from millstream_connectors.pubsub.sink.messages import BYTES_MAX, MESSAGES_MAX, Put, convert, requests_of
from millstream_connectors.shared.first_try import first_try
from millstream_writer.connector import SinkOwner
from millstream_writer.sink import SinkFailure, SinkFrame, SinkLane, UnkeptLane, WriteResult

_log = logging.getLogger(__name__)

REFUSED = "Pub/Sub refuses it"
_REQUESTS = 8
"""Maximum number of concurrent requests."""


class PubsubSinkLane(UnkeptLane):
    """A lane that publishes messages."""

    def __init__(self, settings: PubsubSink, owner: SinkOwner, link: PubsubLink[PublisherAsyncClient]) -> None:
        self._settings = settings
        self._owner = owner
        self._link = link

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        failures: list[list[SinkFailure]] = []
        for item in frames:
            made, unfit = convert(item, self._owner.ledger_id, ordered=self._settings.ordering_key_source == "key")
            chains = requests_of(made, MESSAGES_MAX, BYTES_MAX)
            for start in range(0, len(chains), _REQUESTS):
                found = await all_of(self._follow(chain) for chain in chains[start : start + _REQUESTS])
                unfit += [failure for part in found for failure in part]
            failures.append(sorted(unfit, key=lambda failure: failure.index))
        return WriteResult(failures if any(failures) else ())

    async def _follow(self, chain: Sequence[Sequence[Put]]) -> list[SinkFailure]:
        return [failure for request in chain for failure in await self._publish(request)]

    async def _publish(self, puts: Sequence[Put]) -> list[SinkFailure]:
        """Publish one request. The service accepts either all its messages or none."""
        raw: Any = PublishRequest.pb()
        request = PublishRequest.wrap(raw(topic=self._settings.path, messages=[put.message for put in puts]))
        try:
            await self._link.ask(self._link.client.publish, request)
        except UserError as error:
            if not isinstance(error.__cause__, InvalidArgument):
                raise
            if len(puts) == 1:
                detail = str(error.__cause__.message)
                return [SinkFailure(puts[0].row, REFUSED, retryable=False, detail=detail, shows_value=True)]
            half = len(puts) // 2
            return [*await self._publish(puts[:half]), *await self._publish(puts[half:])]
        return []


@asynccontextmanager
async def open_pubsub_sink(settings: PubsubSink, owner: SinkOwner) -> AsyncIterator[SinkLane]:
    """The lane's target. If the service is away, the first write waits for it."""
    async with linked_publisher(settings, owner.base_dir, owner.where) as link:
        await first_try(_check(settings, link), _log)
        yield PubsubSinkLane(settings, owner, link)


async def look(settings: PubsubSink, base_dir: Path) -> None:
    """Check for `validate --online` that the topic exists. Raises Millstream errors."""
    async with linked_publisher(settings, base_dir, "validate --online") as link:
        await _check(settings, link)


async def _check(settings: PubsubSink, link: PubsubLink[PublisherAsyncClient]) -> None:
    try:
        await link.ask(link.client.get_topic, GetTopicRequest(topic=settings.path))
    except UserError as error:
        # Some accounts may publish but not get the topic: the first write shows whether this one may.
        if not isinstance(error.__cause__, PermissionDenied):
            raise
