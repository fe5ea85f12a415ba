"""What happens on a failure: connections are closed, and errors become Millstream's, which say who must act.

Above it: the lanes and clients of connectors. Below it: the errors of Millstream.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Generic, Protocol, TypeVar

from millstream import codes
from millstream.errors import MillstreamError, RetryLaterError, UserError


class Link(Protocol):
    """A connection."""

    async def aclose(self) -> object:
        """Close it. Called once."""


LinkT = TypeVar("LinkT", bound=Link)
E = TypeVar("E", bound=BaseException)


class Linked(Generic[LinkT]):
    """Has at most one connection, which `close` closes."""

    _link: LinkT | None = None

    async def close(self) -> None:
        """Close the connection. May be called in any state, and repeatedly."""
        link, self._link = self._link, None
        if link is not None:
            await link.aclose()


@contextmanager
def on_failure(close: Callable[[], object]) -> Iterator[None]:
    """Calls `close` if the block raises or is cancelled."""
    try:
        yield
    except BaseException:
        close()
        raise


@asynccontextmanager
async def on_failure_await(close: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
    """As `on_failure`, for what takes time to close."""
    try:
        yield
    except BaseException:
        await close()
        raise


@contextmanager
def translating(failures: type[E] | tuple[type[E], ...], error_of: Callable[[E], BaseException]) -> Iterator[None]:
    """Raises what `error_of` returns for a failure in the block instead of it."""
    try:
        yield
    except failures as error:
        raise error_of(error) from error


def failure_of(error: BaseException, place: str) -> MillstreamError:
    """The Millstream error for a failure of which the client of a server says nothing more exact: that of the user for
    a connection that cannot be encrypted, and otherwise `RetryLaterError`. `place`: the lane and the server, for the
    message."""
    said = str(error) or type(error).__name__
    if isinstance(error, ssl.SSLError) or "CERTIFICATE_VERIFY_FAILED" in said or "WRONG_VERSION_NUMBER" in said:
        return UserError(codes.TARGET_REFUSES, f"{place}: no encrypted connection: {said}")
    if isinstance(error, TimeoutError):
        return RetryLaterError(codes.TARGET_AWAY, f"{place} did not answer in time")
    return RetryLaterError(codes.TARGET_AWAY, f"{place} cannot be used now: {said}")
