"""Requests that are signed as services of AWS demand it (Signature Version 4).

Above it: the session of a lane. Below it: botocore, which makes signatures, and aiobotocore, which finds credentials
where other clients of AWS find them, and renews those that expire.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from aiohttp import ClientHandlerType, ClientRequest, ClientResponse

from millstream import codes
from millstream.errors import RetryLaterError, UserError
from millstream.spec.references import resolve
from millstream.web.settings import WebAws, aws_lacks

_UNRESERVED = "-_.~"
_SIGNED = ("Content-Type",)
"""Headers that are signed if a request has them, beside the host and those that the signature adds. A proxy may change
others."""


class AwsSigner:
    """A middleware that signs each request as it is sent, at the time at which it is sent."""

    def __init__(self, settings: WebAws, credentials: Any, where: str) -> None:
        self._settings = settings
        self._credentials = credentials
        self._where = where

    async def __call__(self, request: ClientRequest, send: ClientHandlerType) -> ClientResponse:
        """Raises `RetryLaterError` if credentials that expire cannot be renewed now."""
        # Imported by `open_signer`, if signatures are wanted.
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.exceptions import BotoCoreError

        try:
            frozen = await self._credentials.get_frozen_credentials()
        except (BotoCoreError, OSError, TimeoutError) as error:
            what = f"{self._where}: auth.aws: credentials cannot be renewed now: {error}"
            raise RetryLaterError(codes.TARGET_AWAY, what) from error
        body = request.body if isinstance(request.body, bytes) else await request.body.as_bytes()
        headers = {name: request.headers[name] for name in _SIGNED if name in request.headers}
        # Some services, such as OpenSearch Serverless, only accept requests with it.
        headers["X-Amz-Content-SHA256"] = hashlib.sha256(body).hexdigest()
        signed = AWSRequest(request.method, canonical_url(str(request.url)), headers, body)
        SigV4Auth(frozen, self._settings.service, self._settings.region).add_auth(signed)
        request.headers.update(signed.headers.items())
        return await send(request)


async def open_signer(settings: WebAws, base_dir: Path, where: str) -> AwsSigner:
    """Sends nothing, unless credentials are those of the machine. Raises `UserError` if there are none."""
    at = f"{where}: auth.aws"
    for what, remedy in aws_lacks():
        raise UserError(codes.EXTRA_NEEDED, f"{at} {what}: {remedy}")
    from aiobotocore.credentials import AioCredentials
    from aiobotocore.session import get_session
    from botocore.exceptions import BotoCoreError

    if settings.access_key is not None and settings.secret_key is not None:
        token = settings.session_token
        credentials = AioCredentials(
            resolve(settings.access_key, base_dir, f"{at}.accessKey"),
            resolve(settings.secret_key, base_dir, f"{at}.secretKey"),
            None if token is None else resolve(token, base_dir, f"{at}.sessionToken"),
        )
        return AwsSigner(settings, credentials, where)
    try:
        credentials = await get_session().get_credentials()
    except (BotoCoreError, OSError) as error:
        raise UserError(codes.TARGET_REFUSES, f"{at}: the credentials of AWS cannot be used: {error}") from error
    if credentials is None:
        what = f"{at}: there are no credentials of AWS in the environment or on the machine"
        raise UserError(
            codes.TARGET_REFUSES, f"{what}. Set `accessKey` and `secretKey`, or AWS_ACCESS_KEY_ID and others"
        )
    return AwsSigner(settings, credentials, where)


def canonical_url(url: str) -> str:
    """The URL with every character of its query escaped that services escape before they compare signatures. botocore
    takes the query as it is written, where `*` and `,` may stand for themselves."""
    parts = urlsplit(url)
    pairs = (pair.partition("=") for pair in parts.query.split("&") if pair)
    query = "&".join(f"{_escaped(name)}={_escaped(value)}" for name, _, value in pairs)
    return urlunsplit(parts._replace(query=query))


def _escaped(text: str) -> str:
    return quote(unquote(text), safe=_UNRESERVED)
