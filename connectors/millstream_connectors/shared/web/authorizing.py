"""Requests with credentials that are made anew: a token that an issuer gives to a client (OAuth 2.0), as long as it is
valid, or a signature for a service of AWS.

Above it: the session of a lane. Below it: the issuer, which blocks, in a thread of its own; signatures, and the
credentials for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import ClientHandlerType, ClientRequest, ClientResponse

from millstream import codes
from millstream.blocking import ClientThread, open_thread
from millstream.errors import UserError
from millstream.importing import importing
from millstream_connectors.shared.aws.settings import AwsService
from millstream_connectors.shared.aws.signing import AwsCredentials, open_credentials, signed_headers
from millstream_connectors.shared.oauth2.issuer import Issuer, open_issuer
from millstream_connectors.shared.oauth2.settings import Oauth2

_ASKED_S = 10.0
"""Longest time to wait for a token. A lane that ends meanwhile leaves a thread for as long."""


class BearerTokens:
    """A middleware that gives each request a token that has not expired."""

    def __init__(self, issuer: Issuer, thread: ClientThread, secrets: set[str], where: str) -> None:
        self._issuer = issuer
        self._thread = thread
        self._secrets = secrets
        self._where = where
        self._last = ""

    async def __call__(self, request: ClientRequest, send: ClientHandlerType) -> ClientResponse:
        """Raises `UserError` if the issuer refuses the client, and `RetryLaterError` if it is away."""
        token = self._issuer.current()
        if token is None:
            token = await self._thread.run(self._issuer.token, _ASKED_S)
        if token != self._last:
            if not token.isprintable() or not token.isascii():
                what = f"{self._where}: auth.oauth2: the issuer's token has characters that a header cannot have"
                raise UserError(codes.TARGET_UNFIT, what)
            self._secrets.discard(self._last)
            self._secrets.add(token)
            self._last = token
        request.headers["Authorization"] = f"Bearer {token}"
        return await send(request)


@asynccontextmanager
async def open_bearer(settings: Oauth2, base_dir: Path, where: str, secrets: set[str]) -> AsyncIterator[BearerTokens]:
    """`secrets`: gets the token in use, for as long. Sends nothing yet. Raises `UserError` for a secret or certificate
    that cannot be read."""
    async with open_thread("oauth2-token") as thread:
        yield BearerTokens(open_issuer(settings, base_dir, where), thread, secrets, where)


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
