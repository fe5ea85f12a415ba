"""The kinds of ledger behind one harness, so that a test can run on both with the faults that all know.

Above it: the contract suite, and code that tests against ledgers. Below it: the ledgers, a real server, a lossy path.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from millstream.buffers.jetstream.ledger import open_jetstream_broker
from millstream.buffers.jetstream.server import NatsServer, open_nats_server
from millstream.buffers.jetstream.server_config import ACCOUNT
from millstream.buffers.redis.access import RedisAccess
from millstream.buffers.redis.connection import open_connection as open_redis_connection
from millstream.buffers.redis.keys import ledger_key
from millstream.buffers.redis.scripts import COMMIT
from millstream.buffers.redis.server import RedisServer, open_redis_server
from millstream.buffers.redis.technology import TECHNOLOGY as REDIS_TECHNOLOGY
from millstream.ledger.memory import Faults, MemoryBroker, open_memory_broker
from millstream.ledger.protocol import Broker, Commit, DurabilityLevel, FrameWrite, Ledger, Receipt, StoredMark
from millstream.ledger.subjects import stream_name
from millstream.record import BufferId, LaneId, id_digest
from millstream.wire.ledger.v1 import mark_pb2
from millstream_runner.chaos.lossy_path import LossyPath, Wire, open_lossy_path
from millstream_runner.chaos.plan import NetworkFault

PIPELINE = "p"
# A connection carries one command at a time: what comes back is its answer.
REDIS = Wire("redis", COMMIT.sha.encode(), b"")
_POLL_S = 0.02
_SLOW_S = 0.4
"""A broker that takes so long for each answer is slow."""


class LaneOwner:
    """The owner of a lane, as the vertex process is one: it keeps the mark and commits after it."""

    def __init__(self, ledger: Ledger, lane: LaneId, stored: StoredMark) -> None:
        self.ledger = ledger
        self.lane = lane
        self.stored = stored

    def commit_of(self, *frames: tuple[BufferId, bytes], ids: tuple[str, ...] = (), ids_ttl_s: float = 60.0) -> Commit:
        mark = mark_pb2.Mark()
        mark.CopyFrom(self.stored.mark)
        mark.commit_id = uuid4().bytes
        mark.sequence += 1
        totals = {BufferId(written.edge, written.partition): written for written in mark.written}
        for buffer, data in frames:
            if buffer not in totals:
                totals[buffer] = mark.written.add(edge=buffer.edge, partition=buffer.partition)
            totals[buffer].frames += 1
            totals[buffer].bytes += len(data)
        writes = [FrameWrite(buffer, data) for buffer, data in frames]
        digests = b"".join(id_digest(record_id.encode()) for record_id in ids)
        return Commit(
            self.lane, writes, mark, self.stored.sequence, digests, ids_ttl_s, replaces=self.stored.mark.commit_id
        )

    async def send(self, commit: Commit) -> Receipt:
        receipt = await self.ledger.commit(commit)
        self.stored = StoredMark(commit.mark, receipt.mark_sequence)
        return receipt

    async def commit(
        self, *frames: tuple[BufferId, bytes], ids: tuple[str, ...] = (), ids_ttl_s: float = 60.0
    ) -> Receipt:
        return await self.send(self.commit_of(*frames, ids=ids, ids_ttl_s=ids_ttl_s))


class SettableClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.time_s = 1_000_000.0

    def now_us(self) -> int:
        return int(self.time_s * 1_000_000)

    def monotonic_s(self) -> float:
        return self.time_s


def lost_answer(*, landed: bool) -> NetworkFault:
    """The loss of the answer to a commit: of the answer alone (`landed`), or of the commit itself."""
    return NetworkFault.LOSE_ANSWER if landed else NetworkFault.LOSE_COMMIT


class Harness(Protocol):
    """One kind of broker, with the faults that all kinds know."""

    broker: Broker

    def lose_answer(self, *, landed: bool) -> None: ...

    def slow_down(self) -> None:
        """From now on everything that is read takes its time."""

    async def other_process(self) -> Broker:
        """The broker as another process sees it."""

    async def save(self, vertex: str) -> None:
        """Keep a copy of that vertex's ledger."""

    async def set_back(self, vertex: str) -> None:
        """Put the copy in its place: the ledger has lost what was written since."""

    async def pass_time(self, seconds: float, until: Callable[[], Awaitable[bool]]) -> None:
        """Let time pass, and then wait for what it brings."""


class MemoryHarness:
    def __init__(self, broker: Broker, faults: Faults, clock: SettableClock) -> None:
        self.broker = broker
        self._faults = faults
        self._clock = clock
        self._saved: dict[str, Callable[[], None]] = {}

    def lose_answer(self, *, landed: bool) -> None:
        self._faults.lose_answer(landed=landed)

    def slow_down(self) -> None:
        """What is in memory is read at one pace."""

    async def save(self, vertex: str) -> None:
        assert isinstance(self.broker, MemoryBroker)
        self._saved[vertex] = self.broker.save(vertex)

    async def set_back(self, vertex: str) -> None:
        self._saved[vertex]()

    async def other_process(self) -> Broker:
        return self.broker

    async def pass_time(self, seconds: float, until: Callable[[], Awaitable[bool]]) -> None:
        self._clock.time_s += seconds
        assert await until()


