"""Sinks whose target keeps a position, over a path that loses answers: the target itself says what arrived."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from millstream.errors import RetryLaterError
from millstream.record import Position
from millstream.spec.models import FallbackSink
from millstream_connectors.redis_streams.sink.script import COMMIT
from millstream_runner.chaos.lossy_path import LossyPath, Wire, open_lossy_path
from tests.contract.sinks.file_target import sink_owner
from tests.contract.sinks.sink_targets import (
    MARIA_NUMBERS,
    jetstream_numbers,
    jetstream_spec,
    maria_numbers,
    maria_spec,
    postgres_spec,
    redis_numbers,
    redis_spec,
)
from tests.contract.sinks.table_lanes import again, numbers, opened
from tests.contract.sinks.wires import JETSTREAM, MARIADB, POSTGRES, REDIS
from tests.support.ledgers import lost_answer
from tests.support.mariadb_server import MariaServer
from tests.support.nats_outside import open_outside_nats
from tests.support.postgres_server import PostgresServer
from tests.support.redis_server import RedisServer
from tests.support.sizes import sized

KINDS = [
    "postgres insert",
    "postgres upsert",
    "mariadb insert",
    "mariadb upsert",
    "redis stream",
    "jetstream positions",
]


@dataclass
class Target:
    """A target, and the path to it."""

    spec: FallbackSink
    path: LossyPath
    stored: Callable[[], Awaitable[list[int]]]
    """What has arrived, in the order of its arrival."""


@pytest.fixture(params=KINDS)
async def target(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Target]:
    name, _, option = request.param.partition(" ")
    async with AsyncExitStack() as stack:

        async def path(port: int, wire: Wire) -> LossyPath:
            return await stack.enter_async_context(open_lossy_path(port, wire))

        if name == "postgres":
            postgres: PostgresServer = request.getfixturevalue("postgres")
            database = await postgres.database()
            await database.execute("CREATE TABLE numbers (n int PRIMARY KEY, text text, place bigserial)")
            lossy = await path(postgres.port, POSTGRES)
            yield Target(
                postgres_spec(database, option, port=port_of(lossy)),
                lossy,
                lambda: database.column("SELECT n FROM numbers ORDER BY place"),
            )
        elif name == "mariadb":
            mariadb: MariaServer = request.getfixturevalue("mariadb")
            tables = mariadb.database()
            tables.execute(MARIA_NUMBERS)
            lossy = await path(mariadb.port, MARIADB)
            # What is encrypted cannot be told apart.
            url = f"{lossy.url}/{tables.name}?ssl_disabled=true"
            yield Target(maria_spec(tables, option, url=url), lossy, lambda: asyncio.to_thread(maria_numbers, tables))
        elif name == "redis":
            redis: RedisServer = request.getfixturevalue("redis")
            stream = f"stream-{uuid4()}"
            # A script that the server does not have is sent twice.
            redis.client.script_load(COMMIT.text)
            lossy = await path(redis.port, REDIS)
            spec = redis_spec(redis, option, stream, url=lossy.url)
            yield Target(spec, lossy, lambda: asyncio.to_thread(redis_numbers, redis, stream))
        else:
            nats = await stack.enter_async_context(open_outside_nats(tmp_path / "nats"))
            lossy = await path(nats.server.port, JETSTREAM)
            spec = await jetstream_spec(nats, url=lossy.url, positions="positions")
            yield Target(spec, lossy, lambda: asyncio.to_thread(jetstream_numbers, nats))


def port_of(path: LossyPath) -> int:
    return int(path.url.rpartition(":")[2])


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize("landed", [True, False])
async def test_a_lost_answer_is_settled_by_looking(target: Target, *, landed: bool) -> None:
    async with opened(target.spec) as lane:
        for sequence in range(1, 6):
            if sequence % 2:
                target.path.plan(lost_answer(landed=landed))
            await again(lambda sequence=sequence: lane.write([numbers(sequence)], Position(sequence)))  # type: ignore[misc]
            assert lane.durable == Position(sequence)
    assert target.path.planned == 0
    assert await target.stored() == [*range(10, 60)]


@pytest.mark.guarantee("I1")
async def test_the_answer_to_taking_over_may_be_lost(target: Target) -> None:
    async with opened(target.spec) as lane:
        await lane.write([numbers(1)], Position(1))
        target.path.cut()
        target.path.plan(lost_answer(landed=True))
        await again(lambda: lane.write([numbers(2)], Position(2)))
    assert target.path.planned == 0
    assert await target.stored() == [*range(10, 30)]


@pytest.mark.guarantee("I1")
async def test_owners_one_after_another_over_a_path_that_breaks(target: Target) -> None:
    """Each goes on from any mark that the one before may have had."""
    rng = random.Random(5)
    mark = done = 0
    for epoch in range(1, sized(5, 12)):
        try:
            async with opened(target.spec, sink_owner(epoch, start=Position(mark))) as lane:
                for sequence in range(mark + 1, mark + rng.randint(2, 9)):
                    if rng.random() < 0.3:
                        target.path.plan(lost_answer(landed=rng.random() < 0.5))
                    if rng.random() < 0.1:
                        target.path.cut()
                    await again(lambda sequence=sequence: lane.write([numbers(sequence)], Position(sequence)))  # type: ignore[misc]
                    done = max(done, sequence)
        except RetryLaterError:
            continue
        mark = rng.randint(mark, done)
    assert sorted(await target.stored()) == [*range(10, 10 * done + 10)]
