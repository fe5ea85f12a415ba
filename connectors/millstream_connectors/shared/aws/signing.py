"""Signatures of requests, as services of AWS demand them (Signature Version 4), and the credentials for them.

Above it: links to servers. Below it: botocore, which makes signatures, finds credentials where other clients of AWS
find them, and renews those that expire.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from millstream import codes
from millstream.errors import RetryLaterError, UserError
from millstream.spec.references import resolve
from millstream_connectors.shared.aws.settings import AwsService

_UNRESERVED = "-_.~"


def signed_headers(
    settings: AwsService, keys: Any, method: str, url: str, content_type: str | None, body: bytes
) -> Mapping[str, str]:
    """The headers with which a request is sent as it is signed, now, with these keys.

    Signed are the method, the URL, the body, the host and the content type: a proxy may change other headers.
    """
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest

    headers = {} if content_type is None else {"Content-Type": content_type}
    # Some services only accept requests with it.
    headers["X-Amz-Content-SHA256"] = hashlib.sha256(body).hexdigest()
    request = AWSRequest(method, canonical_url(url), headers, body)
    SigV4Auth(keys, settings.service, settings.region).add_auth(request)
    return dict(request.headers.items())


def canonical_url(url: str) -> str:
    """The URL with every character of its query escaped that services escape before they compare signatures. botocore
    takes the query as it is written, where `*` and `,` may stand for themselves."""
    parts = urlsplit(url)
    pairs = (pair.partition("=") for pair in parts.query.split("&") if pair)
    query = "&".join(f"{_escaped(name)}={_escaped(value)}" for name, _, value in pairs)
    return urlunsplit(parts._replace(query=query))


def _escaped(text: str) -> str:
    return quote(unquote(text), safe=_UNRESERVED)


class AwsCredentials:
    """Keys that are renewed before they expire. May be used by several threads."""

    def __init__(self, found: Any, where: str) -> None:
        self._found = found
        self._where = where

    @property
    def expiring(self) -> bool:
        """Whether `keys` would have to renew them."""
        refresh_needed = getattr(self._found, "refresh_needed", None)
        return refresh_needed is not None and refresh_needed()

    def keys(self) -> Any:
        """Blocks while it renews them, or gets the first ones of a role. Raises `UserError` if it gets none, and
        `RetryLaterError` if it cannot ask now."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return self._found.get_frozen_credentials()
        except ClientError as error:
            if _passes(error.response):
                raise self._away(error) from error
            raise UserError(
                codes.TARGET_REFUSES, f"{self._where}: AWS refuses the credentials of the role: {error}"
            ) from error
        except (BotoCoreError, OSError, RuntimeError) as error:
            # botocore says by a RuntimeError that even renewed ones have expired.
            raise self._away(error) from error

    def _away(self, error: Exception) -> RetryLaterError:
        return RetryLaterError(codes.TARGET_AWAY, f"{self._where}: AWS gives no credentials now: {error}")


def _passes(response: Mapping[str, Any]) -> bool:
    """Whether an answer that is an error may be another one later."""
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500))
    return status >= 500 or status in (408, 429) or "Throttl" in str(response.get("Error", {}).get("Code", ""))


def open_credentials(settings: AwsService, base_dir: Path, where: str) -> AwsCredentials:
    """Asks the machine for credentials, if they are to come from there, and blocks then. Raises `UserError` if there
    are none."""
    from botocore.credentials import Credentials
    from botocore.exceptions import BotoCoreError
    from botocore.session import get_session

    if (given := _given(settings, base_dir, where)) is not None:
        return AwsCredentials(Credentials(*given), where)
    try:
        found = get_session().get_credentials()
    except (BotoCoreError, OSError) as error:
        raise UserError(codes.TARGET_REFUSES, f"{where}: the credentials of AWS cannot be used: {error}") from error
    if found is None:
        what = f"{where}: there are no credentials of AWS in the environment or on the machine"
        advice = "Set `accessKey` and `secretKey`, or AWS_ACCESS_KEY_ID and others"
        raise UserError(codes.TARGET_REFUSES, f"{what}. {advice}")
    return AwsCredentials(found, where)


def _given(settings: AwsService, base_dir: Path, where: str) -> tuple[str, str, str | None] | None:
    """Key, secret and token, if the pipeline file has them."""
    if settings.access_key is None or settings.secret_key is None:
        return None
    token = settings.session_token
    return (
        resolve(settings.access_key, base_dir, f"{where}.accessKey"),
        resolve(settings.secret_key, base_dir, f"{where}.secretKey"),
        None if token is None else resolve(token, base_dir, f"{where}.sessionToken"),
    )
