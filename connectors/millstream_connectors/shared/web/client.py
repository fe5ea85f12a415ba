"""A lane's access to an HTTP server, and what its answers mean to the lane.

Above it: connectors. Below it: aiohttp. Every failure becomes a Millstream error, by who must act: one that passes by
itself becomes `RetryLaterError`. Redirects are not followed, because they would send headers with secrets elsewhere.
Messages and stack traces show host and port only: the URL and the bodies of answers may hold secrets.
"""

from __future__ import annotations

import re
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from io import BytesIO
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from aiohttp import (
    ClientConnectorCertificateError,
    ClientConnectorError,
    ClientConnectorSSLError,
    ClientError,
    ClientHandlerType,
    ClientMiddlewareType,
    ClientOSError,
    ClientRequest,
    ClientResponse,
    ClientResponseError,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
    InvalidURL,
    ServerDisconnectedError,
    TCPConnector,
    TraceConfig,
    TraceRequestRedirectParams,
)

from millstream import codes
from millstream.errors import MillstreamError, RetryLaterError, UserError
from millstream.limits import MIB
from millstream.retry import DELAY_MAX_S
from millstream.spec.references import Reference, references_in, resolve
from millstream.spec.tls import ServerTls
from millstream.wire.bodies import BoundedResponse, TooLargeError
from millstream.wire.client_tls import context_of, is_not_accepted
from millstream_connectors.shared.web.authorizing import open_bearer, open_signer
from millstream_connectors.shared.web.settings import WebServer, is_url

PASSING = frozenset({408, 409, 425, 429})
"""Statuses below 500 that pass by themselves. A server answers 409 while it is still processing the same request."""
NOT_A_HEADER_NAME = re.compile(r"[^A-Za-z0-9!#$%&'*+.^_`|~-]|^$")
CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_REFUSED = (401, 403, 407)
_DEFAULT_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}


class AskedToWaitError(RetryLaterError):
    """The server has asked for a pause, with its length."""

    def __init__(self, message: str, delay_s: float) -> None:
        super().__init__(codes.TARGET_AWAY, message)
        self.delay_s = delay_s


class _RedirectedError(ClientError):
    """A client that always follows redirects was about to follow one."""

    def __init__(self, status: int, headers: Mapping[str, str]) -> None:
        super().__init__(f"redirected with status {status}")
        self.status = status
        self.headers = headers


async def _refuse(session: ClientSession, context: object, parameters: TraceRequestRedirectParams) -> None:
    raise _RedirectedError(parameters.response.status, parameters.response.headers)


def _no_redirects() -> TraceConfig:
    """For the handshake of a WebSocket, which has no other way to refuse redirects."""
    tracing = TraceConfig()
    tracing.on_request_redirect.append(_refuse)
    return tracing


class _InterruptedError(ClientError):
    """The connection was lost before the answer to a request with a body."""


async def _once(request: ClientRequest, send: ClientHandlerType) -> ClientResponse:
    """A middleware that keeps aiohttp from repeating a request with a body: its caller repeats it.

    aiohttp repeats a PUT whose connection is lost. Many versions then send only the rest of a body that they were
    reading in parts. aiohttp has no setting for this; but it does not repeat after an error of another class.
    """
    # Known before, since a request may give up its body when it ends.
    has_body = bool(request.body)
    try:
        return await send(request)
    except ClientConnectorError:
        raise
    except (ClientOSError, ServerDisconnectedError) as error:
        if not has_body:
            raise
        raise _InterruptedError(said(error)) from error


