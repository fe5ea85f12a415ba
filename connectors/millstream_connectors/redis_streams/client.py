"""A lane's connection to an external Redis or Valkey server, and what its errors mean to the lane.

Above it: connectors. Below it: redis-py. Every failure becomes a Millstream error, by who must act: one that passes by
itself becomes `RetryLaterError`, so the lane waits for a server that is away, restarts, loads its data or is full.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from redis import exceptions
from redis.asyncio import Redis

from millstream import codes
from millstream.errors import MillstreamError, RetryLaterError, UserError
from millstream.redis.client import Script, make_client
from millstream.spec.tls import ServerTls
from millstream.wire.client_tls import context_of, is_not_accepted
from millstream_connectors.redis_streams.settings import RedisServer
from millstream_connectors.shared.failing import failure_of, on_failure_await, translating

_log = logging.getLogger(__name__)

Word = str | int | bytes

FAILURES = (exceptions.RedisError, OSError, TimeoutError, RecursionError)
"""Exceptions of the client: everything that can go wrong between a lane and its server."""

_PASSING = (
    *("LOADING", "BUSY", "MASTERDOWN", "TRYAGAIN", "CLUSTERDOWN", "OOM"),
    *("MISCONF", "READONLY", "NOREPLICAS", "UNBLOCKED", "MOVED", "ASK"),
)
"""First words of errors that may pass: the server is loading, full or without replicas, or a slot is moving in a
cluster."""
_PASSING_TYPES = (
    exceptions.OutOfMemoryError,
    exceptions.ReadOnlyError,
    exceptions.BusyLoadingError,
    exceptions.TryAgainError,
    exceptions.ClusterDownError,
    exceptions.MasterDownError,
    exceptions.AskError,
)
"""The same, for messages from which the client removes the first word."""
_MOVES_MAX = 5
"""Number of redirections in a cluster before it counts as unstable."""
_VERSION_MIN = 7


class StreamsLink:
    """The connection of one lane, to the server that has its keys. Opened by `open_link`, closed by `aclose`."""

    def __init__(self, server: RedisServer, client: Redis, place: str) -> None:
        self._server = server
        self._client = client
        self.place = place
        """The server's place, for messages."""

    async def ask(self, *command: Word, wait_s: float = 0.0) -> Any:
        """Run one command. `wait_s`: how long the command may block on the server. Raises `FAILURES`."""
        async with asyncio.timeout(self._server.timeout_s + wait_s):
            return await self._client.execute_command(*command)  # type: ignore[no-untyped-call]

    async def run(self, script: Script, keys: Sequence[Word], arguments: Sequence[Word]) -> Any:
        """Run a script once. Raises `FAILURES`; after a failure that is not an answer, the script may have taken
        effect."""
        try:
            return await self.ask("EVALSHA", script.sha, len(keys), *keys, *arguments)
        except exceptions.NoScriptError:
            # The server has restarted, or never had the script. With the text, it keeps the script.
            return await self.ask("EVAL", script.text, len(keys), *keys, *arguments)

    async def aclose(self) -> None:
        await self._client.aclose(close_connection_pool=True)


def translated(server: RedisServer, where: str) -> AbstractContextManager[None]:
    """Converts errors of the client to Millstream errors."""
    return translating(FAILURES, partial(error_of, server=server, where=where))


async def open_link(server: RedisServer, base_dir: Path, where: str, name: str, key: str) -> StreamsLink:
    """A connection to the server that has `key`, which in a cluster may be a different one from that in the settings.

    Raises `UserError` if the user has to change something, and `RetryLaterError` if it cannot be reached now.
    """
    password = server.given_password(base_dir, where)
    tls = context_of(server.tls or ServerTls(), base_dir, where) if server.encrypted else None
    host, port = server.host, server.port
    for _ in range(_MOVES_MAX):
        client = make_client(
            host,
            port,
            user=server.user,
            password=password,
            tls=tls,
            name=name,
            connect_timeout_s=server.timeout_s,
            database=server.database,
        )
        link = StreamsLink(server, client, f"{host}:{port}")
        try:
            async with on_failure_await(link.aclose):
                await _check_version(link, where)
                await link.ask("TYPE", key)
        except exceptions.MovedError as moved:
            host, port = str(moved.host) or host, int(moved.port)
        except FAILURES as error:
            raise error_of(error, server, where) from error
        else:
            return link
    raise RetryLaterError(
        codes.TARGET_AWAY, f"{where}: the servers of the Redis cluster at {server.host} redirect to other servers"
    )


