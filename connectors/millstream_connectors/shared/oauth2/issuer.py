"""Tokens from an issuer of OAuth 2.0, by its flow for client credentials.

    issuer ─► /.well-known/openid-configuration: where it issues tokens ─► id and secret, by POST ─► token, its lifetime

pulsar-client has the same flow. But its only error does not say whether the issuer refuses the client or is away, and
it trusts the same authorities for issuer and cluster. So it gets its tokens from here.

It asks for its token in its own thread, and when it shuts down it waits for that thread while no other thread of
Python can run. So it gets the last token at once, and a thread of ours replaces that before it expires.

Above it: links to servers. Below it: the settings, and Python's client for HTTP.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from ssl import SSLContext, SSLEOFError, SSLError
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote_plus, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, ProxyHandler, Request, build_opener

from millstream import codes
from millstream.errors import MillstreamError, RetryLaterError, UserError
from millstream.json_parser import parse_json
from millstream.retry import Backoff
from millstream.spec.references import resolve
from millstream.spec.tls import ServerTls
from millstream.wire.client_tls import context_of
from millstream_connectors.shared.oauth2.settings import Oauth2

_log = logging.getLogger(__name__)

ANSWER_BYTES_MAX = 256 * 1024
_USED_SHARE = 0.9
"""Share of a token's lifetime for which it is used. The rest is for clocks that differ."""
_UNKNOWN_S = 60.0
"""How long a token is used whose lifetime the issuer does not say."""
_USED_MAX_S = 24 * 3600.0
"""How long a token is used at most, however long its lifetime."""
_RENEWED_AFTER_S = 1.0
"""The shortest time between two requests for a token that is kept."""
_AGAIN = Backoff(_RENEWED_AFTER_S, factor=2.0, cap_s=30.0, jitter=0.2)
"""When a request for a token that is kept is repeated."""
_PASSING = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
"""Answers to a request that is refused now, and may be accepted later."""
_SAID = frozenset(
    (
        *("invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "unsupported_grant_type"),
        *("invalid_scope", "invalid_target", "access_denied"),
    )
)
"""Errors that OAuth 2.0 names. Other text of an answer is not shown, because it may repeat the secret."""


class _NoRedirects(HTTPRedirectHandler):
    """A secret is sent to the address that the issuer's document names, and to no other."""

    def redirect_request(self, *_: object) -> None:
        return None


class Issuer:
    """An issuer, and the client that gets tokens from it. Methods block, and may be called from any thread."""

    def __init__(
        self,
        settings: Oauth2,
        client: tuple[str, str],
        context: SSLContext | None,
        where: str,
        now_s: Callable[[], float],
    ) -> None:
        """`client`: its id and secret."""
        self._settings = settings
        self._client = client
        # Without the proxies of the environment, as for every other address that a pipeline file names.
        self._opener = build_opener(_NoRedirects(), ProxyHandler({}), HTTPSHandler(context=context))
        self._place = f"{where}: the issuer of tokens at {settings.address}"
        self._now_s = now_s
        self._lock = threading.Lock()
        self._token = ""
        self._used_until_s = -1.0
        self._closing = threading.Event()
        self.failure: MillstreamError | None = None
        """Why the last request for a token failed; None if it succeeded."""

    def token(self, timeout_s: float) -> str:
        """A token that has not expired. Raises `UserError` if the issuer refuses the client, and `RetryLaterError` if
        it cannot be asked now."""
        with self._lock:
            asked_s = self._now_s()
            if asked_s >= self._used_until_s:
                try:
                    self._token, lifetime_s = self._issued(time.monotonic() + timeout_s)
                except (UserError, RetryLaterError) as error:
                    self.failure = error
                    raise
                self._used_until_s = asked_s + (min(lifetime_s * _USED_SHARE, _USED_MAX_S) or _UNKNOWN_S)
                self.failure = None
            return self._token

    def current(self) -> str | None:
        """The last token, if it has not expired. Never blocks."""
        return self._token if self._now_s() < self._used_until_s else None

    def last(self) -> str:
        """The last token, which may have expired. Never blocks: a client calls it in its own thread."""
        return self._token

    def keep(self, timeout_s: float) -> None:
        """Replaces the token before it expires, in a thread, until `close`. If that fails, `failure` says why, and it
        tries again. `timeout_s`: for each request."""
        threading.Thread(target=self._keep, args=(timeout_s,), name="oauth2-token", daemon=True).start()

    def close(self) -> None:
        """Ends `keep`, and does not wait for a request that is in progress."""
        self._closing.set()

    def _keep(self, timeout_s: float) -> None:
        rng = random.Random()
        failed = 0
        while not self._closing.wait(
            _AGAIN.delay_s(failed, rng) or max(_RENEWED_AFTER_S, self._used_until_s - self._now_s())
        ):
            try:
                self.token(timeout_s)
                failed = 0
            except (UserError, RetryLaterError):
                failed += 1
            except Exception:  # noqa: BLE001  # it is reported, and the thread goes on
                # Without this thread, the client would only report, much later, that its token has expired.
                _log.exception("%s: a request for a token failed unexpectedly; it is repeated", self._place)
                failed += 1

    def _issued(self, deadline_s: float) -> tuple[str, float]:
        """A new token, and its lifetime in seconds; 0 if the issuer does not say it."""
        settings = self._settings
        endpoint = settings.token_endpoint_url or self._endpoint(deadline_s)
        fields = {"grant_type": "client_credentials"}
        if settings.auth_method == "client_secret_post":
            fields |= {"client_id": self._client[0], "client_secret": self._client[1]}
        fields |= {"audience": settings.audience} if settings.audience else {}
        fields |= {"scope": settings.scope} if settings.scope else {}
        answer = self._asked(endpoint, urlencode(fields).encode(), deadline_s)
        token = answer.get("access_token")
        if not isinstance(token, str) or not token:
            raise self._away("its answer has no `access_token`")
        return token, _lifetime_s(answer.get("expires_in"))

    def _endpoint(self, deadline_s: float) -> str:
        """Where the issuer's document says that it issues tokens."""
        settings = self._settings
        document = self._asked(settings.address.rstrip("/") + "/.well-known/openid-configuration", None, deadline_s)
        endpoint = document.get("token_endpoint")
        schemes = ("https",) if settings.encrypted else ("http", "https")
        if not isinstance(endpoint, str) or _scheme(endpoint) not in schemes:
            what = f"its document names no `token_endpoint` with {' or '.join(schemes)}://"
            raise UserError(codes.TARGET_UNFIT, f"{self._place} issues no tokens: {what}. Correct `issuerUrl`")
        return endpoint

    def _asked(self, address: str, form: bytes | None, deadline_s: float) -> Mapping[str, Any]:
        """One request, and its answer. `form`: sent by POST; None for GET."""
        try:
            headers = {"Accept": "application/json"}
            if form is not None and self._settings.auth_method == "client_secret_basic":
                headers["Authorization"] = _basic(*self._client)
            with self._opener.open(Request(address, form, headers), timeout=_left_s(deadline_s)) as answer:
                found = parse_json(_body(answer, deadline_s))
        except HTTPError as error:
            with error:
                raise self._refusal(error, form is not None, deadline_s) from None
        except (OSError, HTTPException, ValueError) as error:
            # A request that gets no answer at all has the reason in an error of its own.
            cause = error.reason if isinstance(error, URLError) else error
            if isinstance(cause, SSLError) and not isinstance(cause, SSLEOFError | TimeoutError):
                raise UserError(codes.TARGET_REFUSES, f"{self._place}: no encrypted connection: {cause}") from error
            if isinstance(cause, TimeoutError):
                raise self._away("it did not answer in time") from error
            said = "its answer is not JSON" if isinstance(cause, ValueError) else str(cause) or type(cause).__name__
            raise self._away(said) from None
        if not isinstance(found, dict):
            raise self._away("its answer is not a JSON object")
        return found

    def _refusal(self, error: HTTPError, is_token: bool, deadline_s: float) -> MillstreamError:
        """The error for an answer that is not a success."""
        if error.code >= HTTPStatus.INTERNAL_SERVER_ERROR or error.code in _PASSING:
            return self._away(f"it answered {error.code}")
        if not is_token or error.code < HTTPStatus.BAD_REQUEST:
            what = f"{self._place} issues no tokens: it answered {error.code} to {urlsplit(error.url).path}"
            return UserError(codes.TARGET_UNFIT, f"{what}. Correct `{self._settings.address_field}`")
        said = f"it answered {error.code}"
        try:
            found = parse_json(_body(error, deadline_s))
        except (OSError, HTTPException, ValueError):
            found = None
        if isinstance(found, dict) and found.get("error") in _SAID:
            said += f", {found['error']}"
        return UserError(codes.TARGET_REFUSES, f"{self._place} refuses the client: {said}. Check `auth.oauth2`")

    def _away(self, said: str) -> RetryLaterError:
        return RetryLaterError(codes.TARGET_AWAY, f"{self._place} cannot be used now: {said}")


def open_issuer(settings: Oauth2, base_dir: Path, where: str, now_s: Callable[[], float] = time.monotonic) -> Issuer:
    """Sends nothing yet. Raises `UserError` for a secret or certificate that cannot be read."""
    at = f"{where}: auth.oauth2"
    if settings.private_key is not None:
        client = _client_of(resolve(settings.private_key, base_dir, f"{at}.privateKey"), f"{at}.privateKey")
    else:
        client = (
            resolve(settings.client_id, base_dir, f"{at}.clientId"),
            resolve(settings.client_secret, base_dir, f"{at}.clientSecret"),
        )
    context = context_of(settings.tls or ServerTls(), base_dir, at) if settings.encrypted else None
    return Issuer(settings, client, context, where, now_s)


def _client_of(key: str, what: str) -> tuple[str, str]:
    """Id and secret in a key file. No message has a part of its text."""
    try:
        found = parse_json(key)
    except ValueError:
        found = None
    values = [found.get(name) for name in ("client_id", "client_secret")] if isinstance(found, dict) else []
    texts = [value for value in values if isinstance(value, str) and value]
    if len(texts) != 2:
        raise UserError(
            codes.TARGET_REFUSES, f"{what} is not a key file: it has to be JSON with `client_id` and `client_secret`"
        )
    return texts[0], texts[1]


def _basic(client_id: str, secret: str) -> str:
    """Both are encoded as in a form before they are joined (RFC 6749, section 2.3.1)."""
    return f"Basic {b64encode(f'{quote_plus(client_id)}:{quote_plus(secret)}'.encode()).decode()}"


def _scheme(address: str) -> str:
    """The scheme of an address; empty if it is none."""
    try:
        return urlsplit(address).scheme
    except ValueError:
        return ""


def _lifetime_s(said: Any) -> float:
    """What an answer says of its token's lifetime, a number or its text; 0 for what cannot be one."""
    try:
        lifetime_s = float(said)
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return lifetime_s if 0.0 < lifetime_s < math.inf else 0.0


def _left_s(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _body(answer: IO[bytes], deadline_s: float) -> bytes:
    """The whole answer. Raises `ValueError` if it is too long, and `TimeoutError` if it comes too slowly."""
    found = b""
    while part := answer.read1(ANSWER_BYTES_MAX):  # type: ignore[attr-defined]  # both kinds of answers have it
        _left_s(deadline_s)
        found += part
        if len(found) > ANSWER_BYTES_MAX:
            raise ValueError("too long")
    return found
