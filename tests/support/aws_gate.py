"""A proxy that lets through only requests with a valid signature of AWS (Signature Version 4), as the entrances of its
services do, and a service that gives credentials to pods. The proxy computes the signature from the bytes that arrived,
by the rules that AWS publishes.

Above it: tests. Below it: aiohttp.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from urllib.parse import quote, unquote

from aiohttp import ClientSession, web
from yarl import URL

from millstream_connectors.shared.web.client import body_of
from tests.support.web_server import open_handler

ALGORITHM = "AWS4-HMAC-SHA256"
KEY_ID, SECRET, TOKEN = "AKIAEXAMPLE", "a secret / with + signs", "a session's token"
REGION, SERVICE = "eu-central-1", "es"
IDENTITY = "the identity of a pod"
_ACTION = "AssumeRoleWithWebIdentity"
_ASSUMED = (
    "<AssumedRoleUser><AssumedRoleId>id:session</AssumedRoleId>"
    "<Arn>arn:aws:sts::123456789012:assumed-role/search/session</Arn></AssumedRoleUser>"
)
_VALID_FOR = timedelta(minutes=5)
_PASSED_ON = ("Content-Type", "Content-Encoding")


@dataclass
class AwsGate:
    """What a gate has seen. `url` is its own address."""

    behind: str
    """Address to which it passes requests on."""
    token: str | None = None
    """The session's token that it demands, if it demands one."""
    url: str = ""
    passed: list[str] = field(default_factory=list)
    """Targets of the requests that it has let through."""
    refused: list[str] = field(default_factory=list)
    """Why it has refused others."""

    async def passed_on(self, request: web.Request) -> web.StreamResponse:
        """Checks one request, and passes it on."""
        body = await request.read()
        if (why := self._fault(request, body)) is not None:
            self.refused.append(why)
            return web.json_response({"message": why}, status=403)
        self.passed.append(request.raw_path)
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        target = URL(self.behind.rstrip("/") + request.raw_path, encoded=True)
        async with (
            ClientSession(skip_auto_headers=("Content-Type",)) as session,
            session.request(request.method, target, data=body_of(body), headers=headers) as answer,
        ):
            return web.Response(body=await answer.read(), status=answer.status, content_type=answer.content_type)

    def _fault(self, request: web.Request, body: bytes) -> str | None:
        """Why a request is refused; None for one that is signed."""
        algorithm, _, rest = request.headers.get("Authorization", "").partition(" ")
        given = dict(part.strip().partition("=")[::2] for part in rest.split(","))
        if algorithm != ALGORITHM or set(given) != {"Credential", "SignedHeaders", "Signature"}:
            return "the request is not signed"
        key_id, day, *scope = given["Credential"].split("/")
        stamp = request.headers.get("X-Amz-Date", "")
        signed_at = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        if key_id != KEY_ID or scope != [REGION, SERVICE, "aws4_request"] or day != stamp[:8]:
            return f"the credential is for something else: {given['Credential']}"
        if abs(datetime.now(UTC) - signed_at) > _VALID_FOR:
            return "the signature has expired"
        names = given["SignedHeaders"].split(";")
        if not {"host", "x-amz-date"} <= set(names) or (self.token and "x-amz-security-token" not in names):
            return f"a header is not signed; those are: {names}"
        if self.token != request.headers.get("X-Amz-Security-Token"):
            return "the session's token is another one"
        digest = hashlib.sha256(body).hexdigest()
        if request.headers.get("X-Amz-Content-SHA256") != digest:
            return "X-Amz-Content-SHA256 is not the digest of the body"
        path, _, query = request.raw_path.partition("?")
        pairs = sorted(
            tuple(quote(unquote(text), safe="-_.~") for text in pair.partition("=")[::2])
            for pair in query.split("&")
            if pair
        )
        canonical = "\n".join((
            request.method,
            quote(path, safe="/-_.~"),
            "&".join("=".join(pair) for pair in pairs),
            *(f"{name}:{' '.join(request.headers[name].split())}" for name in names),
            "",
            ";".join(names),
            digest,
        ))  # fmt: skip
        to_sign = "\n".join((ALGORITHM, stamp, "/".join((day, *scope)), hashlib.sha256(canonical.encode()).hexdigest()))
        key = reduce(_hmac, (day, *scope, to_sign), f"AWS4{SECRET}".encode())
        return None if hmac.compare_digest(key.hex(), given["Signature"]) else "the signature is another one"


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")


@asynccontextmanager
async def open_aws_gate(behind: str, token: str | None = None) -> AsyncIterator[AwsGate]:
    """A gate before the server at `behind`."""
    gate = AwsGate(behind, token)
    async with open_handler(gate.passed_on, auto_decompress=False) as gate.url:
        yield gate


@dataclass
class RoleService:
    """Gives the credentials of a role to pods (STS, `AssumeRoleWithWebIdentity`)."""

    url: str = ""
    status: int = 200
    """What it answers. Below 500, an error is a refusal."""
    valid_s: float = 3600.0
    """How long its credentials are valid."""
    given: int = 0
    """How often it has given them."""

    async def answer(self, request: web.Request) -> web.Response:
        form = await request.post()
        if self.status != 200 or form["WebIdentityToken"] != IDENTITY:
            error = "<Error><Type>Sender</Type><Code>AccessDenied</Code><Message>not this role</Message></Error>"
            return _xml(f"<ErrorResponse>{error}</ErrorResponse>", max(self.status, 403))
        self.given += 1
        expires = datetime.now(UTC) + timedelta(seconds=self.valid_s)
        keys = f"<AccessKeyId>{KEY_ID}</AccessKeyId><SecretAccessKey>{SECRET}</SecretAccessKey>"
        keys += f"<SessionToken>{TOKEN}</SessionToken><Expiration>{expires:%Y-%m-%dT%H:%M:%SZ}</Expiration>"
        result = f"<{_ACTION}Result><Credentials>{keys}</Credentials>{_ASSUMED}</{_ACTION}Result>"
        return _xml(f"<{_ACTION}Response>{result}</{_ACTION}Response>", 200)

    def environment(self, directory: Path) -> dict[str, str]:
        """Of a pod with the role."""
        (directory / "identity").write_text(IDENTITY)
        return {
            "AWS_WEB_IDENTITY_TOKEN_FILE": str(directory / "identity"),
            "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/search",
            "AWS_ENDPOINT_URL_STS": self.url,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_MAX_ATTEMPTS": "1",
        }


def _xml(text: str, status: int) -> web.Response:
    return web.Response(text=text, status=status, content_type="text/xml")


@asynccontextmanager
async def open_role_service() -> AsyncIterator[RoleService]:
    service = RoleService()
    async with open_handler(service.answer) as service.url:
        yield service
