"""Requests that are signed for a service of AWS.

Above it: the session of a lane. Below it: signatures, and the credentials for them.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from aiohttp import ClientHandlerType, ClientRequest, ClientResponse

from millstream.importing import importing
from millstream_connectors.shared.aws.settings import AwsService
from millstream_connectors.shared.aws.signing import AwsCredentials, open_credentials, signed_headers


class Signer:
    """A middleware that signs each request at the time at which it is sent."""

    def __init__(self, settings: AwsService, credentials: AwsCredentials) -> None:
        self._settings = settings
        self._credentials = credentials

    async def __call__(self, request: ClientRequest, send: ClientHandlerType) -> ClientResponse:
        """Raises `RetryLaterError` if credentials that expire cannot be renewed now."""
        credentials = self._credentials
        keys = await asyncio.to_thread(credentials.keys) if credentials.expiring else credentials.keys()
        body = request.body if isinstance(request.body, bytes) else await request.body.as_bytes()
        content_type = request.headers.get("Content-Type")
        headers = signed_headers(self._settings, keys, request.method, str(request.url), content_type, body)
        request.headers.update(headers)
        return await send(request)


async def open_signer(settings: AwsService, base_dir: Path, where: str) -> Signer:
    """Sends nothing to the service. Raises `UserError` if there are no credentials."""
    return Signer(settings, await importing(open_credentials, settings, base_dir, f"{where}: auth.aws"))
