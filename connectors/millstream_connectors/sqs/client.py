"""A lane's access to an SQS queue, and what its errors mean to the lane.

Above it: connectors. Below it: aiobotocore. Every failure becomes a Millstream error, by who must act: one that passes
by itself becomes `RetryLaterError`, so the lane waits for a service that is away or throttles.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from aiobotocore.config import AioConfig
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import get_session
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

from millstream import codes
from millstream.errors import MillstreamError, UserError
from millstream.spec.references import resolve
from millstream.wire.bodies import BoundedResponse
from millstream_connectors.shared.failing import failure_of, translating
from millstream_connectors.sqs.settings import SqsQueue

FAILURES = (BotoCoreError, ClientError, OSError, TimeoutError, RecursionError, ValueError)
"""Exceptions of the client: everything that can go wrong between a lane and its queue. An answer that is not JSON
raises `ValueError`."""
BATCH = 10
"""Maximum number of messages in a request."""
_CONNECTIONS = 16
_ABSENT = ("NonExistentQueue", "QueueDoesNotExist")
_REFUSED = (
    *("AccessDenied", "InvalidClientTokenId", "SignatureDoesNotMatch", "UnrecognizedClientException"),
    *("InvalidAccessKeyId", "ExpiredToken", "AuthFailure", "MissingAuthenticationToken", "InvalidSecurity"),
)

_REFUSED_STATUSES = (401, 403)


class _Session(AIOHTTPSession):  # type: ignore[misc]  # the client has no types
    """The client's sessions, with answers of a limited size."""

    async def _get_session(self, proxy_url: Any) -> Any:
        session = await super()._get_session(proxy_url)
        session._response_class = BoundedResponse
        return session


class SqsLink:
    """One client. Opened by `linked`."""

    def __init__(self, queue: SqsQueue, where: str, client: Any) -> None:
        self._queue = queue
        self._where = where
        self._client = client

    async def ask(self, request: str, *, wait_s: float = 0.0, **arguments: Any) -> Mapping[str, Any]:
        """Send one request about the queue. `wait_s`: how long the service may delay the answer. Raises Millstream
        errors."""
        with translating(FAILURES, partial(_error_of, queue=self._queue, where=self._where)):
            async with asyncio.timeout(self._queue.timeout_s + wait_s):
                answer: Mapping[str, Any] = await getattr(self._client, request)(
                    QueueUrl=self._queue.queue_url, **arguments
                )
                return answer


@asynccontextmanager
async def linked(queue: SqsQueue, base_dir: Path, where: str) -> AsyncIterator[SqsLink]:
    """A client. Raises `UserError` for credentials that are not available. Sends nothing yet."""
    keys = {
        "aws_access_key_id": queue.access_key,
        "aws_secret_access_key": queue.secret_key,
        "aws_session_token": queue.session_token,
    }
    given = {
        name: resolve(value, base_dir, f"{where}: {name} for {queue.address}")
        for name, value in keys.items()
        if value is not None
    }
    # The service delays the answer to a long poll, so the client's timeout is longer than ours. The lane decides what
    # to repeat.
    config = AioConfig(
        connect_timeout=queue.timeout_s,
        read_timeout=queue.timeout_s + 30,
        max_pool_connections=_CONNECTIONS,
        retries={"total_max_attempts": 1},
        http_session_cls=_Session,
    )
    async with get_session().create_client(
        "sqs", region_name=queue.region_name, endpoint_url=queue.address, config=config, **given
    ) as client:
        yield SqsLink(queue, where, client)


async def look(queue: SqsQueue, base_dir: Path) -> None:
    """Check for `validate --online` that the queue exists. Raises Millstream errors."""
    async with linked(queue, base_dir, "validate --online") as link:
        await link.ask("get_queue_attributes", AttributeNames=["QueueArn"])


def _error_of(error: BaseException, queue: SqsQueue, where: str) -> MillstreamError:
    """The Millstream error for an error of the client."""
    place = f"{where}: SQS at {queue.address}"
    said = str(error) or type(error).__name__
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return UserError(codes.TARGET_REFUSES, f"{place}: there are no credentials: {said}")
    if isinstance(error, ClientError):
        code = str(error.response.get("Error", {}).get("Code", ""))
        if any(part in code for part in _ABSENT):
            return UserError(codes.TARGET_UNFIT, f"{place}: there is no queue {queue.queue_url}")
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500))
        if any(part in code for part in _REFUSED) or status in _REFUSED_STATUSES:
            return UserError(codes.TARGET_REFUSES, f"{place} refuses the request: {said}")
        if 400 <= status < 429 and "Throttl" not in code and "Limit" not in code:
            return UserError(codes.TARGET_UNFIT, f"{place}: {said}")
    return failure_of(error, place)
