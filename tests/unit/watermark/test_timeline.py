"""The timeline of one upstream lane, against a model that keeps everything."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.clock import END_OF_TIME_US, START_OF_TIME_US
from millstream.watermark.timeline import Timeline


@dataclass(frozen=True)
class Entry:
    epoch: int
    sequence: int
    watermark_us: int
    ended: bool = False
    said: int = 0
    """The model's: its sequence as it was said, where `sequence` is that of the lane."""


@dataclass
class Model:
    """Every accepted entry; the answer is the highest watermark whose sequence has been read."""

    entries: list[Entry] = field(default_factory=list)

    def add(self, entry: Entry) -> None:
        newest = self.entries[-1] if self.entries else Entry(-1, 0, START_OF_TIME_US)
        head = max((known.sequence for known in self.entries), default=0)
        said = max((known.said for known in self.entries if known.epoch == entry.epoch), default=0)
        if entry.epoch > newest.epoch or (entry.epoch == newest.epoch and entry.sequence >= said):
            self.entries.append(
                Entry(entry.epoch, max(entry.sequence, head), entry.watermark_us, entry.ended, entry.sequence)
            )

    def watermark_at(self, sequence: int) -> int:
        read = [entry.watermark_us for entry in self.entries if entry.sequence <= sequence]
        return max(read, default=START_OF_TIME_US)


entries = st.lists(
    st.builds(Entry, st.integers(0, 3), st.integers(0, 60), st.integers(-50, 50), st.booleans()), max_size=80
)
growing = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=200)


def grown(steps: list[tuple[int, int]]) -> list[Entry]:
    """What one healthy owner publishes: sequence and watermark only grow."""
    sequence = watermark_us = 0
    result = []
    for sequence_step, watermark_step in steps:
        sequence, watermark_us = sequence + sequence_step, watermark_us + watermark_step
        result.append(Entry(1, sequence, watermark_us))
    return result


def fill(timeline: Timeline, published: list[Entry]) -> None:
    for entry in published:
        timeline.add(entry.epoch, entry.sequence, entry.watermark_us, ended=entry.ended)


@pytest.mark.guarantee("I5")
@given(entries)
def test_it_answers_as_if_it_kept_everything(published: list[Entry]) -> None:
    timeline, model = Timeline(), Model()
    for entry in published:
        timeline.add(entry.epoch, entry.sequence, entry.watermark_us, ended=entry.ended)
        model.add(entry)
        assert [timeline.watermark_at(s) for s in range(-1, 62)] == [model.watermark_at(s) for s in range(-1, 62)]
    if model.entries:
        newest = model.entries[-1]
        assert (timeline.epoch, timeline.head_sequence, timeline.ended) == (
            newest.epoch,
            newest.sequence,
            newest.ended,
        )


@pytest.mark.guarantee("I5")
@given(entries)
def test_no_answer_ever_goes_back(published: list[Entry]) -> None:
    timeline = Timeline()
    before = [START_OF_TIME_US] * 62
    for entry in published:
        timeline.add(entry.epoch, entry.sequence, entry.watermark_us)
        now = [timeline.watermark_at(s) for s in range(62)]
        assert all(new >= old for new, old in zip(now, before, strict=True))
        assert now == sorted(now)
        before = now


@pytest.mark.guarantee("I5")
@given(growing, st.integers(3, 12))
def test_a_short_memory_answers_too_low_but_never_too_high(steps: list[tuple[int, int]], points_max: int) -> None:
    timeline, model = Timeline(points_max), Model()
    for entry in grown(steps):
        timeline.add(entry.epoch, entry.sequence, entry.watermark_us)
        model.add(entry)
        assert len(timeline) <= points_max
        assert all(timeline.watermark_at(s) <= model.watermark_at(s) for s in range(timeline.head_sequence + 2))
        # A reader that has read everything gets the exact answer, or an idle lane would hold the pipeline up forever.
        assert timeline.watermark_at(timeline.head_sequence) == model.watermark_at(timeline.head_sequence)


