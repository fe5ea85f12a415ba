"""A lane's access to a bucket, and what its errors mean to the lane.

Above it: connectors. Below it: obstore. Every failure becomes a Millstream error, by who must act: one that passes by
itself becomes `RetryLaterError`, so the lane waits for a store that is away or throttles.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import obstore
from obstore import exceptions
from obstore import store as stores

from millstream import codes
from millstream.errors import MillstreamError, RetryLaterError, UserError
from millstream.limits import OBJECTS_LISTED_MAX
from millstream.spec.references import TextOrReference, resolve
from millstream_connectors.shared.objects.certificates import distrust
from millstream_connectors.shared.objects.settings import SCHEMES, ObjectStore, ObjectUrl

Store = Any
"""A store of obstore, for one bucket."""


class LongListError(OSError):
    """A list of objects that is longer than the limit."""


FAILURES = (exceptions.BaseError, OSError)
"""Exceptions of the client: everything that can go wrong between a lane and its store. obstore reports a missing object
as a missing file."""
TAKEN = exceptions.AlreadyExistsError
"""An object with this name already exists."""
CHANGED = exceptions.PreconditionError
"""The object has changed since it was listed."""

_STORES: Mapping[str, Any] = {"s3": stores.S3Store, "az": stores.AzureStore, "gs": stores.GCSStore}
_OBJECT_TIMEOUT = timedelta(hours=1)
_CONNECT = timedelta(seconds=5)
_RETRY_S = 10.0
"""How long the client repeats a request by itself. After that, the lane reports the failure and waits."""
_SHOWN = 300
"""Characters of a client's message."""
_CODE = re.compile(r"<Code>([^<]*)</Code>")
_REFUSED = ("403 Forbidden", "401 Unauthorized")
_MISSING = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")


def make_store(url: ObjectUrl, settings: ObjectStore, base_dir: Path, where: str) -> Store:
    """The bucket; sends no request. Raises `UserError` for missing credentials."""
    config: dict[str, Any] = {
        name: resolve(value, base_dir, f"{where}: the {name} for {url.root}")
        for name, value in secrets_of(url, settings).items()
        if value is not None
    }
    credential = _credential(config)
    # The client prefers what a provider gives to credentials of the environment, and does not mix the two.
    provider: Any = {} if credential is None else {"credential_provider": lambda: credential}
    places = {
        "s3": {"endpoint": settings.endpoint, "region": settings.region},
        "az": {"endpoint": settings.endpoint, "account_name": settings.account},
        "gs": {"base_url": settings.endpoint},
    }
    config.update((name, text) for name, text in places[url.scheme].items() if text is not None)
    if settings.anonymous:
        config["skip_signature"] = True
        if url.scheme == "gs":
            # The client heeds `skip_signature` when it reads and lists; when it writes or deletes, it would ask the
            # machine for a token and send that.
            config["credential_provider"] = lambda: {"token": "", "expires_at": None}
    # A large object may take long, but not without any data.
    wait = timedelta(seconds=settings.timeout_s)
    client: Any = {"timeout": _OBJECT_TIMEOUT, "read_timeout": wait, "connect_timeout": min(wait, _CONNECT)}
    if settings.endpoint is not None and settings.endpoint.startswith("http://"):
        client["allow_http"] = True
    retry: Any = {"max_retries": 5, "retry_timeout": timedelta(seconds=min(_RETRY_S, settings.timeout_s))}
    make = partial(_STORES[url.scheme], url.bucket, client_options=client, retry_config=retry, **config)
    try:
        if url.scheme == "az" and provider:
            # It checks the form of the credential, which a store with a provider does not.
            make()
        return make(**provider)
    except (exceptions.BaseError, ValueError, TypeError) as error:
        raise UserError(
            codes.CONNECTOR_SETTINGS, f"{where}: {url.root} cannot be used with these settings: {first_line(error)}"
        ) from error


def secrets_of(url: ObjectUrl, settings: ObjectStore) -> Mapping[str, TextOrReference | None]:
    """The secrets for a store of this kind, by the names that clients have for them, some with a prefix."""
    return {
        "s3": {
            "access_key_id": settings.access_key,
            "secret_access_key": settings.secret_key,
            "session_token": settings.session_token,
        },
        "az": {"account_key": settings.account_key, "sas_key": settings.sas_token},
        "gs": {"service_account_key": settings.service_account_key},
    }[url.scheme]


def _credential(given: Mapping[str, str]) -> Any:
    """What was given of S3 or Azure, as a provider gives it; None if no key and no signature was."""
    for option, name in (("account_key", "access_key"), ("sas_key", "sas_token")):
        if option in given:
            return {name: given[option], "expires_at": None}
    if "access_key_id" not in given:
        return None
    token = {"token": given["session_token"]} if "session_token" in given else {}
    keys = {name: given[name] for name in ("access_key_id", "secret_access_key")}
    return {**keys, **token, "expires_at": None}


def listed(store: Store, prefix: str | None) -> Iterator[obstore.ObjectMeta]:
    """The objects whose names begin with a prefix, for a caller that keeps them. Raises `FAILURES`, also if there are
    too many."""
    for number, meta in enumerate(meta for page in obstore.list(store, prefix) for meta in page):
        if number == OBJECTS_LISTED_MAX:
            raise LongListError(f"there are more than {OBJECTS_LISTED_MAX} objects, the limit. Name fewer of them")
        yield meta


def error_of(error: BaseException, url: ObjectUrl, where: str) -> MillstreamError:
    """The Millstream error for an error of the client. No message holds a credential."""
    said = str(error)
    place = f"{where}: {SCHEMES[url.scheme]} at {url.root}"
    code = code_in(said) or first_line(error)
    if isinstance(error, LongListError):
        return UserError(codes.TARGET_UNFIT, f"{place}: {error}")
    if any(word in said for word in _MISSING):
        return UserError(codes.TARGET_UNFIT, f"{place}: there is no such bucket. Correct the URL, or create the bucket")
    refused = isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError)
    if refused or any(word in said for word in _REFUSED):
        return UserError(codes.TARGET_REFUSES, f"{place} denies access: {code}")
    if (what := distrust(said)) is not None:
        return UserError(codes.TARGET_REFUSES, f"{place}: {what}")
    if isinstance(error, exceptions.NotSupportedError | exceptions.InvalidPathError) or "501 Not Implemented" in said:
        return UserError(codes.TARGET_UNFIT, f"{place}: {code}")
    return RetryLaterError(codes.TARGET_AWAY, f"{place} cannot be used now: {code}")


def first_line(error: BaseException) -> str:
    """The client's message, without details that only its authors understand."""
    said = str(error).partition("\n")[0].strip() or type(error).__name__
    return said if len(said) <= _SHOWN else f"{said[:_SHOWN]}…"


def code_in(said: str) -> str:
    """The code in an answer of S3; empty if there is none."""
    found = _CODE.search(said)
    return found[1][:_SHOWN] if found is not None else ""
