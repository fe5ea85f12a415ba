"""The connection to a Redis or Valkey server: retried forever. It reports lost answers as such.

Above it: the ledger and the OT store. Below it: redis-py, which does not retry here. It knows commands and scripts.

    ask, change ──► a connection of the pool ──► server      an answer arrives, or
                                                             AnswerLostError: it may or may not have had an effect
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from redis import exceptions

from millstream import codes
from millstream.buffers.redis.access import RedisAccess
from millstream.errors import InfrastructureError, StorageFullError
from millstream.pauses import Pauses, until_done
from millstream.redis.client import Script, make_client

_log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 10.0
"""How long the first connection is tried before the server counts as unreachable."""
ANSWER_TIMEOUT_S = 5.0
"""Timeout for an answer."""
BLOCK_S = 2.0
"""How long the server waits for new frames before it answers a request for frames."""
RETRY_FIRST_S = 0.02

_NOT_ADMITTED = (exceptions.AuthenticationError, exceptions.AuthorizationError)
_BUSY = ("LOADING", "BUSY ", "MASTERDOWN", "TRYAGAIN")
_FULL = ("OOM ", "MISCONF ")


class AnswerLostError(Exception):
    """The connection broke, or no answer arrived in time: the command may or may not have taken effect."""


class RedisConnection:
    """Connections of one process to one server. Opened by `open_connection`; used by any number of tasks."""

    def __init__(self, access: RedisAccess, name: str) -> None:
        self._access = access
        self.client = make_client(
            access.host,
            access.port,
            user=access.user,
            password=access.password,
            tls=access.tls,
            name=name,
            connect_timeout_s=ANSWER_TIMEOUT_S,
        )
        """The underlying client, for callers that need more than commands."""
        self._up = False
        self._loss_listeners: set[Callable[[], None]] = set()

    @property
    def place(self) -> str:
        """Host and port of the server, for messages."""
        return self._access.place

    def trouble(self) -> str | None:
        """Why nothing can be asked now; None if the last command was answered."""
        return None if self._up else f"the Redis server at {self.place} does not answer"

    async def open(self, timeout_s: float) -> None:
        """Raises `InfrastructureError` if the server does not answer in time, and immediately if it rejects the
        credentials."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s

        def check_deadline(error: AnswerLostError) -> None:
            if asyncio.get_running_loop().time() >= deadline_s:
                raise InfrastructureError(
                    codes.BROKER_UNREACHABLE,
                    f"the Redis server at {self.place} could not be reached in {timeout_s:g} s ({error}). Check that "
                    "it is running and that the address is right",
                ) from error

        await until_done(partial(self.ask, "PING"), AnswerLostError, check_deadline, tries())

    async def close(self) -> None:
        self._loss_listeners.clear()
        await self.client.aclose(close_connection_pool=True)

    def on_loss(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` whenever a connection is lost, until the returned function is called."""
        self._loss_listeners.add(listener)
        return lambda: self._loss_listeners.discard(listener)

    async def ask(self, *command: str | int | bytes) -> Any:
        """Send a command that may be repeated. Raises `AnswerLostError`, and `InfrastructureError` if it is refused."""
        return await self._answer(command)

    async def wait(self, *command: str | int | bytes) -> Any:
        """Like `ask`, for a command that may block on the server for `BLOCK_S`."""
        return await self._answer(command, BLOCK_S + ANSWER_TIMEOUT_S)

    async def change(self, script: Script, keys: Sequence[str], arguments: Sequence[str | int | bytes]) -> Any:
        """Run a script once. Raises `StorageFullError` if the server has no space left; nothing is stored then."""
        try:
            return await self._answer(("EVALSHA", script.sha, len(keys), *keys, *arguments))
        except exceptions.NoScriptError:
            # The server was restarted, or never had the script. It keeps a script that was sent as text.
            return await self._answer(("EVAL", script.text, len(keys), *keys, *arguments))

    async def _answer(self, command: Sequence[str | int | bytes], timeout_s: float = ANSWER_TIMEOUT_S) -> Any:
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self.client.execute_command(*command)  # type: ignore[no-untyped-call]
        except _NOT_ADMITTED as error:
            raise InfrastructureError(
                codes.BROKER_REFUSES,
                f"the Redis server at {self.place} refuses {self._access.identity} ({error}). Check that the "
                "credentials are those of a user that the server has",
            ) from error
        except exceptions.NoScriptError:
            raise
        except exceptions.ResponseError as error:
            raise self._refusal(command[0], error) from error
        except (exceptions.RedisError, OSError, TimeoutError) as error:
            self._lost(error)
            raise AnswerLostError(
                f"no answer in {timeout_s:g} s" if isinstance(error, TimeoutError) else repr(error)
            ) from error
        if not self._up:
            _log.info("the Redis server at %s answers", self.place)
        self._up = True
        return answer

    def _refusal(self, what: object, error: exceptions.ResponseError) -> Exception:
        text = str(error)
        if text.startswith(_BUSY):
            return AnswerLostError(text)
        if isinstance(error, exceptions.OutOfMemoryError) or text.startswith(_FULL):
            return StorageFullError(
                codes.BROKER_STORAGE_FULL, f"the Redis server at {self.place} has no space left: {text}"
            )
        if isinstance(error, exceptions.ReadOnlyError):
            return InfrastructureError(
                codes.BROKER_ROLE,
                f"the Redis server at {self.place} is a replica. Name the primary, which accepts writes",
            )
        if isinstance(error, exceptions.NoPermissionError):
            return InfrastructureError(
                codes.BROKER_RIGHTS,
                f"the Redis server at {self.place} does not let {self._access.identity} use {what}: {text}. Grant "
                "it that permission (docs/guarantees.md)",
            )
        return InfrastructureError(codes.BROKER_COMMAND, f"the Redis server at {self.place} refuses {what}: {text}")

    def _lost(self, error: Exception) -> None:
        if self._up:
            _log.warning("the Redis server at %s does not answer (%r); retrying", self.place, error)
        self._up = False
        for listener in list(self._loss_listeners):
            listener()


async def until_answered(connection: RedisConnection, *command: str | int | bytes) -> Any:
    """Repeat a command until it is answered. It must be safe to repeat, as in `changed`."""
    report = partial(_log.debug, "%s: %s; asking again", command[0])
    return await until_done(partial(connection.ask, *command), AnswerLostError, report, tries())


async def changed(
    connection: RedisConnection, script: Script, keys: Sequence[str], arguments: Sequence[str | int | bytes]
) -> Any:
    """Run a script repeatedly until it is answered. The script must be safe to repeat."""
    report = partial(_log.info, "%s; asking again")
    return await until_done(partial(connection.change, script, keys, arguments), AnswerLostError, report, tries())


def tries() -> Pauses:
    """Pauses between the repetitions of a command."""
    return Pauses(RETRY_FIRST_S, 1.0)


def pairs(answer: Any) -> Mapping[str, Any]:
    """The fields of a hash, from an answer with alternating names and values."""
    return {answer[i].decode(): answer[i + 1] for i in range(0, len(answer), 2)}


@asynccontextmanager
async def open_connection(
    access: RedisAccess, *, name: str = "millstream", timeout_s: float = CONNECT_TIMEOUT_S
) -> AsyncIterator[RedisConnection]:
    """A connection to the server.

    Raises `InfrastructureError` if no answer arrives within `timeout_s`, and immediately if the server rejects the
    credentials. After the first success it reconnects without a limit.
    """
    connection = RedisConnection(access, name)
    try:
        await connection.open(timeout_s)
        yield connection
    finally:
        await connection.close()
