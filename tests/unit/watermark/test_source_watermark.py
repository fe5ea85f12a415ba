"""Where watermarks begin: event times seen, silence, restarts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.clock import END_OF_TIME_US, MICROSECONDS, START_OF_TIME_US
from millstream.frame import Frame, frame_of_records
from millstream.record import Record
from millstream.watermark.source import IdlePolicy, SourceWatermark

SECOND = MICROSECONDS
NOW_US = 1_000_000 * SECOND


def frame(*times_us: int) -> Frame:
    return frame_of_records([Record(b"x", time_us) for time_us in times_us], ingest_time_us=0)


def tick_seconds(
    watermark: SourceWatermark, start_s: float, seconds: float, *, waiting: bool = True, held_up: bool = False
) -> float:
    """Tick ten times a second; returns the time at the end."""
    for _ in range(round(seconds * 10)):
        start_s += 0.1
        watermark.tick(NOW_US, start_s, waiting=waiting, held_up=held_up)
    return start_s


@pytest.mark.guarantee("I5")
@given(st.lists(st.lists(st.integers(-1000, 1000), min_size=1, max_size=5), max_size=20), st.integers(0, 300))
def test_the_watermark_is_the_newest_time_less_the_delay(batches: list[list[int]], delay_us: int) -> None:
    watermark = SourceWatermark(max_delay_us=delay_us)
    seen: list[int] = []
    for batch in batches:
        expected_late = sum(time_us < max(seen) - delay_us for time_us in batch) if seen else 0
        assert watermark.observe(frame(*batch)) == expected_late
        seen += batch
        assert watermark.watermark_us == max(seen) - delay_us


@pytest.mark.guarantee("I5")
def test_a_restart_goes_on_from_the_mark() -> None:
    watermark = SourceWatermark(restored_us=500)
    assert watermark.observe(frame(400, 450, 500)) == 2
    assert watermark.watermark_us == 500


def test_without_a_policy_silence_changes_nothing() -> None:
    watermark = SourceWatermark()
    watermark.observe(frame(100))
    tick_seconds(watermark, 0.0, 60)
    assert watermark.watermark_us == 100
    assert not watermark.idle


def test_after_the_threshold_a_silent_source_moves_on_step_by_step() -> None:
    policy = IdlePolicy(threshold_s=5, increment_by_s=3, step_interval_s=2)
    watermark = SourceWatermark(idle=policy)
    watermark.observe(frame(100 * SECOND))
    now_s = tick_seconds(watermark, 0.0, 4.9)
    assert (watermark.watermark_us, watermark.idle) == (100 * SECOND, False)
    now_s = tick_seconds(watermark, now_s, 0.3)
    assert (watermark.watermark_us, watermark.idle) == (103 * SECOND, True)
    now_s = tick_seconds(watermark, now_s, 1.5)
    assert watermark.watermark_us == 103 * SECOND
    tick_seconds(watermark, now_s, 0.8)
    assert watermark.watermark_us == 106 * SECOND


def test_data_ends_the_silence() -> None:
    watermark = SourceWatermark(idle=IdlePolicy(threshold_s=1, increment_by_s=1))
    watermark.observe(frame(100 * SECOND))
    now_s = tick_seconds(watermark, 0.0, 1.2)
    idle_then, moved_to = watermark.idle, watermark.watermark_us
    watermark.observe(frame(100 * SECOND))
    assert (idle_then, watermark.idle) == (True, False)
    tick_seconds(watermark, now_s, 0.9)
    assert watermark.watermark_us == moved_to


@pytest.mark.guarantee("I5")
def test_a_lane_with_work_on_the_way_is_slow_and_not_idle() -> None:
    watermark = SourceWatermark(idle=IdlePolicy(threshold_s=1, increment_by_s=1))
    watermark.observe(frame(100 * SECOND))
    now_s = tick_seconds(watermark, 0.0, 60, waiting=False)
    assert watermark.watermark_us == 100 * SECOND
    tick_seconds(watermark, now_s, 0.9)
    assert watermark.watermark_us == 100 * SECOND


@pytest.mark.guarantee("I5")
def test_time_in_which_a_source_cannot_be_read_is_no_silence_and_does_not_begin_it_anew() -> None:
    policy = IdlePolicy(threshold_s=5, increment_by_s=3, step_interval_s=4)
    watermark = SourceWatermark(idle=policy)
    watermark.observe(frame(100 * SECOND))
    now_s = tick_seconds(watermark, 0.0, 3)
    now_s = tick_seconds(watermark, now_s, 60, held_up=True)
    now_s = tick_seconds(watermark, now_s, 1.9)
    assert (watermark.watermark_us, watermark.idle) == (100 * SECOND, False)
    now_s = tick_seconds(watermark, now_s, 0.3)
    assert (watermark.watermark_us, watermark.idle) == (103 * SECOND, True)
    # What is left of the time between two steps is left after it as well.
    now_s = tick_seconds(watermark, now_s, 2)
    now_s = tick_seconds(watermark, now_s, 60, held_up=True)
    assert (watermark.watermark_us, watermark.idle) == (103 * SECOND, False)
    now_s = tick_seconds(watermark, now_s, 1.7)
    assert watermark.watermark_us == 103 * SECOND
    now_s = tick_seconds(watermark, now_s, 0.5)
    assert watermark.watermark_us == 106 * SECOND
    # A second at least, in which arrives what the source has had meanwhile.
    now_s = tick_seconds(watermark, now_s, 3.8)
    now_s = tick_seconds(watermark, now_s, 60, held_up=True)
    now_s = tick_seconds(watermark, now_s, 0.9)
    assert watermark.watermark_us == 106 * SECOND


@pytest.mark.guarantee("I5")
def test_a_paused_process_does_not_take_its_own_sleep_for_silence() -> None:
    watermark = SourceWatermark(idle=IdlePolicy(threshold_s=5, increment_by_s=5))
    watermark.observe(frame(100 * SECOND))
    watermark.tick(NOW_US, 10.0)
    watermark.tick(NOW_US, 4000.0)
    assert watermark.watermark_us == 100 * SECOND


@pytest.mark.guarantee("I5")
def test_idleness_stops_at_the_present_less_the_delay_and_never_goes_back() -> None:
    watermark = SourceWatermark(max_delay_us=10 * SECOND, idle=IdlePolicy(threshold_s=1, increment_by_s=1))
    watermark.observe(frame(NOW_US - 2 * SECOND))
    assert watermark.watermark_us == NOW_US - 12 * SECOND
    now_s = tick_seconds(watermark, 0.0, 60)
    assert watermark.watermark_us == NOW_US - 10 * SECOND
    watermark.tick(NOW_US - 3600 * SECOND, now_s + 1)
    assert watermark.watermark_us == NOW_US - 10 * SECOND


def test_a_source_that_never_gave_anything_starts_at_the_present() -> None:
    policy = IdlePolicy(threshold_s=2, increment_by_s=1, init_source_delay_s=4)
    watermark = SourceWatermark(max_delay_us=SECOND, idle=policy)
    now_s = tick_seconds(watermark, 0.0, 3.9)
    assert watermark.watermark_us == START_OF_TIME_US
    tick_seconds(watermark, now_s, 0.3)
    assert watermark.watermark_us == NOW_US - SECOND


def test_a_source_that_never_gave_anything_waits_without_an_initial_delay() -> None:
    watermark = SourceWatermark(idle=IdlePolicy(threshold_s=2, increment_by_s=1))
    tick_seconds(watermark, 0.0, 60)
    assert watermark.watermark_us == START_OF_TIME_US


def test_the_end_is_the_end_of_time_and_only_the_end_is() -> None:
    watermark = SourceWatermark(idle=IdlePolicy(threshold_s=1, increment_by_s=1))
    watermark.observe(frame(END_OF_TIME_US))
    assert (watermark.watermark_us, watermark.ended) == (END_OF_TIME_US - 1, False)
    assert watermark.end() == END_OF_TIME_US
    tick_seconds(watermark, 0.0, 5)
    assert (watermark.watermark_us, watermark.ended, watermark.idle) == (END_OF_TIME_US, True, False)
