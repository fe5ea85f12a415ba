"""What `validate --online` asks a Pulsar cluster, and its web service.

Above it: the `pulsar` source and sink. Below it: a client. Nothing is changed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector
from pulsar.exceptions import TopicNotFound
from yarl import URL

from millstream import codes
from millstream.blocking import open_thread
from millstream.errors import RetryLaterError, UserError
from millstream.limits import PULSAR_LOOK_S
from millstream.spec.tls import ServerTls
from millstream.wire.bodies import BoundedResponse
from millstream.wire.client_tls import context_of
from millstream_connectors.pulsar.client import open_link
from millstream_connectors.pulsar.credentials import credentials_now, identity_of
from millstream_connectors.pulsar.settings import PERSISTENT, PulsarCluster, PulsarSink
from millstream_connectors.shared.faults import Fault

_WHERE = "validate --online"
_LEFT_MIN_S = 0.1
"""Time for the last question, however long the ones before it took."""


async def look_at_sink(settings: PulsarSink, base_dir: Path) -> list[Fault]:
    """What of the cluster does not fit the settings of a sink. Raises Millstream errors."""
    topic, until_s = settings.full_topic, time.monotonic() + PULSAR_LOOK_S
    faults = await look(settings, [topic], base_dir)
    if not faults and settings.deduplication and await deduplicates(settings, base_dir, until_s) is False:
        what = f"the brokers do not deduplicate messages of {topic}"
        expected = "`pulsar-admin namespaces set-deduplication --enable NAMESPACE`, or `deduplication: false`"
        faults.append(Fault(("deduplication",), what, expected))
    return faults


async def look(cluster: PulsarCluster, topics: Sequence[str], base_dir: Path) -> list[Fault]:
    """The topics that the cluster does not have. Raises Millstream errors if it cannot be reached."""
    cluster = cluster.model_copy(update={"timeout_s": min(cluster.timeout_s, PULSAR_LOOK_S)})
    missing = []
    async with open_thread("pulsar-look") as thread:
        link = await thread.run(open_link, cluster, base_dir, _WHERE)
        try:
            with link.translated():
                for topic in topics:
                    try:
                        await thread.run(link.partitions, topic)
                    except TopicNotFound:
                        missing.append(Fault(("topic",), f"there is no topic {topic}", "an existing topic"))
        finally:
            thread.end(link.close)
    return missing


async def deduplicates(settings: PulsarSink, base_dir: Path, until_s: float) -> bool | None:
    """Whether the brokers deduplicate the topic's messages; None if that is not known. Asks until then, in monotonic
    seconds. Raises Millstream errors."""

    def left_s() -> float:
        return max(_LEFT_MIN_S, min(settings.timeout_s, until_s - time.monotonic()))

    if settings.admin_url is None:
        return None
    headers = {}
    who = await asyncio.to_thread(credentials_now, identity_of(settings, base_dir, _WHERE), left_s())
    if who is not None and who.header is not None:
        headers["Authorization"] = who.header
    topic = quote(settings.full_topic.removeprefix(PERSISTENT))
    path = f"/admin/v2/persistent/{topic}/deduplicationEnabled?applied=true"
    address = URL(settings.admin_url.rstrip("/") + path, encoded=True)
    place = f"{_WHERE}: the web service of Pulsar at {settings.admin_url}"
    secured = TCPConnector(ssl=context_of(settings.tls or ServerTls(), base_dir, _WHERE))
    limit = ClientTimeout(left_s())
    try:
        async with (
            ClientSession(headers=headers, timeout=limit, connector=secured, response_class=BoundedResponse) as session,
            session.get(address) as answer,
        ):
            redirected = ""
            if (origin := answer.url.origin()) != address.origin():
                redirected = (
                    f"; it redirected to {origin}, to which no credentials are sent: set `adminUrl` to that address"
                )
            if answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
                raise UserError(codes.TARGET_REFUSES, f"{place} refuses the credentials ({answer.status}){redirected}")
            if not answer.ok:
                raise RetryLaterError(
                    codes.TARGET_AWAY, f"{place} cannot be used now: it answered {answer.status}{redirected}"
                )
            found = await answer.json(content_type=None)
    except (ClientError, OSError, TimeoutError, ValueError) as error:
        said = str(error) or type(error).__name__
        raise RetryLaterError(codes.TARGET_AWAY, f"{place} cannot be used now: {said}") from error
    return found if isinstance(found, bool) else None
