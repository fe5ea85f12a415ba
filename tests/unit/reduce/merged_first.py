"""Sessions by their definition, and a lane over a real queue that lives through everything and has to agree with it.

The definition knows single records only: each is merged with the open sessions that it meets, one after the other in
the order of arrival, and is late when what comes of it has ended. Deaths lose what was not durable; logs are lost, or
old, and rebuilt from what is left of the input, with its edges read by other turns. Used by the tests of the suite,
and, for as many seeds as one likes, by `benchmarks/session_seeds.py`.
"""

from __future__ import annotations

import copy
import random
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from millstream.clock import END_OF_TIME_US
from millstream.frame import Frame
from millstream.ledger.protocol import LedgerLimits
from millstream.limits import BUFFER_FRAMES_MAX
from millstream.record import BufferId
from millstream.wire.reduce.v1 import wal_pb2
from millstream_reduce.lane.milestones import Retracing, StoredMilestones
from millstream_reduce.milestones import is_at_or_before
from millstream_reduce.queue import Queue, QueuedFrame, QueueLimits
from millstream_reduce.values import WindowTable
from millstream_reduce.windows import WindowConfig
from millstream_vertex.trimming import Trimmer
from millstream_writer.committer import Unit
from tests.support.ledgers import open_memory_harness
from tests.unit.reduce.queued import EDGE, OTHER_EDGE, Lane, frame_of, values_in

EDGES = (EDGE, OTHER_EDGE)
FRAMES = 40
KEYS = (b"a", b"b", b"c")
STEPS_MAX = 3000
DEATHS_MAX = 8
WINDOW = BufferId("window", 0)

Shown = tuple[int, int, int, bytes, tuple[bytes, ...]]
"""Start, end, early number, key and sorted values of a result."""
Place = tuple[tuple[int, ...], int]
"""How far each edge was read, and the last hand-over: names an entry of the log."""


@dataclass
class Session:
    start: int
    end: int
    key: bytes
    values: list[bytes]
    early: int = 0
    seen: int = 0

    def shown(self, early: int = 0) -> Shown:
        return self.start, self.end, early, self.key, tuple(sorted(self.values))


@dataclass
class Definition:
    """Open sessions, a record at a time."""

    timeout: int
    lateness: int
    closed: int = -(10**9)
    open: list[Session] = field(default_factory=list)
    frozen: list[Session] = field(default_factory=list)
    """Ended, and not handed over: nothing is merged with them."""

    def is_admitted(self, time: int, key: bytes, value: bytes) -> bool:
        """Whether the record is; then it is in its session."""
        merged = Session(time, time + self.timeout, key, [value])
        rest: list[Session] = []
        for one in self.open:
            if one.key == key and one.start < time + self.timeout and time < one.end:
                merged.start, merged.end = min(merged.start, one.start), max(merged.end, one.end)
                merged.values += one.values
                merged.early, merged.seen = max(merged.early, one.early), merged.seen + one.seen
            else:
                rest.append(one)
        if merged.end + self.lateness <= self.closed:
            return False
        self.open = [*rest, merged]
        return True

    def advance(self, watermark: int) -> None:
        self.closed = max(self.closed, watermark)
        ended = [one.end + self.lateness <= self.closed for one in self.open]
        self.frozen += [one for one, has_ended in zip(self.open, ended, strict=True) if has_ended]
        self.open = [one for one, has_ended in zip(self.open, ended, strict=True) if not has_ended]

    def close(self, watermark: int) -> list[Shown]:
        self.advance(watermark)
        results = sorted(one.shown() for one in self.frozen)
        self.frozen.clear()
        return results

    def early(self, rows_min: int) -> list[Shown]:
        results = []
        for one in self.open:
            if len(one.values) - one.seen >= rows_min:
                one.early, one.seen = one.early + 1, len(one.values)
                results.append(one.shown(one.early))
        return sorted(results)


