"""A lane's way to a bucket, and what its errors mean to the lane.

Above it: connectors. Below it: obstore. Every failure becomes an error of ours, by who must act: what passes by itself
is `RetryLaterError`, so a store that is away or throttles is waited for.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from obstore import exceptions
from obstore import store as stores

from millstream import codes
from millstream.errors import MillstreamError, RetryLaterError, UserError
from millstream.objects.settings import SCHEMES, ObjectStore, ObjectUrl
from millstream.spec.references import resolve

Store = Any
"""One of obstore, for a bucket."""

FAILURES = (exceptions.BaseError, OSError)
"""All that goes wrong between a lane and its store. obstore takes a missing object for a missing file."""
TAKEN = exceptions.AlreadyExistsError
"""An object has the name already."""
CHANGED = exceptions.PreconditionError
"""The object is not the one that was named."""

_OBJECT_TIMEOUT = timedelta(hours=1)
_CONNECT = timedelta(seconds=5)
_RETRY_S = 10.0
"""How long the client makes a request again by itself; then the lane says so, and waits."""
_REFUSED = ("403 Forbidden", "401 Unauthorized")
_MISSING = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")


def make_store(url: ObjectUrl, settings: ObjectStore, base_dir: Path, where: str) -> Store:
    """The bucket; nothing is asked of it. Raises `UserError` for credentials that are not there."""
    config: dict[str, Any] = {}
    named = {
        "s3": (("access_key_id", settings.access_key), ("secret_access_key", settings.secret_key),
               ("session_token", settings.session_token)),
        "az": (("account_key", settings.account_key),),
        "gs": (("service_account_key", settings.service_account_key),),
    }  # fmt: skip
    for name, value in named[url.scheme]:
        if value is not None:
            config[name] = resolve(value, base_dir, f"{where}: the {name} for {url.root}")
    if settings.anonymous:
        config["skip_signature"] = True
    # A large object may take long; that nothing at all comes may not.
    wait = timedelta(seconds=settings.timeout_s)
    client: Any = {"timeout": _OBJECT_TIMEOUT, "read_timeout": wait, "connect_timeout": min(wait, _CONNECT)}
    if settings.endpoint is not None and settings.endpoint.startswith("http://"):
        client["allow_http"] = True
    retry: Any = {"max_retries": 5, "retry_timeout": timedelta(seconds=min(_RETRY_S, settings.timeout_s))}
    try:
        if url.scheme == "s3":
            if settings.endpoint is not None:
                config["endpoint"] = settings.endpoint
            if settings.region is not None:
                config["region"] = settings.region
            return stores.S3Store(url.bucket, client_options=client, retry_config=retry, **config)
        if url.scheme == "az":
            if settings.account is not None:
                config["account_name"] = settings.account
            if settings.endpoint is not None:
                config["endpoint"] = settings.endpoint
            return stores.AzureStore(url.bucket, client_options=client, retry_config=retry, **config)
        if settings.endpoint is not None:
            config["base_url"] = settings.endpoint
        return stores.GCSStore(url.bucket, client_options=client, retry_config=retry, **config)
    except (exceptions.BaseError, ValueError, TypeError) as error:
        raise UserError(
            codes.CONNECTOR_SETTINGS, f"{where}: {url.root} cannot be used as it is set up: {first_line(error)}"
        ) from error


def error_of(error: BaseException, url: ObjectUrl, where: str) -> MillstreamError:
    """An error of ours for whatever went wrong. No message holds a credential."""
    said = str(error)
    place = f"{where}: {SCHEMES[url.scheme]} at {url.root}"
    code = _word(said, "Code") or first_line(error)
    if any(word in said for word in _MISSING):
        return UserError(codes.TARGET_UNFIT, f"{place}: there is no such bucket. Correct the URL, or create the bucket")
    refused = isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError)
    if refused or any(word in said for word in _REFUSED):
        return UserError(codes.TARGET_REFUSES, f"{place} refuses the credentials or a right of theirs: {code}")
    if isinstance(error, exceptions.NotSupportedError | exceptions.InvalidPathError) or "501 Not Implemented" in said:
        return UserError(codes.TARGET_UNFIT, f"{place}: {code}")
    return RetryLaterError(codes.TARGET_AWAY, f"{place} cannot be used now: {code}")


def first_line(error: BaseException) -> str:
    """What a client says, without what only its authors understand."""
    said = str(error).partition("\n")[0].strip() or type(error).__name__
    return said if len(said) <= 300 else f"{said[:300]}…"


def _word(said: str, tag: str) -> str:
    """What stands in a tag of an answer of S3."""
    _, found, rest = said.partition(f"<{tag}>")
    return rest.partition("<")[0] if found else ""
