"""A random history of one ledger, and a model of plain lists that says what it must hold after each step.

Above it: the contract suite and `benchmarks/ledger_histories.py`. Below it: any ledger in a harness. The model shares
no code with the ledgers: what they keep, in which order, and who may write is said here a second time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final

import pytest

from millstream.errors import FencedError
from millstream.ledger.protocol import Ledger, LedgerLimits, StoredFrame
from millstream.record import ID_DIGEST_BYTES, BufferId, LaneId, id_digest
from tests.support.ledgers import Harness, JetStreamHarness, LaneOwner, RedisHarness

VERTEX: Final = "v"
BUFFERS: Final = tuple(BufferId(f"v-{name}", partition) for name in "ab" for partition in (0, 1))
LANES: Final = tuple(LaneId(VERTEX, "in-v", partition) for partition in range(3))
LIMITS: Final = LedgerLimits(frames_per_buffer_max=100_000)
IDS_TTL_S: Final = 3600.0
FRAME_BYTES: Final = (0, 1, 60, 5_000, 300_000)
WAIT_S: Final = 60.0


@dataclass(slots=True)
class LaneModel:
    """What is known of a lane."""

    epoch: int = 0
    commits: int = 0
    """Of its owners, takeovers left out."""
    ids: list[bytes] = field(default_factory=list)
    frames: dict[BufferId, int] = field(default_factory=dict)


@dataclass(slots=True)
class BufferModel:
    """All that was ever written to a buffer, and the one reader that takes it permanently."""

    frames: list[tuple[int, bytes]] = field(default_factory=list)
    """Sequence and data."""
    trimmed: int = 0
    """So many from the front may be gone: of those that were read, all but the newest at most."""
    read: list[StoredFrame] = field(default_factory=list)
    """What the reader has received."""


class History:
    """One ledger, the owners of its lanes, and the model."""

    def __init__(self, harness: Harness, seed: int) -> None:
        self._harness = harness
        self._rng = random.Random(seed)
        self._lanes = {lane: LaneModel() for lane in LANES}
        self._buffers = {buffer: BufferModel() for buffer in BUFFERS}
        self._owners: dict[LaneId, list[LaneOwner]] = {lane: [] for lane in LANES}
        self._ledgers: list[Ledger] = []
        self._readers: dict[BufferId, AsyncIterator[StoredFrame]] = {}
        self._names = 0
        self.steps: list[str] = []
        """What was done, to find out why it was wrong."""

    async def run(self, steps: int) -> None:
        """Do so many random steps. Raises `AssertionError` when the ledger is not as the model."""
        self._ledgers = [await self._harness.broker.ledger(VERTEX, LIMITS)]
        self._ledgers.append(await (await self._harness.other_process()).ledger(VERTEX, LIMITS))
        async with AsyncExitStack() as stack:
            for buffer in BUFFERS:
                opened = self._rng.choice(self._ledgers).read(buffer, 0, [])
                self._readers[buffer] = await stack.enter_async_context(opened)
            for lane in LANES:
                await self._take_over(lane)
            actions = (self._commit, self._stale, self._change_owner, self._read, self._trim, self._restart, self._look)
            for _ in range(steps):
                action = self._rng.choices(actions, (40, 6, 4, 20, 8, 1, 8))[0]
                self.steps.append(action.__name__)
                await action()
            await self._look()
            for buffer in BUFFERS:
                await self._read_up_to(buffer, len(self._buffers[buffer].frames))

    async def _take_over(self, lane: LaneId) -> None:
        model, ledger = self._lanes[lane], self._rng.choice(self._ledgers)
        self._names += 1
        self._maybe_lose_an_answer()
        stored = await ledger.take_over(lane, f"owner-{self._names}")
        assert stored.mark.epoch > model.epoch
        model.epoch = stored.mark.epoch
        assert stored.mark.sequence == model.commits
        assert {BufferId(one.edge, one.partition): one.frames for one in stored.mark.written} == model.frames
        self._owners[lane].append(LaneOwner(ledger, lane, stored))

    async def _change_owner(self) -> None:
        await self._take_over(self._rng.choice(LANES))

    async def _commit(self) -> None:
        lane = self._rng.choice(LANES)
        model = self._lanes[lane]
        frames = [(self._rng.choice(BUFFERS), self._data()) for _ in range(self._rng.choice((0, 1, 1, 2, 5, 30)))]
        ids = [f"{lane.key} {model.commits} {number}" for number in range(self._rng.choice((0, 0, 1, 40)))]
        self._maybe_lose_an_answer()
        receipt = await self._owners[lane][-1].commit(*frames, ids=tuple(ids), ids_ttl_s=IDS_TTL_S)
        model.commits += 1
        model.ids += [id_digest(one.encode()) for one in ids]
        assert len(receipt.frame_sequences) == len(frames)
        for (buffer, data), sequence in zip(frames, receipt.frame_sequences, strict=True):
            written = self._buffers[buffer].frames
            assert not written or sequence > written[-1][0]
            written.append((sequence, data))
            model.frames[buffer] = model.frames.get(buffer, 0) + 1

    async def _stale(self) -> None:
        """An owner that was replaced commits."""
        replaced = [owner for owners in self._owners.values() for owner in owners[:-1]]
        if not replaced:
            return
        owner = self._rng.choice(replaced)
        self._maybe_lose_an_answer()
        with pytest.raises(FencedError):
            await owner.commit((self._rng.choice(BUFFERS), b"stale"), ids=("stale",), ids_ttl_s=IDS_TTL_S)

    async def _trim(self) -> None:
        through = {}
        for buffer in self._rng.sample(BUFFERS, self._rng.randint(1, len(BUFFERS))):
            model = self._buffers[buffer]
            last = self._rng.randint(model.trimmed, max(model.trimmed, len(model.read) - 1))
            if last > model.trimmed:
                through[buffer], model.trimmed = model.frames[last - 1][0], last
        if through:
            await self._rng.choice(self._ledgers).trim(through)

    async def _restart(self) -> None:
        if isinstance(self._harness, JetStreamHarness | RedisHarness):
            await self._harness.server.kill()
            await self._harness.server.start()

    async def _look(self) -> None:
        """Everything is as the model has it, for every reader, and read from any place on."""
        ledger = self._rng.choice(self._ledgers)
        for lane, model in self._lanes.items():
            stored = await ledger.mark(lane)
            assert stored is not None
            assert (stored.mark.epoch, stored.mark.sequence) == (model.epoch, model.commits)
            together = b"".join([found.digests async for found in ledger.ids(lane)])
            found = [together[at : at + ID_DIGEST_BYTES] for at in range(0, len(together), ID_DIGEST_BYTES)]
            assert found == model.ids
        for buffer, written in self._buffers.items():
            after = written.frames[written.trimmed - 1][0] if written.trimmed else 0
            waiting = written.frames[written.trimmed :]
            peeked = await ledger.peek(buffer, after, len(waiting) + 1)
            assert [(frame.sequence, frame.data) for frame in peeked] == waiting
            if waiting:
                assert await ledger.last_sequence(buffer) == waiting[-1][0]
            await self._read_again(ledger, buffer)

    async def _read(self) -> None:
        buffer = self._rng.choice(BUFFERS)
        model = self._buffers[buffer]
        await self._read_up_to(buffer, self._rng.randint(len(model.read), len(model.frames)))

    async def _read_up_to(self, buffer: BufferId, count: int) -> None:
        """The reader that has been open from the beginning goes on to there."""
        model = self._buffers[buffer]
        got = await _take(self._readers[buffer], count - len(model.read))
        assert [(frame.sequence, frame.data) for frame in got] == model.frames[len(model.read) : count]
        model.read += got

    async def _read_again(self, ledger: Ledger, buffer: BufferId) -> None:
        """Another reader goes on from a place that is still stored, with what it knows of the frames before."""
        model = self._buffers[buffer]
        first = min(model.trimmed + 1, len(model.read)) if model.trimmed else 0
        start = self._rng.randint(first, len(model.read))
        before = model.read[:start]
        witnesses = {frame.witness.lane: frame.witness for frame in before if frame.witness is not None}
        after = before[-1].sequence if before else 0
        async with ledger.read(buffer, after, list(witnesses.values())) as frames:
            got = await _take(frames, len(model.frames) - start)
        assert [(frame.sequence, frame.data) for frame in got] == model.frames[start:]

    def _maybe_lose_an_answer(self) -> None:
        if self._rng.random() < 0.2:
            self._harness.lose_answer(landed=self._rng.random() < 0.5)

    def _data(self) -> bytes:
        return self._rng.randbytes(self._rng.choices(FRAME_BYTES, (5, 10, 60, 20, 1))[0])


async def _take(frames: AsyncIterator[StoredFrame], count: int) -> list[StoredFrame]:
    async with asyncio.timeout(WAIT_S):
        return [await anext(frames) for _ in range(count)]