@dataclass(frozen=True, slots=True)
class WebLink:
    """A session, and the URL it requests."""

    session: ClientSession
    url: str
    where: str
    """The session's owner, for messages."""
    secrets: Collection[str] = ()
    """Values that the settings refer to, in each form in which an answer may repeat them."""

    def shown(self, text: str) -> str:
        """The text of an answer for messages, without secrets that it repeats."""
        for secret in sorted(self.secrets, key=len, reverse=True):
            text = text.replace(secret, "…")
        return text

    @property
    def place(self) -> str:
        """The server, for messages."""
        return f"the server at {place_of(self.url)}"

    def away(self, what: str) -> RetryLaterError:
        """The error for a failure that passes by itself."""
        return RetryLaterError(codes.TARGET_AWAY, f"{self.where}: {self.place} {what}")

    def unfit(self, what: str) -> UserError:
        """The error for a failure that the user has to fix, in the settings or on the server."""
        return UserError(codes.TARGET_UNFIT, f"{self.where}: {self.place} {what}")

    def refused(self, status: int, headers: Mapping[str, str]) -> MillstreamError:
        """The error for an unexpected status."""
        if status in _REFUSED:
            what = f"{self.where}: {self.place} refuses the request with status {status}: check `auth` and `headers`"
            return UserError(codes.TARGET_REFUSES, what)
        if status >= 500 or status in PASSING:
            return AskedToWaitError(
                f"{self.where}: {self.place} answers with status {status}", retry_after_s(headers, datetime.now(UTC))
            )
        if 300 <= status < 400:
            return self.unfit(
                f"answers with status {status} and redirects to {_origin_text(headers.get('Location', ''))}; redirects "
                "are not followed. Set `url` to the target of the redirect"
            )
        return self.unfit(f"answers with status {status}; check `url`")


@contextmanager
def translated(link: WebLink) -> Iterator[None]:
    """Converts every failure of a request to a Millstream error."""
    try:
        yield
    except (ClientConnectorCertificateError, ClientConnectorSSLError, ssl.SSLError) as error:
        raise UserError(
            codes.TARGET_REFUSES, f"{link.where}: no encrypted connection to {link.place}: {error}; check `tls`"
        ) from error
    except _RedirectedError as error:
        raise link.refused(error.status, error.headers) from error
    except TooLargeError as error:
        raise link.unfit(f"gives an answer of more than {error.bytes_max} bytes; request less at once") from error
    except InvalidURL:
        # Its text is the URL, which a stack trace would show.
        raise link.unfit("has an address that cannot be used; check `url`") from None
    except TimeoutError as error:
        raise link.away("does not answer in time") from error
    except ClientResponseError as error:
        # A stack trace would show its text, too.
        raise link.away(f"cannot be reached: {said(error)}") from None
    except (ClientError, OSError) as error:
        if is_not_accepted(said(error)):
            what = f"{link.where}: {link.place} does not accept `tls.certificate`, or wants one: {said(error)}"
            raise UserError(codes.TARGET_REFUSES, what) from error
        raise link.away(f"cannot be reached: {said(error)}") from error


def body_of(data: bytes) -> bytes | BytesIO:
    """The body of a request. aiohttp writes large bytes at once, which holds up everything else, and warns of it; what
    it reads it writes in parts."""
    return data if len(data) <= MIB else BytesIO(data)


def said(error: ClientError | OSError) -> str:
    """What went wrong, without the URL, in any part of which there may be a secret."""
    if isinstance(error, InvalidURL):
        return "the URL cannot be used"
    if isinstance(error, ClientResponseError):
        return f"{error.message or type(error).__name__} (status {error.status})"
    return str(error) or type(error).__name__