@asynccontextmanager
async def looking(server: RedisServer, base_dir: Path, key: str) -> AsyncIterator[StreamsLink]:
    """A connection for `validate --online`. Raises Millstream errors."""
    where = "validate --online"
    link = await open_link(server, base_dir, where, "millstream validate", key)
    async with aclosing(link):
        with translated(server, where):
            yield link


async def warn_unless_durable(link: StreamsLink, where: str) -> None:
    """Log what the server may lose of the writes that it has acknowledged."""
    names = ("appendonly", "appendfsync", "maxmemory", "maxmemory-policy")
    try:
        found = {name: value.decode() for name, value in pairs(await link.ask("CONFIG", "GET", *names)).items()}
    except exceptions.ResponseError:
        # The server does not answer; many services forbid the command.
        return
    if found.get("appendonly") != "yes" or found.get("appendfsync") != "always":
        kept = "keeps nothing of what it acknowledged last" if found.get("appendonly") == "yes" else "keeps nothing"
        _log.warning(
            "%s: the Redis server at %s %s when its machine stops (appendonly %s, appendfsync %s); with "
            "`appendfsync always` it keeps everything",
            where, link.place, kept, found.get("appendonly"), found.get("appendfsync"),
        )  # fmt: skip
    if found.get("maxmemory", "0") != "0" and str(found.get("maxmemory-policy")).startswith("allkeys"):
        _log.warning(
            "%s: the Redis server at %s removes keys when it is full (maxmemory-policy %s), including the lane's "
            "position",
            where, link.place, found.get("maxmemory-policy"),
        )  # fmt: skip


async def _check_version(link: StreamsLink, where: str) -> None:
    try:
        info = await link.ask("INFO", "server")
    except exceptions.NoPermissionError:
        # The server does not answer. A missing command fails when it is used.
        return
    lines = dict(line.partition(":")[::2] for line in info.decode(errors="replace").splitlines())
    version = lines.get("redis_version", "")
    major = version.partition(".")[0]
    if major.isdigit() and int(major) < _VERSION_MIN:
        what = f"{where}: the server at {link.place} is Redis {version}; version {_VERSION_MIN} or later is needed"
        raise UserError(codes.TARGET_UNFIT, what)


async def in_cluster(link: StreamsLink) -> bool:
    """Whether the server belongs to a cluster; False if it does not answer."""
    try:
        return b"cluster_enabled:1" in await link.ask("INFO", "cluster")
    except exceptions.NoPermissionError:
        return False


def pairs(answer: Any) -> Mapping[str, bytes]:
    """The fields of a hash, from an answer with alternating names and values."""
    return {answer[i].decode(): answer[i + 1] for i in range(0, len(answer), 2)}


def error_of(error: BaseException, server: RedisServer, where: str) -> MillstreamError:
    """The Millstream error for an error of the client."""
    place = f"{where}: Redis at {server.host}:{server.port}"
    said = str(error) or type(error).__name__
    if isinstance(error, exceptions.AuthenticationError | exceptions.AuthorizationError | exceptions.NoPermissionError):
        who = f"user {server.user}" if server.user is not None else "the default user"
        return UserError(codes.TARGET_REFUSES, f"{place} refuses {who}: {said}")
    if is_not_accepted(said):
        return UserError(codes.TARGET_REFUSES, f"{place} does not accept `tls.certificate`, or wants one: {said}")
    passes = said.startswith(_PASSING) or isinstance(error, _PASSING_TYPES)
    if isinstance(error, exceptions.ResponseError) and not passes:
        return UserError(codes.TARGET_UNFIT, f"{place}: {said}")
    return failure_of(error, place)


def hash_tag(name: str) -> str:
    """The part of a key that determines its slot in a cluster."""
    _, brace, rest = name.partition("{")
    tag, end, _ = rest.partition("}")
    return tag if brace and end and tag else name