class Killed(Exception):
    """The lane's process ends here."""


@dataclass
class Tally:
    """What happened, to see that it did."""

    records: int = 0
    late: int = 0
    joined: int = 0
    """Late by themselves, and admitted."""
    early: int = 0
    deaths: int = 0
    made_anew: int = 0


class Story:
    """One lane and everything around it, from a seed."""

    def __init__(self, seed: int, directory: Path, stored: StoredMilestones) -> None:
        self.rng = rng = random.Random(f"sessions {seed}")
        keyed = rng.random() < 0.8
        config = WindowConfig(
            "session", timeout_us=rng.randint(4, 30), lateness_us=rng.choice([0, 0, 5, 25]), keyed=keyed
        )
        self.kept = rng.random() < 0.6
        limits = QueueLimits(log_bytes_max=2**20, segment_bytes=rng.choice([1024, 4096]))
        self.lane = Lane(directory / "log", config, limits, keep_late=True, input_is_kept=self.kept)
        self.keys = KEYS if keyed else (b"",)
        self.keyed = keyed
        self.old_log = directory / "old"
        self.input = self._make_input()
        self.truth = Definition(config.timeout_us, config.lateness_us)
        self.states: dict[Place, Definition] = {((0, 0), 0): copy.deepcopy(self.truth)}
        """After each entry of the log."""
        self.expected: dict[int, list[Shown]] = {}
        self.committed: list[Shown] = []
        self.late: list[bytes] = []
        self.milestones = stored
        self.trimmed = dict.fromkeys(EDGES, 0)
        self.stored = 0
        self.time = 0
        self.steps = 0
        self.tally = Tally()

    def _make_input(self) -> dict[str, list[Frame]]:
        rng = self.rng
        frames: dict[str, list[Frame]] = {edge: [] for edge in EDGES}
        number, pace, back = 0, rng.choice([3, 8, 15]), rng.choice([20, 60, 150])
        for index in range(FRAMES):
            times = [max(0, index * pace + rng.randint(-back, 20)) for _ in range(rng.randint(1, 8))]
            times = [rng.choice(times) if rng.random() < 0.2 else time for time in times]
            values = [b"%d" % (number + n) for n in range(len(times))]
            number += len(times)
            frames[rng.choice(EDGES)].append(frame_of(times, keys=[rng.choice(KEYS) for _ in times], values=values))
        return frames

    # The lane's life

    async def run(self) -> Tally:
        while not await self._lives():
            self.tally.deaths += 1
            if self.kept and not self.lane.progress.closing:
                self._lose_log()
        everything = [value for frames in self.input.values() for frame in frames for value in frame.values()]
        finals = [value for *_, early, _, values in self.committed if not early for value in values]
        assert Counter(finals) + Counter(self.late) == Counter(everything)
        assert not self.truth.open
        assert not self.truth.frozen
        self.tally.records, self.tally.late = len(everything), len(self.late)
        self.tally.early = sum(early > 0 for _, _, early, *_ in self.committed)
        return self.tally

    def _lose_log(self) -> None:
        fate = self.rng.random()
        if fate < 0.4:
            shutil.rmtree(self.lane.directory)
            # A copy of a log that is no more is not an old state of the one that is rebuilt.
            shutil.rmtree(self.old_log, ignore_errors=True)
        elif fate < 0.6 and self.old_log.exists():
            shutil.rmtree(self.lane.directory)
            shutil.copytree(self.old_log, self.lane.directory)

    async def _lives(self) -> bool:
        """Whether it came to the end."""
        try:
            async with self.lane.opened() as queue:
                if queue.is_behind:
                    self.tally.made_anew += 1
                    await self._retrace(queue)
                else:
                    self._go_on(queue)
                while True:
                    await self._step(queue)
                    if self._has_ended(queue):
                        return True
                    self._may_die(0.05)
        except Killed:
            return False

    def _may_die(self, probability: float) -> None:
        self.steps += 1
        assert self.steps < STEPS_MAX
        if self.tally.deaths < DEATHS_MAX and self.rng.random() < probability:
            raise Killed

    def _has_ended(self, queue: Queue) -> bool:
        done = {item.edge: item.sequence for item in self.lane.progress.inputs}
        all_read = all(done.get(edge, 0) == len(frames) for edge, frames in self.input.items())
        return all_read and not queue.open_windows and not queue.pending()

    def _place(self, queue: Queue) -> Place:
        reached = self._reached(queue)
        return tuple(reached[edge] for edge in EDGES), queue.statistics().last_hand_over

    def _go_on(self, queue: Queue) -> None:
        """The lane is at an entry of its log again; what came after never happened."""
        place = self._place(queue)
        self.truth = copy.deepcopy(self.states[place])
        places = list(self.states)
        for later in places[places.index(place) + 1 :]:
            del self.states[later]
        self.truth.advance(queue.closed_us)
        for hand_over in queue.pending():
            self._check(queue, hand_over)
        held = [*self.truth.open, *self.truth.frozen]
        assert queue.statistics().open_rows == sum(len(one.values) for one in held)

    async def _step(self, queue: Queue) -> None:
        kind = self.rng.choice(["append"] * 4 + ["close", "close", "early", "sync", "tell", "commit", "copy"])
        if kind == "append":
            self._append(queue, {edge: len(frames) for edge, frames in self.input.items()})
        elif kind == "close":
            positions = self._reached(queue)
            ended = all(positions[edge] == len(frames) for edge, frames in self.input.items())
            watermark = END_OF_TIME_US if ended else self.time - self.rng.randint(0, 60)
            self._handed_over(queue, queue.close(watermark), self.truth.close(watermark))
        elif kind == "early":
            rows_min = self.rng.randint(1, 3)
            self._handed_over(queue, queue.early(rows_min), self.truth.early(rows_min))
        elif kind == "sync":
            await queue.sync()
        elif kind == "tell":
            await queue.sync()
            await self._tell(queue, self.rng.randint(0, 5))
        elif kind == "commit" and queue.pending():
            await self._commit(queue)
        elif kind == "copy" and self.kept and self.rng.random() < 0.3:
            await queue.sync()
            shutil.rmtree(self.old_log, ignore_errors=True)
            shutil.copytree(self.lane.directory, self.old_log)

    def _append(self, queue: Queue, until: dict[str, int]) -> None:
        frames: list[QueuedFrame] = []
        positions = self._reached(queue)
        for edge in self.rng.sample(EDGES, 2):
            begin = positions[edge]
            for sequence in range(begin + 1, min(begin + self.rng.randint(0, 3), until[edge]) + 1):
                frame = self.input[edge][sequence - 1]
                frames.append(QueuedFrame(edge, sequence, frame.size, frame))
        if not frames:
            return
        if queue.is_behind:
            queue.append(frames, 0)
            return
        self.time = max(self.time, *(item.frame.event_time_max_us for item in frames))
        self.truth.advance(queue.closed_us)
        late = []
        for item in frames:
            columns = zip(item.frame.event_times_us(), item.frame.keys(), item.frame.values(), strict=True)
            for time, keys, value in columns:
                if not self.truth.is_admitted(time, keys[0] if self.keyed else b"", value):
                    late.append(value)
                elif time + self.truth.timeout + self.truth.lateness <= self.truth.closed:
                    self.tally.joined += 1
        appended = queue.append(frames, 0)
        assert [value for frame in appended.late_frames for value in frame.values()] == late
        self._note(queue)

    def _handed_over(self, queue: Queue, hand_overs: list[wal_pb2.HandOver], expected: list[Shown]) -> None:
        assert len(hand_overs) == bool(expected)
        for hand_over in hand_overs:
            self.expected[hand_over.number] = expected
            self._note(queue)

    def _note(self, queue: Queue) -> None:
        self.states[self._place(queue)] = copy.deepcopy(self.truth)

    def _check(self, queue: Queue, hand_over: wal_pb2.HandOver) -> None:
        found = [
            (w.start_us, w.end_us, w.early, w.key or b"", tuple(sorted(values_in(queue.directory, one))))
            for one in WindowTable.of_hand_over(hand_over)
            for w in [one.window]
        ]
        assert sorted(found) == self.expected[hand_over.number]

    # What becomes durable

    async def _tell(self, queue: Queue, most: int) -> None:
        progress = self.lane.progress
        for appended in queue.unacknowledged()[:most]:
            if self.kept and appended.message.hand_over > progress.hand_over:
                break
            for position in appended.message.inputs:
                done = {item.edge: item for item in progress.inputs}
                (done.get(position.edge) or progress.inputs.add(edge=position.edge)).sequence = position.sequence
            progress.closed_us = max(progress.closed_us, appended.message.closed_us)
            self.late += [value for frame in appended.late_frames for value in frame.values()]
            if appended.message.HasField("milestone"):
                self._store(appended.message.milestone)
        await queue.committed(progress)
        self._release(queue)

    async def _commit(self, queue: Queue) -> None:
        await queue.sync()
        hand_over = queue.pending()[0]
        before = sum(appended.message.hand_over < hand_over.number for appended in queue.unacknowledged())
        await self._tell(queue, before)
        self._check(queue, hand_over)
        self.committed += self.expected[hand_over.number]
        progress = self.lane.progress
        progress.hand_over, progress.closing = hand_over.number, hand_over.more
        progress.closed_us = max(progress.closed_us, hand_over.closed_us)
        if hand_over.HasField("milestone"):
            self._store(hand_over.milestone)
        await queue.committed(progress)
        self._release(queue)

    def _store(self, milestone: wal_pb2.Milestone) -> None:
        self.stored += 1
        self.milestones.committed([Unit(frames=[self.milestones.frame(milestone, 0)])], {WINDOW: self.stored})

    def _release(self, queue: Queue) -> None:
        if self.kept:
            kept = queue.releasable()
            # A log that is rebuilt may be before input that is gone already, and has nothing left to read up to there.
            self.trimmed = {edge: max(done, kept.get(edge, 0)) for edge, done in self.trimmed.items()}
            self.milestones.release(kept)

    # A log that is rebuilt

    async def _retrace(self, queue: Queue) -> None:
        progress = self.lane.progress
        queue.recall(self.milestones.all())
        last = {edge: len(frames) for edge, frames in self.input.items()}
        retracing = Retracing(self.milestones.way(progress, queue.positions()), last)
        while not retracing.has_ended:
            gate = {edge: retracing.gate.get(edge, 0) for edge in EDGES}
            at = wal_pb2.Milestone(inputs=[wal_pb2.InputPosition(edge=e, sequence=n) for e, n in gate.items()])
            while not is_at_or_before(at, self._reached(queue)):
                self._append(queue, gate)
                self._may_die(0.02)
                if self.rng.random() < 0.3:
                    await queue.sync()
            queue.retrace(retracing.passed())
        queue.retraced()
        # What the log holds beyond the mark, where it lacked an edge that is all trimmed, is there as well.
        self._go_on(queue)

    def _reached(self, queue: Queue) -> dict[str, int]:
        """What is trimmed is not there to be read."""
        positions = queue.positions()
        return {edge: max(positions.get(edge, 0), self.trimmed[edge]) for edge in EDGES}


async def live(seed: int, directory: Path) -> Tally:
    """A lane's life from a seed. Raises `AssertionError` where it differs from the definition."""
    async with open_memory_harness() as harness:
        ledger = await harness.broker.ledger("sum", LedgerLimits(BUFFER_FRAMES_MAX))
        return await Story(seed, directory, StoredMilestones(WINDOW, Trimmer(ledger.trim), ())).run()
