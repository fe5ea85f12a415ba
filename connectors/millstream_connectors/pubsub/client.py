"""A lane's connection to Pub/Sub, and what its errors mean to the lane.

Transient errors are retried within `timeout`. An error that lasts longer, or is not transient, becomes a Millstream
error whose class says who must act.

Above it: connectors. Below it: Google's generated client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from google.api_core import exceptions
from google.api_core.retry_async import AsyncRetry
from google.auth.exceptions import GoogleAuthError
from google.pubsub_v1 import PublisherAsyncClient, SubscriberAsyncClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcAsyncIOTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcAsyncIOTransport

from millstream import codes
from millstream.errors import MillstreamError, RetryLaterError, UserError
from millstream_connectors.pubsub.settings import PubsubProject
from millstream_connectors.shared.failing import translating
from millstream_connectors.shared.google_cloud.channels import local_error_of, open_channel

C = TypeVar("C", PublisherAsyncClient, SubscriberAsyncClient)
A = TypeVar("A")

FAILURES = (
    *(exceptions.GoogleAPICallError, exceptions.RetryError, GoogleAuthError),
    *(OSError, TimeoutError, RecursionError),
)
"""Exceptions of the client: everything that can go wrong between a lane and the service."""
SCOPE = "https://www.googleapis.com/auth/pubsub"
_PASSES = (
    *(exceptions.Aborted, exceptions.InternalServerError, exceptions.ResourceExhausted),
    *(exceptions.ServiceUnavailable, exceptions.Unknown),
)
"""Errors after which a request is retried, as the service documents it for the requests that are used here."""
_AGAIN_FIRST_S, _AGAIN_LAST_S = 0.1, 2.0


class PubsubLink(Generic[C]):
    """One client. Opened by `linked_publisher` and `linked_subscriber`."""

    def __init__(self, client: C, settings: PubsubProject, where: str) -> None:
        self.client: C = client
        self._settings = settings
        self._where = where

    async def ask(self, call: Callable[..., Awaitable[A]], request: object, *, wait_s: float = 0.0) -> A:
        """Send one request. `wait_s`: how long the service may delay its answer. Raises Millstream errors."""
        limit_s = self._settings.timeout_s + wait_s
        again = AsyncRetry(
            predicate=_passes, initial=_AGAIN_FIRST_S, maximum=_AGAIN_LAST_S, multiplier=2.0, timeout=limit_s
        )
        with translating(FAILURES, partial(_error_of, settings=self._settings, where=self._where)):
            return await call(request, retry=again, timeout=limit_s)


def _passes(error: BaseException) -> bool:
    return isinstance(error, _PASSES)


def linked_subscriber(
    settings: PubsubProject, base_dir: Path, where: str
) -> AbstractAsyncContextManager[PubsubLink[SubscriberAsyncClient]]:
    """A client for subscriptions. Sends no request to the service yet. Raises `UserError` if the credentials are
    missing or invalid."""
    return _linked(SubscriberAsyncClient, SubscriberGrpcAsyncIOTransport, settings, base_dir, where)


def linked_publisher(
    settings: PubsubProject, base_dir: Path, where: str
) -> AbstractAsyncContextManager[PubsubLink[PublisherAsyncClient]]:
    """A client for topics. Raises the same errors as `linked_subscriber`."""
    return _linked(PublisherAsyncClient, PublisherGrpcAsyncIOTransport, settings, base_dir, where)


@asynccontextmanager
async def _linked(
    client: type[C], transport: Callable[..., Any], settings: PubsubProject, base_dir: Path, where: str
) -> AsyncIterator[PubsubLink[C]]:
    async with await open_channel(
        settings.endpoint,
        settings.credentials,
        SCOPE,
        base_dir=base_dir,
        where=where,
        service="Pub/Sub",
        timeout_s=settings.timeout_s,
    ) as channel:
        yield PubsubLink(client(transport=transport(channel=channel)), settings, where)


def _error_of(error: BaseException, settings: PubsubProject, where: str) -> MillstreamError:
    """The Millstream error for an error of the client."""
    place = f"{where}: Pub/Sub at {settings.endpoint}"
    if isinstance(error, exceptions.RetryError) and error.cause is not None:
        error = error.cause
    said = str(getattr(error, "message", "") or error) or type(error).__name__
    if isinstance(error, exceptions.NotFound):
        return UserError(codes.TARGET_UNFIT, f"{place}: it is not in the project {settings.project}: {said}")
    if isinstance(error, exceptions.Unauthenticated | exceptions.PermissionDenied):
        return UserError(codes.TARGET_REFUSES, f"{place} refuses it: {said}")
    if isinstance(error, exceptions.InvalidArgument | exceptions.FailedPrecondition | exceptions.MethodNotImplemented):
        return UserError(codes.TARGET_UNFIT, f"{place}: {said}")
    if "CERTIFICATE_VERIFY_FAILED" in said or "WRONG_VERSION_NUMBER" in said:
        return UserError(codes.TARGET_REFUSES, f"{place}: no encrypted connection: {said}")
    if not isinstance(error, exceptions.GoogleAPICallError | exceptions.RetryError):
        return local_error_of(error, place)
    if isinstance(error, exceptions.DeadlineExceeded):
        return RetryLaterError(codes.TARGET_AWAY, f"{place} did not answer in time")
    return RetryLaterError(codes.TARGET_AWAY, f"{place} cannot be used now: {said}")
