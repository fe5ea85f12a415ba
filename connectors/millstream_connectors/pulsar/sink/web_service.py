"""What the web service of a Pulsar cluster says about a topic. It is only asked before a run, and changes nothing."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector
from yarl import URL

from millstream import codes
from millstream.errors import RetryLaterError, UserError
from millstream.spec.tls import ServerTls
from millstream.wire.bodies import BoundedResponse
from millstream.wire.client_tls import context_of
from millstream_connectors.pulsar.credentials import credentials_now, identity_of
from millstream_connectors.pulsar.looking import Looking
from millstream_connectors.pulsar.settings import PERSISTENT, PulsarSink

_WHERE = "validate --online"


async def deduplicates(settings: PulsarSink, base_dir: Path, looking: Looking) -> bool | None:
    """Whether the brokers deduplicate the topic's messages; None if that is not known. Raises Millstream errors."""
    if settings.admin_url is None:
        return None
    headers = {}
    who = await asyncio.to_thread(credentials_now, identity_of(settings, base_dir, _WHERE), looking.timeout_s(settings))
    if who is not None and who.header is not None:
        headers["Authorization"] = who.header
    topic = quote(settings.full_topic.removeprefix(PERSISTENT))
    path = f"/admin/v2/persistent/{topic}/deduplicationEnabled?applied=true"
    address = URL(settings.admin_url.rstrip("/") + path, encoded=True)
    place = f"{_WHERE}: the web service of Pulsar at {settings.admin_url}"
    secured = TCPConnector(ssl=context_of(settings.tls or ServerTls(), base_dir, _WHERE))
    limit = ClientTimeout(looking.timeout_s(settings))
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
