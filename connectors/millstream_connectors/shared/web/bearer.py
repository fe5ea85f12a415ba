"""Requests with a token that an issuer gives to a client (OAuth 2.0), as long as it is valid.

Above it: the session of a lane. Below it: the issuer, which blocks, in a thread of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import ClientHandlerType, ClientRequest, ClientResponse

from millstream import codes
from millstream.blocking import ClientThread, open_thread
from millstream.errors import UserError
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
