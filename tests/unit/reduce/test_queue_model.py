"""A lane that is killed again and again over its queue: each record ends in its windows once, or is counted as late.

Everything is random, from a seed: frames, order, watermarks, what is synced and committed before a death; segments are
small, so that they are deleted all the time. What is looked at is what a lane would let others see: the contents of
each hand-over when its results are committed, and the counts in the mark.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from millstream.clock import END_OF_TIME_US
from millstream.frame import Frame
from millstream.wire.reduce.v1 import wal_pb2
from millstream_reduce.queue import Queue, QueuedFrame, QueueLimits
from millstream_reduce.windows import WindowConfig
from tests.unit.reduce.queued import EDGE, OTHER_EDGE, Lane, contents_of, frame_of

FRAMES = 60
STEPS_MAX = 5000
CONFIGS = {
    "fixed": WindowConfig("fixed", length_us=50, lateness_us=10),
    "sliding": WindowConfig("sliding", length_us=60, slide_us=20),
    "session": WindowConfig("session", timeout_us=15, keyed=True),
    "count": WindowConfig("global", count=7, keyed=True),
    "period": WindowConfig("global", every_us=80, keyed=True),
}
EDGES = (EDGE, OTHER_EDGE)


class Killed(Exception):
    """The lane's process ends here."""


@dataclass
class Model:
    """The world around the lane: its input, its mark, and the results that were committed."""

    rng: random.Random
    lane: Lane
    input: dict[str, list[Frame]]
    committed: list[tuple[int, int, int, list[bytes]]] = field(default_factory=list)
    late: Counter[str] = field(default_factory=Counter)
    durable: dict[int, list[tuple[int, int, int, list[bytes]]]] = field(default_factory=dict)
    """Contents of hand-overs, as they were when a sync had made them durable first."""
    deaths: int = 0
    steps: int = 0
    time_us: int = 0

    @property
    def done(self) -> dict[str, int]:
        return {item.edge: item.sequence for item in self.lane.progress.inputs}

    @property
    def all_read(self) -> bool:
        return all(self.done.get(edge, 0) == len(frames) for edge, frames in self.input.items())

    async def live(self) -> None:
        """One life of the lane, until it is killed or everything is committed."""
        async with self.lane.opened() as queue:
            for hand_over in queue.pending():
                self.check_durable(queue, hand_over)
            while True:
                self.steps += 1
                assert self.steps < STEPS_MAX
                await self.step(queue)
                if self.all_read and not queue.open_windows and not queue.pending():
                    return
                if self.rng.random() < 0.08 and self.deaths < 12:
                    self.deaths += 1
                    raise Killed

    async def step(self, queue: Queue) -> None:
        kind = self.rng.choice(["append", "append", "append", "close", "early", "sync", "mark", "commit"])
        if kind == "append":
            self.append(queue)
        elif kind == "close":
            positions = queue.positions()
            ended = all(positions.get(edge, 0) == len(frames) for edge, frames in self.input.items())
            queue.close(END_OF_TIME_US if ended else self.time_us - self.rng.randint(20, 120))
        elif kind == "early":
            queue.early(self.rng.randint(1, 4))
        elif kind == "sync":
            await queue.sync()
            for hand_over in queue.pending():
                if hand_over.number not in self.durable:
                    self.check_durable(queue, hand_over)
        elif kind == "mark":
            await self.mark(queue)
        elif queue.pending():
            await self.commit(queue)

    def append(self, queue: Queue) -> None:
        queued = []
        for edge in EDGES:
            done = queue.positions().get(edge, 0)
            for frame in self.input[edge][done : done + self.rng.randint(0, 2)]:
                done += 1
                queued.append(QueuedFrame(edge, done, frame.size, frame))
                self.time_us = max(self.time_us, frame.event_time_max_us)
        if queued:
            queue.append(queued, queue.closed_us)

    async def mark(self, queue: Queue) -> None:
        """Commit what is durable, or a part of it: the positions, and the late records."""
        await queue.sync()
        waiting = queue.unacknowledged()
        for appended in waiting[: self.rng.randint(0, len(waiting))]:
            self.late["late"] += appended.message.late
            for position in appended.message.inputs:
                done = {item.edge: item for item in self.lane.progress.inputs}
                item = done.get(position.edge) or self.lane.progress.inputs.add(edge=position.edge)
                item.sequence = position.sequence
            self.lane.progress.closed_us = max(self.lane.progress.closed_us, appended.message.closed_us)
        await queue.committed(self.lane.progress)

    async def commit(self, queue: Queue) -> None:
        await queue.sync()
        hand_over = queue.pending()[0]
        self.check_durable(queue, hand_over)
        self.committed += self.durable[hand_over.number]
        self.lane.progress.hand_over = hand_over.number
        self.lane.progress.closed_us = max(self.lane.progress.closed_us, hand_over.closed_us)
        await queue.committed(self.lane.progress)

    def check_durable(self, queue: Queue, hand_over: wal_pb2.HandOver) -> None:
        contents = contents_of(queue.directory, [hand_over])
        assert self.durable.setdefault(hand_over.number, contents) == contents


def make_input(rng: random.Random) -> dict[str, list[Frame]]:
    """Frames of two edges, out of order; the value of each record is its own."""
    frames: dict[str, list[Frame]] = {edge: [] for edge in EDGES}
    number = 0
    for index in range(FRAMES):
        count = rng.randint(1, 12)
        times = [max(0, index * 12 + rng.randint(-90, 30)) for _ in range(count)]
        values = [b"%d at %d" % (number + n, time) for n, time in enumerate(times)]
        number += count
        frames[rng.choice(EDGES)].append(frame_of(times, keys=[rng.choice([b"a", b"b"]) for _ in times], values=values))
    return frames


def values_of(frames: Sequence[Frame]) -> list[bytes]:
    return [value for frame in frames for value in frame.values()]


@pytest.mark.slow
@pytest.mark.guarantee("I1", "I3", "I6")
@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.sweep) for seed in (1, 2))])
async def test_each_record_is_in_its_windows_once_however_often_the_lane_dies(
    tmp_path: Path, kind: str, seed: int
) -> None:
    rng = random.Random(f"{kind} {seed}")
    limits = QueueLimits(log_bytes_max=2**20, segment_bytes=rng.choice([1024, 4096, 16384]))
    model = Model(rng, Lane(tmp_path, CONFIGS[kind], limits), make_input(rng))
    alive = True
    while alive:
        try:
            await model.live()
            alive = False
        except Killed:
            pass
    final = [contents for contents in model.committed if not contents[2]]
    for start, end, _, values in final:
        assert len(set(values)) == len(values)
        if kind in ("fixed", "sliding"):
            assert all(start <= int(value.split()[2]) < end for value in values)
    held = Counter(value for *_, values in final for value in values)
    everything = values_of([frame for frames in model.input.values() for frame in frames])
    if kind != "sliding":
        assert set(held.values()) <= {1}
    assert len(everything) == len(held) + model.late["late"]
    assert set(held) <= set(everything)
    assert sum(path.stat().st_size for path in tmp_path.glob("*.wal")) < 8192
