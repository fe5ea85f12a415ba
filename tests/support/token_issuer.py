"""A stand-in for an issuer of tokens, over HTTP on the loopback: OAuth 2.0's flow for client credentials (RFC 6749).

It compares id, secret, audience and scope, and issues tokens that the server of a test can check. Above it: tests.
Below it: aiohttp.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

CLIENT_ID, CLIENT_SECRET = "shop", "a client's s3cret/+&?"
AUDIENCE, SCOPE = "urn:test:cluster", "produce consume"


class TokenIssuer:
    """`away` and the others are its faults. After `stop` and `start` it has the same port."""

    def __init__(self, make: Callable[[str, float], str], tls: ssl.SSLContext | None) -> None:
        self._make = make
        self._tls = tls
        self._port = 0
        self._runner: web.AppRunner | None = None
        self.url = ""
        self.lifetime_s = 3600.0
        """How long its tokens are valid."""
        self.said: str | None = None
        """What its answers say of it, as JSON; None for the truth."""
        self.issued = 0
        """Tokens that it has issued."""
        self.away = False
        """It answers 503, as a proxy does in front of an issuer that is down."""
        self.is_silent = False
        """It accepts requests, and never answers, as behind a firewall that drops packets."""
        self.asked_silent = asyncio.Event()
        """Set when a request has come that is not answered."""
        self.secret = CLIENT_SECRET
        """What its client has to say."""
        self.echoes = False
        """A refusal repeats what was sent."""
        self.endpoint: str | None = None
        """What its document says of where it issues tokens, if it is not true."""
        self.page: web.Response | None = None
        """What it answers to each request, if it is another program."""

    @property
    def settings(self) -> dict[str, Any]:
        """In a pipeline file, without the secret."""
        return {"issuerUrl": self.url, "audience": AUDIENCE, "scope": SCOPE}

    @property
    def key_file(self) -> str:
        """As the web pages of managed clusters offer it."""
        more = {"type": "client_credentials", "client_email": "shop@example.org", "issuer_url": self.url}
        return json.dumps({**more, "client_id": CLIENT_ID, "client_secret": CLIENT_SECRET})

    async def start(self) -> None:
        """Returns when it listens."""
        application = web.Application()
        application.router.add_get("/tenant/.well-known/openid-configuration", self._document)
        application.router.add_post("/tenant/token", self._token)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, ssl_context=self._tls).start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http{'s' if self._tls else ''}://127.0.0.1:{self._port}/tenant/"

    async def stop(self) -> None:
        """Its port is closed."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    async def _document(self, _: web.Request) -> web.StreamResponse:
        endpoint = self.endpoint or f"{self.url}token"
        await self._answerable()
        return self._fault() or web.json_response({"issuer": self.url, "token_endpoint": endpoint})

    async def _token(self, request: web.Request) -> web.StreamResponse:
        await self._answerable()
        if (fault := self._fault()) is not None:
            return fault
        form = dict(await request.post())
        echo = {"error_description": f"not {form}"} if self.echoes else {}
        if form.pop("grant_type", None) != "client_credentials":
            return web.json_response({"error": "unsupported_grant_type", **echo}, status=400)
        if (form.pop("client_id", None), form.pop("client_secret", None)) != (CLIENT_ID, self.secret):
            return web.json_response({"error": "invalid_client", **echo}, status=401)
        if form != {"audience": AUDIENCE, "scope": SCOPE}:
            return web.json_response({"error": "invalid_request", **echo}, status=400)
        self.issued += 1
        token = self._make(CLIENT_ID, self.lifetime_s)
        said = str(int(self.lifetime_s)) if self.said is None else self.said
        text = f'{{"access_token": {json.dumps(token)}, "token_type": "Bearer", "expires_in": {said}}}'
        return web.json_response(text=text)

    async def _answerable(self) -> None:
        """Returns at once, or never."""
        if self.is_silent:
            self.asked_silent.set()
            await asyncio.Event().wait()

    def _fault(self) -> web.Response | None:
        if self.page is not None:
            return web.Response(status=self.page.status, body=self.page.body, headers=self.page.headers)
        return web.Response(status=503) if self.away else None


@asynccontextmanager
async def open_token_issuer(
    make: Callable[[str, float], str], tls: ssl.SSLContext | None = None
) -> AsyncIterator[TokenIssuer]:
    """One that listens. `make`: a token for a role, and the seconds for which it is valid."""
    issuer = TokenIssuer(make, tls)
    await issuer.start()
    try:
        yield issuer
    finally:
        await issuer.stop()