@pytest.mark.guarantee("I5")
@given(growing, st.data())
def test_a_reader_that_moves_on_never_sees_it_go_back(steps: list[tuple[int, int]], data: st.DataObject) -> None:
    timeline = Timeline(points_max=4)
    position, answer = 0, START_OF_TIME_US
    for entry in grown(steps):
        timeline.add(entry.epoch, entry.sequence, entry.watermark_us)
        position += data.draw(st.integers(0, 2))
        timeline.forget(position)
        assert timeline.watermark_at(position) >= answer
        answer = timeline.watermark_at(position)


@given(growing)
def test_forgetting_what_is_read_changes_no_answer_ahead(steps: list[tuple[int, int]]) -> None:
    forgetful, complete = Timeline(), Timeline()
    for entry in grown(steps):
        for timeline in (forgetful, complete):
            timeline.add(entry.epoch, entry.sequence, entry.watermark_us)
        position = entry.sequence // 2
        forgetful.forget(position)
        ahead = range(position, entry.sequence + 2)
        assert [forgetful.watermark_at(s) for s in ahead] == [complete.watermark_at(s) for s in ahead]


@pytest.mark.guarantee("I5")
def test_an_entry_of_an_older_epoch_is_ignored() -> None:
    timeline = Timeline()
    timeline.add(2, 10, 100)
    assert not timeline.add(1, 20, 900, ended=True)
    assert (timeline.watermark_at(20), timeline.head_sequence, timeline.ended) == (100, 10, False)


@pytest.mark.guarantee("I5")
def test_a_new_owner_that_starts_lower_does_not_lower_the_watermark() -> None:
    timeline = Timeline()
    timeline.add(1, 10, 500)
    assert timeline.add(2, 10, 300)
    assert timeline.watermark_at(10) == 500
    timeline.add(2, 11, 510)
    assert timeline.watermark_at(10) == 500
    assert timeline.watermark_at(11) == 510


@pytest.mark.guarantee("I9")
def test_a_new_owner_that_finds_its_frames_trimmed_is_still_heard() -> None:
    timeline = Timeline()
    timeline.add(1, 6, 100)
    # All it wrote was read and trimmed, and its mark is in another buffer: the ledger knows of no frame here.
    timeline.forget(6)
    assert timeline.add(2, 0, 100)
    assert timeline.add(2, 0, 200)
    assert timeline.watermark_at(6) == 200
    assert timeline.add(2, 0, END_OF_TIME_US, ended=True)
    assert timeline.ended
    assert timeline.head_sequence == 6


@pytest.mark.guarantee("I5", "I9")
def test_what_a_new_owner_knows_nothing_of_and_nobody_has_read_is_not_waited_for() -> None:
    timeline = Timeline()
    timeline.add(1, 4, 100)
    timeline.add(1, 6, 200)
    timeline.add(1, 28, 900)
    assert timeline.watermark_at(5) == 100
    # Its ledger was set back: frames 6 to 28 are gone, and it writes others.
    assert timeline.add(2, 5, 150)
    assert timeline.head_sequence == 5
    assert timeline.add(2, 7, 160)
    assert (timeline.watermark_at(6), timeline.watermark_at(7)) == (150, 160)
    assert timeline.add(2, 7, END_OF_TIME_US, ended=True)
    assert timeline.head_sequence == 7
    assert timeline.watermark_at(7) == END_OF_TIME_US


def test_an_idle_lane_moves_on_without_sending_frames() -> None:
    timeline = Timeline()
    timeline.add(1, 10, 100)
    timeline.add(1, 10, 200)
    assert timeline.watermark_at(10) == 200
    assert timeline.watermark_at(9) == START_OF_TIME_US
    assert len(timeline) == 1


def test_an_ended_lane_stands_at_the_end_of_time_for_who_has_read_it_all() -> None:
    timeline = Timeline()
    timeline.add(1, 7, 100)
    timeline.add(1, 9, END_OF_TIME_US, ended=True)
    assert timeline.watermark_at(8) == 100
    assert timeline.watermark_at(9) == END_OF_TIME_US
    assert timeline.ended


def test_it_tells_whether_an_entry_is_news() -> None:
    timeline = Timeline()
    assert timeline.add(1, 5, 50)
    assert not timeline.add(1, 5, 50)
    assert not timeline.add(1, 4, 60)
    assert timeline.add(1, 6, 50)
