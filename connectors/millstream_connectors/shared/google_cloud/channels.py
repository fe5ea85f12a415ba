"""An authenticated gRPC channel to a service of Google Cloud.

Above it: connectors. Below it: Google's libraries for credentials and gRPC.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import google.auth
import grpc.aio
from cryptography.exceptions import UnsupportedAlgorithm
from google.api_core import grpc_helpers_async
from google.auth.credentials import Credentials
from google.auth.exceptions import GoogleAuthError, TransportError
from google.auth.transport.requests import Request
from google.oauth2 import service_account

from millstream import codes
from millstream.errors import MillstreamError, RetryLaterError, UserError
from millstream.json_parser import parse_json
from millstream.limits import GRPC_MESSAGE_BYTES_MAX
from millstream.spec.references import Secret, resolve
from millstream_connectors.shared.google_cloud.endpoints import address_of, is_encrypted

_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    # gRPC checks this after decompression.
    ("grpc.max_receive_message_length", GRPC_MESSAGE_BYTES_MAX),
    # Detects a dead connection on which no requests are sent.
    ("grpc.keepalive_time_ms", 30_000),
)


async def open_channel(
    endpoint: str, credentials: Secret | None, scope: str, *, base_dir: Path, where: str, service: str, timeout_s: float
) -> grpc.aio.Channel:
    """A channel, which sends nothing to the service yet. `scope`: what the credentials have to allow. `service`: its
    name in messages. Raises `UserError` if the credentials are missing or invalid, `RetryLaterError` if they cannot be
    obtained now."""
    if not is_encrypted(endpoint):
        return grpc.aio.insecure_channel(address_of(endpoint), options=_OPTIONS)
    key = None
    if credentials is not None:
        key = resolve(credentials, base_dir, f"{where}: credentials for {endpoint}")
    try:
        # This may send a request to the machine's metadata server or to a token server.
        async with asyncio.timeout(timeout_s):
            found = await asyncio.to_thread(_credentials, key, scope)
    except _NotAKeyError as error:
        raise UserError(
            codes.TARGET_REFUSES, f"{where}: `credentials` for {endpoint} are not the JSON key of a service account"
        ) from error
    except (GoogleAuthError, OSError, TimeoutError) as error:
        raise local_error_of(error, f"{where}: {service} at {endpoint}") from error
    create: Any = grpc_helpers_async.create_channel
    channel: grpc.aio.Channel = create(address_of(endpoint), credentials=found, options=_OPTIONS)
    return channel


def local_error_of(error: BaseException, place: str) -> MillstreamError:
    """The Millstream error for a failure that is not an answer of the service. `place` begins the message."""
    said = str(error) or type(error).__name__
    if isinstance(error, GoogleAuthError) and not isinstance(error, TransportError) and not error.retryable:
        return UserError(codes.TARGET_REFUSES, f"{place}: there are no valid credentials: {said}")
    if isinstance(error, TimeoutError):
        return RetryLaterError(codes.TARGET_AWAY, f"{place} did not answer in time")
    return RetryLaterError(codes.TARGET_AWAY, f"{place} cannot be used now: {said}")


class _NotAKeyError(Exception):
    """The credentials are not a key. The message has no part of their text."""


def _credentials(key: str | None, scope: str) -> Credentials:
    """The credentials of a key, or those of the environment. Blocks."""
    found: Any
    if key is not None:
        make: Any = service_account.Credentials.from_service_account_info
        try:
            found = make(parse_json(key), scopes=(scope,))
        except (ValueError, TypeError, AttributeError, LookupError, UnsupportedAlgorithm) as error:
            raise _NotAKeyError(type(error).__name__) from None
    else:
        found, _ = google.auth.default(scopes=(scope,))
    credentials: Credentials
    if isinstance(found, service_account.Credentials):
        # A service account signs its tokens itself, without a token server.
        make = found.with_always_use_jwt_access
        credentials = make(True)
    else:
        # Without this, gRPC would report a failed refresh as an unavailable server.
        found.refresh(Request())
        credentials = found
    return credentials
