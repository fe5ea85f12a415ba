"""What a lane may believe about its input: simulated lanes that write, publish, die and come back."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.clock import END_OF_TIME_US, START_OF_TIME_US
from millstream.record import BufferId, LaneId
from millstream.watermark.fetch import BufferFill, WatermarkFetcher
from millstream.watermark.store import OtUpdate
from millstream.wire.watermark.v1.ot_pb2 import BufferState, OtEntry

BUFFER = BufferId("in-map", 0)
OTHER = BufferId("in-map", 1)
LANES = [LaneId("in", "source", partition) for partition in range(3)]


def update(lane: LaneId, epoch: int = 1, *, watermark_us: int, sequence: int = 0, ended: bool = False) -> OtUpdate:
    outputs = [BufferState(edge=BUFFER.edge, partition=BUFFER.partition, sequence=sequence)] if sequence else []
    return OtUpdate(lane.key, OtEntry(epoch=epoch, watermark_us=watermark_us, ended=ended, outputs=outputs))


@dataclass
class Upstream:
    """A lane that writes frames to one of two buffers and publishes some of the time."""

    lane: LaneId
    random: random.Random
    epoch: int = 1
    watermark_us: int = 0
    """Of what is committed."""
    sequences: dict[BufferId, int] = field(default_factory=dict)

    def commit(self, ledger: Ledger) -> None:
        """One frame, no older than the watermark, which then may rise."""
        buffer = self.random.choice([BUFFER, OTHER])
        event_time_us = self.watermark_us + self.random.randint(0, 5)
        self.sequences[buffer] = ledger.append(buffer, event_time_us)
        self.watermark_us = self.random.randint(self.watermark_us, event_time_us)

    def entry(self, *, ended: bool = False) -> OtUpdate:
        states = [BufferState(edge=b.edge, partition=b.partition, sequence=s) for b, s in self.sequences.items()]
        watermark_us = END_OF_TIME_US if ended else self.watermark_us
        entry = OtEntry(epoch=self.epoch, watermark_us=watermark_us, ended=ended, outputs=states)
        return OtUpdate(self.lane.key, entry)


@dataclass
class Ledger:
    frames: list[tuple[BufferId, int]] = field(default_factory=list)

    def append(self, buffer: BufferId, event_time_us: int) -> int:
        self.frames.append((buffer, event_time_us))
        return len(self.frames)

    def oldest_after(self, buffer: BufferId, sequence: int) -> int:
        """The oldest event time of the frames behind `sequence`."""
        return min((time for of, time in self.frames[sequence:] if of == buffer), default=END_OF_TIME_US)


@pytest.mark.guarantee("I5")
@given(st.integers(0, 2**32), st.integers(5, 120))
def test_the_watermark_never_passes_a_frame_that_is_still_to_be_read(seed: int, steps: int) -> None:
    """Entries come late, twice, from an owner that was replaced, or not at all."""
    chance = random.Random(seed)
    ledger, fetcher = Ledger(), WatermarkFetcher(BUFFER, LANES)
    lanes = [Upstream(lane, chance) for lane in LANES]
    on_the_way: list[OtUpdate] = []
    promised: list[tuple[int, int]] = []
    for _ in range(steps):
        lane = chance.choice(lanes)
        match chance.randrange(5):
            case 0 | 1:
                lane.commit(ledger)
            case 2:
                on_the_way.append(lane.entry())
            case 3:
                lane.epoch += 1
            case _:
                for published in on_the_way[: chance.randint(0, len(on_the_way))]:
                    fetcher.add(published)
                del on_the_way[: chance.randint(0, len(on_the_way))]
        position = chance.randint(0, len(ledger.frames))
        promised.append((position, fetcher.watermark_at(position)))
    for position, watermark_us in promised:
        assert watermark_us <= ledger.oldest_after(BUFFER, position)
    for lane in lanes:
        fetcher.add(lane.entry(ended=True))
    assert fetcher.watermark_at(len(ledger.frames)) == END_OF_TIME_US
    end = fetcher.end_sequence()
    assert end is not None
    assert ledger.oldest_after(BUFFER, end) == END_OF_TIME_US


def test_a_lane_that_was_never_heard_of_holds_the_watermark() -> None:
    fetcher = WatermarkFetcher(BUFFER, LANES[:2])
    fetcher.add(update(LANES[0], watermark_us=100, sequence=4))
    assert fetcher.watermark_at(10) == START_OF_TIME_US
    fetcher.add(update(LANES[1], watermark_us=70))
    assert fetcher.watermark_at(4) == 70
    assert fetcher.watermark_at(3) == START_OF_TIME_US


def test_the_slowest_lane_counts() -> None:
    fetcher = WatermarkFetcher(BUFFER, LANES[:2])
    fetcher.add(update(LANES[0], watermark_us=100, sequence=4))
    fetcher.add(update(LANES[1], watermark_us=70, sequence=5))
    assert fetcher.watermark_at(5) == 70


def test_lanes_of_others_are_left_alone() -> None:
    fetcher = WatermarkFetcher(BUFFER, LANES[:1])
    assert not fetcher.add(update(LANES[2], watermark_us=100, ended=True))
    assert fetcher.end_sequence() is None


def test_the_end_is_known_when_every_lane_has_ended() -> None:
    fetcher = WatermarkFetcher(BUFFER, LANES)
    for lane, sequence in zip(LANES, (12, 0, 15), strict=True):
        assert fetcher.end_sequence() is None
        fetcher.add(update(lane, watermark_us=END_OF_TIME_US, sequence=sequence, ended=True))
    assert fetcher.end_sequence() == 15
    assert fetcher.watermark_at(14) == START_OF_TIME_US
    assert fetcher.watermark_at(15) == END_OF_TIME_US


def test_only_what_changes_something_wakes_the_lane() -> None:
    fetcher = WatermarkFetcher(BUFFER, LANES[:1])
    assert fetcher.add(update(LANES[0], watermark_us=100, sequence=4))
    assert not fetcher.add(update(LANES[0], watermark_us=100, sequence=4))


def test_forgetting_keeps_the_answer_at_the_position() -> None:
    fetcher = WatermarkFetcher(BUFFER, LANES[:1])
    for sequence in (3, 6, 9):
        fetcher.add(update(LANES[0], watermark_us=10 * sequence, sequence=sequence))
    fetcher.forget(7)
    assert [fetcher.watermark_at(s) for s in (7, 8, 9)] == [60, 60, 90]


def test_a_watermark_of_no_lanes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"in-map\.0"):
        WatermarkFetcher(BUFFER, [])


def wrote(lane: LaneId, records: int, bytes_: int, buffer: BufferId = BUFFER) -> OtUpdate:
    state = BufferState(edge=buffer.edge, partition=buffer.partition, sequence=1, records=records, bytes=bytes_)
    return OtUpdate(lane.key, OtEntry(epoch=1, outputs=[state]))


def consumed(key: str, records: int, bytes_: int) -> OtUpdate:
    edge, partition = key.split(".")
    state = BufferState(edge=edge, partition=int(partition), sequence=1, records=records, bytes=bytes_)
    return OtUpdate(key, OtEntry(epoch=1, inputs=[state]))


def test_a_buffer_holds_what_all_lanes_wrote_and_nobody_consumed() -> None:
    fill = BufferFill(BUFFER)
    fill.on_writer(wrote(LANES[0], 100, 1000))
    fill.on_writer(wrote(LANES[1], 50, 500))
    fill.on_writer(wrote(LANES[1], 999, 999, OTHER))
    fill.on_reader(consumed(BUFFER.key, 30, 310))
    fill.on_reader(consumed(OTHER.key, 400, 400))
    assert (fill.records, fill.bytes) == (120, 1190)


def test_own_commits_count_at_once_and_late_updates_change_nothing() -> None:
    fill = BufferFill(BUFFER)
    fill.wrote(LANES[0].key, 200, 2000)
    assert fill.news.is_set()
    fill.news.clear()
    fill.on_writer(wrote(LANES[0], 100, 1000))
    assert not fill.news.is_set()
    assert (fill.records, fill.bytes) == (200, 2000)


def test_consumption_heard_of_before_the_writing_is_not_a_negative_fill() -> None:
    fill = BufferFill(BUFFER)
    fill.consumed(30, 300)
    assert (fill.records, fill.bytes) == (0, 0)