@asynccontextmanager
async def linked(settings: WebServer, base_dir: Path, where: str, schemes: Collection[str]) -> AsyncIterator[WebLink]:
    """A session with all references in the settings resolved. Sends nothing yet.

    Raises `UserError` for values that are missing or cannot be sent.
    """
    url = resolve(settings.url, base_dir, f"{where}: url")
    if not is_url(url, schemes):
        # The URL may contain a secret, so it is not shown.
        raise UserError(
            codes.WEB_SETTINGS, f"{where}: the value that `url` refers to is not a usable URL ({schemes_text(schemes)})"
        )
    headers = headers_of(settings, base_dir, where)
    encrypted = urlsplit(url).scheme in ("https", "wss")
    tls = context_of(settings.tls or ServerTls(), base_dir, where) if encrypted else True
    secrets = _secrets_of(settings, base_dir, url, headers)
    async with AsyncExitStack() as stack:
        middlewares: list[ClientMiddlewareType] = [_once]
        if settings.auth is not None and settings.auth.aws is not None:
            middlewares.append(await open_signer(settings.auth.aws, base_dir, where))
        if settings.auth is not None and settings.auth.oauth2 is not None:
            bearer = open_bearer(settings.auth.oauth2, base_dir, where, secrets)
            middlewares.append(await stack.enter_async_context(bearer))
        session = ClientSession(
            connector=TCPConnector(limit=1, ssl=tls),
            timeout=ClientTimeout(total=settings.timeout_s),
            headers=headers,
            cookie_jar=DummyCookieJar(),
            trace_configs=[_no_redirects()],
            middlewares=middlewares,
            response_class=BoundedResponse,
        )
        await stack.enter_async_context(session)
        yield WebLink(session, url, where, secrets)


def _secrets_of(settings: WebServer, base_dir: Path, url: str, headers: Mapping[str, str]) -> set[str]:
    """See `WebLink.secrets`. The prefix of a reference is not a secret."""
    referring = (settings.auth, settings.headers)
    found = {
        resolve(one.model_copy(update={"prefix": ""}), base_dir, "")
        for part in referring
        for one in references_in(part)
    }
    if isinstance(settings.url, Reference):
        parts = urlsplit(url)
        found |= {url, parts.path.strip("/"), parts.query, *(value for _, value in parse_qsl(parts.query))}
    if "Authorization" in headers:
        found.add(headers["Authorization"].partition(" ")[2])
    return found - {""}


def schemes_text(schemes: Collection[str]) -> str:
    """The form of URLs, for messages."""
    plain, encrypted = schemes
    return f"{plain}://host:port/path or {encrypted}://…"


def headers_of(settings: WebServer, base_dir: Path, where: str) -> dict[str, str]:
    """Headers of every request, including those from `auth`. Raises `UserError`."""
    headers = {
        name: resolve(value, base_dir, f"{where}: the header {name!r}") for name, value in settings.headers.items()
    }
    if settings.auth is not None and settings.auth.basic is not None:
        basic = settings.auth.basic
        user = resolve(basic.user, base_dir, f"{where}: auth.basic.user")
        password = resolve(basic.password, base_dir, f"{where}: auth.basic.password")
        headers["Authorization"] = "Basic " + b64encode(f"{user}:{password}".encode()).decode()
    elif settings.auth is not None and settings.auth.token is not None:
        headers["Authorization"] = "Bearer " + resolve(settings.auth.token, base_dir, f"{where}: auth.token")
    for name, value in headers.items():
        check_header(name, value, where)
    return headers


def check_header(name: str, value: str, where: str) -> None:
    """Raises `UserError` for a header that cannot be sent."""
    if NOT_A_HEADER_NAME.search(name) is not None:
        raise UserError(
            codes.WEB_SETTINGS, f"{where}: the header {name!r} cannot be sent: this is not a valid header name"
        )
    if CONTROL.search(value) is not None:
        what = f"{where}: the header {name!r} cannot be sent: its value has a line break or another control character"
        raise UserError(codes.WEB_SETTINGS, what)


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float:
    """Seconds for which the server asks to pause, from a number or a date; 0 if it does not ask, or the value is
    invalid."""
    text = headers.get("Retry-After", "").strip()
    if text.isdecimal():
        return min(float(text), DELAY_MAX_S)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return min(max((moment - now).total_seconds(), 0.0), DELAY_MAX_S)


def place_of(url: str) -> str:
    """Host and port."""
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port or _DEFAULT_PORTS.get(parts.scheme, 80)}"


def _origin_text(url: str) -> str:
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{place_of(url)}" if parts.hostname else "another path of it"
    except ValueError:
        return "an address that is not a URL"