class JetStreamHarness:
    def __init__(self, broker: Broker, server: NatsServer, path: LossyPath, processes: AsyncExitStack) -> None:
        self.broker = broker
        self.server = server
        self.path = path
        self._processes = processes

    def lose_answer(self, *, landed: bool) -> None:
        self.path.plan(lost_answer(landed=landed))

    def slow_down(self) -> None:
        self.path.slow_down(_SLOW_S)

    async def save(self, vertex: str) -> None:
        stored = self.stored_in(vertex)
        await self.server.kill()
        shutil.copytree(stored, stored.parent.parent / "saved" / vertex, dirs_exist_ok=True)
        await self.server.start()

    async def set_back(self, vertex: str) -> None:
        stored = self.stored_in(vertex)
        await self.server.kill()
        shutil.rmtree(stored)
        shutil.copytree(stored.parent.parent / "saved" / vertex, stored)
        await self.server.start()

    def stored_in(self, vertex: str) -> Path:
        """Where the server keeps that vertex's ledger."""
        return self.server.store_dir / "jetstream" / ACCOUNT / "streams" / stream_name(PIPELINE, vertex)

    async def other_process(self) -> Broker:
        opened = open_jetstream_broker(self.server.access, PIPELINE)
        return await self._processes.enter_async_context(opened)

    async def pass_time(self, seconds: float, until: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(seconds + 10):
            while not await until():  # noqa: ASYNC110  # the broker has no event for what has expired
                await asyncio.sleep(_POLL_S)


class RedisHarness:
    def __init__(self, broker: Broker, server: RedisServer, path: LossyPath, processes: AsyncExitStack) -> None:
        self.broker = broker
        self.server = server
        self.path = path
        self._processes = processes
        self._saved: dict[str, dict[bytes, bytes]] = {}

    def lose_answer(self, *, landed: bool) -> None:
        self.path.plan(lost_answer(landed=landed))

    def slow_down(self) -> None:
        self.path.slow_down(_SLOW_S)

    async def save(self, vertex: str) -> None:
        async with open_redis_connection(self.server.access) as connection:
            keys = await connection.ask("KEYS", f"{ledger_key(PIPELINE, vertex)}*")
            self._saved[vertex] = {key: await connection.ask("DUMP", key) for key in keys}

    async def set_back(self, vertex: str) -> None:
        async with open_redis_connection(self.server.access) as connection:
            await connection.ask("UNLINK", *await connection.ask("KEYS", f"{ledger_key(PIPELINE, vertex)}*"))
            for key, value in self._saved[vertex].items():
                await connection.ask("RESTORE", key, 0, value)
        await self.server.restart()

    async def other_process(self) -> Broker:
        return await self._processes.enter_async_context(open_redis_broker(self.server.access))

    async def pass_time(self, seconds: float, until: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(seconds + 10):
            while not await until():  # noqa: ASYNC110  # the server has no event for what has expired
                await asyncio.sleep(_POLL_S)


@asynccontextmanager
async def open_memory_harness() -> AsyncIterator[MemoryHarness]:
    """A broker in memory."""
    faults, clock = Faults(), SettableClock()
    async with open_memory_broker(PIPELINE, faults, clock=clock) as broker:
        yield MemoryHarness(broker, faults, clock)


@asynccontextmanager
async def open_jetstream_harness(
    directory: Path, durability: DurabilityLevel = DurabilityLevel.FSYNC
) -> AsyncIterator[JetStreamHarness]:
    """A real server with everything it writes below `directory`, behind a path that loses what it is asked to."""
    async with (
        open_nats_server(directory, sync_always=durability is DurabilityLevel.FSYNC) as server,
        open_lossy_path(server.port) as path,
        open_jetstream_broker(replace(server.access, url=path.url), PIPELINE, require=durability) as broker,
        AsyncExitStack() as processes,
    ):
        yield JetStreamHarness(broker, server, path, processes)


@asynccontextmanager
async def open_redis_broker(access: RedisAccess) -> AsyncIterator[Broker]:
    """The ledgers in a server, as a process opens them."""
    async with REDIS_TECHNOLOGY.open(access, PIPELINE, name="test") as buffer:
        yield buffer.broker


@asynccontextmanager
async def open_redis_harness(directory: Path) -> AsyncIterator[RedisHarness]:
    """A real Redis or Valkey with everything it writes below `directory`, behind a path that loses what a test names
    to."""
    async with (
        open_redis_server(directory) as server,
        open_lossy_path(server.port, REDIS) as path,
        open_redis_broker(replace(server.access, url=path.url)) as broker,
        AsyncExitStack() as processes,
    ):
        yield RedisHarness(broker, server, path, processes)
