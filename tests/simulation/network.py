"""Between a simulated process and the broker: requests and answers take time, get lost, come twice or too late.

What a request does it does at the broker, whatever has become of the process meanwhile: one that was killed or paused
after it sent a commit may find that commit done, or find it done later.

Above it: `world`, which gives these to the assembly. Below it: the ledgers and OT stores in memory that are shipped.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import Context
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from millstream import codes
from millstream.errors import DamageError, FencedError, RetryLaterError
from millstream.ledger.marks import taken_over, takeover
from millstream.ledger.memory import MemoryBroker
from millstream.ledger.protocol import (
    Commit,
    Durability,
    GivenUp,
    Ledger,
    LedgerLimits,
    LedgerStatistics,
    Receipt,
    StoredFrame,
    StoredIds,
    StoredMark,
    Witness,
)
from millstream.ledger.sharing import Sharing
from millstream.limits import COMMIT_TIMEOUT_S, OT_PUT_TIMEOUT_S
from millstream.record import BufferId, LaneId
from millstream.watermark.memory import MemoryOtStore, OtMemory
from millstream.watermark.publish import CoalescingPublisher
from millstream.watermark.store import OtStatistics, OtUpdate, decode_update
from millstream.watermark.updates import UpdateQueue
from millstream.wire.watermark.v1.ot_pb2 import OtEntry
from tests.simulation.history import History
from tests.simulation.loop import CURRENT

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Weather:
    """How likely what is."""

    latency_s: float = 0.001
    """Of most ways."""
    slow: float = 0.02
    """Share of ways that take 50 times as long."""
    lost_requests: float = 0.0
    lost_answers: float = 0.0
    repeated: float = 0.0
    """Requests that arrive twice."""
    overtaken: float = 0.0
    """Requests that arrive after they were sent again."""
    unheard: float = 0.0
    """Updates of OT stores that a watcher misses until it reads everything again."""


class Network:
    """All ways between processes and the broker."""

    def __init__(self, rng: random.Random, weather: Weather, server: Context) -> None:
        self._rng = rng
        self.weather = weather
        self._server = server
        self.set_backs = 0
        """How often a broker has come back as it was before: what was on its way to it is lost."""
        self.is_slow = False
        """Every way takes a second or so."""

    def way_s(self) -> float:
        if self.is_slow:
            return 0.3 + 1.7 * self._rng.random()
        latency_s = self.weather.latency_s * (0.5 + self._rng.random())
        return latency_s * 50 if self._rng.random() < self.weather.slow else latency_s

    async def ask(self, do: Callable[[], T], cut: Callable[[], bool], *, timeout_s: float, again: bool = True) -> T:
        """Have `do` done at the broker, and return its answer; asks again without one, or raises `RetryLaterError`.

        `cut`: nothing comes through now.
        """
        weather, random01 = self.weather, self._rng.random
        process, set_backs = CURRENT.get(), self.set_backs

        def is_lost(repeated: bool) -> bool:
            # Who is alive sends it again.
            return set_backs != self.set_backs and (repeated or process.dead)

        while True:
            fate = random01()
            if cut() or fate < (limit := weather.lost_requests):
                await asyncio.sleep(timeout_s)
            elif fate < (limit := limit + weather.lost_answers):
                self._later(self.way_s(), _quietly, do, is_lost)
                await asyncio.sleep(timeout_s)
            elif again and fate < limit + weather.overtaken:
                self._later(timeout_s * (1 + random01()), _quietly, do, is_lost)
                await asyncio.sleep(timeout_s)
            else:
                answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
                self._later(self.way_s(), self._arrive, do, answer, is_lost)
                if again and random01() < weather.repeated:
                    self._later(self.way_s(), _quietly, do, is_lost)
                return await answer
            if not again:
                raise RetryLaterError(codes.BROKER_AWAY, "no answer")

    def _arrive(self, do: Callable[[], T], answer: asyncio.Future[T], is_lost: Callable[[bool], bool]) -> None:
        if is_lost(False):
            return
        try:
            result = do()
        except Exception as error:  # noqa: BLE001  # the caller gets it
            self._later(self.way_s(), _fail, answer, error)
        else:
            self._later(self.way_s(), _tell, answer, result)

    def _later(self, delay_s: float, callback: Callable[..., None], *args: Any) -> None:
        asyncio.get_running_loop().call_later(delay_s, callback, *args, context=self._server)

    def misses(self) -> bool:
        return self._rng.random() < self.weather.unheard


def _quietly(do: Callable[[], object], is_lost: Callable[[bool], bool]) -> None:
    """No caller hears the answer."""
    if is_lost(True):
        return
    try:
        do()
    except (FencedError, RetryLaterError, DamageError):
        return


def _tell(answer: asyncio.Future[T], result: T) -> None:
    if not answer.done():
        answer.set_result(result)


def _fail(answer: asyncio.Future[T], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
        # Who asked may be dead.
        answer.exception()


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that does not wait."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise AssertionError("the ledger in memory waits where it should not")


def all_at_once(items: AsyncIterator[T]) -> list[T]:
    """What an iterator gives that does not wait."""

    async def given() -> list[T]:
        return [item async for item in items]

    return at_once(given())


class SimLedger:
    """`Ledger` of a process, over the one in memory that all processes share."""

    def __init__(self, inner: Ledger, link: Link, history: History) -> None:
        self._inner = inner
        self._link = link
        self._history = history

    @property
    def vertex(self) -> str:
        return self._inner.vertex

    @property
    def ledger_id(self) -> str:
        return self._inner.ledger_id

    @property
    def durability(self) -> Durability:
        return self._inner.durability

    @property
    def sharing(self) -> Sharing:
        return self._inner.sharing

    @property
    def packs(self) -> bool:
        return self._inner.packs

    @property
    def compresses(self) -> bool:
        return self._inner.compresses

    @property
    def holds_arrow(self) -> bool:
        return self._inner.holds_arrow

    def statistics(self) -> LedgerStatistics:
        return self._inner.statistics()

    async def mark(self, lane: LaneId) -> StoredMark | None:
        return await self._link.ask(lambda: at_once(self._inner.mark(lane)))

    async def take_over(self, lane: LaneId, owner: str) -> StoredMark:
        while True:
            stored = await self.mark(lane)
            mark = taken_over(stored, owner, self._link.new_id())
            try:
                receipt = await self.commit(takeover(lane, mark, stored))
            except FencedError:
                continue
            return StoredMark(mark, receipt.mark_sequence)

    async def commit(self, commit: Commit) -> Receipt:
        def do() -> Receipt:
            receipt = at_once(self._inner.commit(commit))
            self._history.committed(commit, receipt, self._link, self.sharing)
            return receipt

        return await self._link.ask(do)

    async def ids(self, lane: LaneId) -> AsyncIterator[StoredIds]:
        for stored in await self._link.ask(lambda: all_at_once(self._inner.ids(lane))):
            await self._link.arrival()
            yield stored

    @asynccontextmanager
    async def read(
        self,
        buffer: BufferId,
        after: int,
        witnesses: Iterable[Witness] | None = None,
        given_up: Iterable[GivenUp] = (),
    ) -> AsyncIterator[AsyncIterator[StoredFrame]]:
        async with self._inner.read(buffer, after, witnesses, given_up) as frames:
            yield self._arriving(buffer, frames)

    @asynccontextmanager
    async def watch(self, buffer: BufferId, after: int) -> AsyncIterator[AsyncIterator[StoredFrame]]:
        async with self._inner.watch(buffer, after) as frames:
            yield frames

    async def _arriving(self, buffer: BufferId, frames: AsyncIterator[StoredFrame]) -> AsyncIterator[StoredFrame]:
        async for frame in frames:
            self._history.delivered(self._link, buffer, frame.sequence)
            await self._link.arrival()
            yield frame

    async def trim(self, through: Mapping[BufferId, int]) -> None:
        def do() -> None:
            for buffer, sequence in through.items():
                for reader in self.sharing.readers(self.sharing.stored(buffer)):
                    self._history.trimmed(reader, sequence)
            at_once(self._inner.trim(through))

        await self._link.ask(do)

    async def leave(self, edges: Collection[str]) -> None:
        raise AssertionError("no pipeline changes in a simulation")

    async def peek(self, buffer: BufferId, after: int, frames: int) -> Sequence[StoredFrame]:
        return await self._link.ask(lambda: at_once(self._inner.peek(buffer, after, frames)))

    async def last_sequence(self, buffer: BufferId) -> int:
        return await self._link.ask(lambda: at_once(self._inner.last_sequence(buffer)))


class SimBroker:
    """`Broker` of a process."""

    def __init__(self, inner: MemoryBroker, link: Link, history: History) -> None:
        self._inner = inner
        self._link = link
        self._history = history

    async def ledger(self, vertex: str, limits: LedgerLimits) -> Ledger:
        inner = await self._link.ask(lambda: at_once(self._inner.ledger(vertex, limits)))
        return SimLedger(inner, self._link, self._history)

    async def existing_ledger(self, vertex: str) -> Ledger | None:
        inner = await self._link.ask(lambda: at_once(self._inner.existing_ledger(vertex)))
        return SimLedger(inner, self._link, self._history) if inner is not None else None

    async def delete(self, vertex: str | None = None) -> None:
        await self._inner.delete(vertex)


class SimOtStore(MemoryOtStore):
    """`OtStore` of a process: the one in memory, reached over the network."""

    def __init__(
        self, memory: OtMemory, pipeline: str, vertex: str, tasks: asyncio.TaskGroup, link: Link, history: History
    ) -> None:
        super().__init__(memory, pipeline, vertex, tasks, 0.0)
        self._statistics = OtStatistics()
        self._publisher = CoalescingPublisher(self._put, self._statistics, tasks)
        self._link = link
        self._history = history

    async def get_all(self) -> Mapping[str, OtUpdate]:
        return await self._link.ask(lambda: at_once(super(SimOtStore, self).get_all()))

    async def _put(self, key: str, entry: OtEntry) -> None:
        def do() -> None:
            at_once(super(SimOtStore, self)._put(key, entry))
            self._history.published(self.vertex, key, entry)

        await self._link.ask(do, timeout_s=OT_PUT_TIMEOUT_S, again=False)

    async def _read(self, key: str) -> tuple[int, OtEntry | None]:
        return await self._link.ask(lambda: at_once(super(SimOtStore, self)._read(key)))

    async def _replace(self, key: str, revision: int, entry: OtEntry) -> None:
        def do() -> None:
            at_once(super(SimOtStore, self)._replace(key, revision, entry))
            self._history.published(self.vertex, key, entry)

        await self._link.ask(do, timeout_s=OT_PUT_TIMEOUT_S, again=False)

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[AsyncIterator[OtUpdate]]:
        queue = _Hearing(self._statistics, self._link)
        bucket = self._memory._bucket(self._pipeline, self.vertex)
        bucket.watchers.append(queue)

        def reread() -> None:
            queue.begin_reading()
            queue.finish_reading([decode_update(self.vertex, key, data) for key, data in bucket.entries.items()])

        async def reread_always() -> None:
            while True:
                await queue.rereads.next()
                await self._link.ask(reread)

        reread()
        async with asyncio.TaskGroup() as tasks:
            rereading = tasks.create_task(reread_always())
            try:
                yield queue
            finally:
                rereading.cancel()
                bucket.watchers.remove(queue)


class _Hearing(UpdateQueue):
    """Hears most of what is published, some time later."""

    def __init__(self, statistics: OtStatistics, link: Link) -> None:
        super().__init__(statistics)
        self._link = link

    def on_update(self, update: OtUpdate) -> None:
        self._link.hear(lambda: super(_Hearing, self).on_update(update))


class SimOtStores:
    """`OtStores` of a process."""

    def __init__(self, memory: OtMemory, pipeline: str, tasks: asyncio.TaskGroup, link: Link, history: History) -> None:
        self._memory = memory
        self._pipeline = pipeline
        self._tasks = tasks
        self._link = link
        self._history = history
        self._stores: dict[str, SimOtStore] = {}

    async def store(self, vertex: str) -> SimOtStore:
        if vertex not in self._stores:
            self._stores[vertex] = SimOtStore(
                self._memory, self._pipeline, vertex, self._tasks, self._link, self._history
            )
        return self._stores[vertex]

    async def delete(self, vertex: str | None = None) -> None:
        raise AssertionError("nothing is deleted in a simulation")

    def close(self) -> None:
        for store in self._stores.values():
            store.close()


class Link:
    """One process's way to the broker."""

    def __init__(self, network: Network, rng: random.Random) -> None:
        self._network = network
        self._rng = rng
        self._mended = asyncio.Event()
        self._mended.set()

    @property
    def is_cut(self) -> bool:
        """Nothing comes through, either way."""
        return not self._mended.is_set()

    def cut(self) -> None:
        self._mended.clear()

    def mend(self) -> None:
        self._mended.set()

    async def ask(self, do: Callable[[], T], *, timeout_s: float = COMMIT_TIMEOUT_S, again: bool = True) -> T:
        return await self._network.ask(do, lambda: self.is_cut, timeout_s=timeout_s, again=again)

    async def arrival(self) -> None:
        """A frame is on its way."""
        await self._mended.wait()
        if self._network.is_slow or self._rng.random() < 0.3:
            await asyncio.sleep(self._network.way_s())

    def hear(self, hear: Callable[[], None]) -> None:
        """An update is on its way, or lost."""
        if not self.is_cut and not self._network.misses():
            self._network._later(self._network.way_s(), hear)

    def new_id(self) -> bytes:
        return UUID(int=self._rng.getrandbits(128)).bytes
