"""All kinds of windows against a naive model: random rows, watermarks, early results, checkpoints, deaths."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.clock import END_OF_TIME_US, START_OF_TIME_US
from millstream_reduce.windows import WindowConfig
from tests.support.sizes import sized
from tests.unit.reduce.windows.lane import Lane

pytestmark = pytest.mark.slow

KEYS = st.sampled_from([b"", b"a", b"b\x1fc", b"\x00", b"a\x00", b"\xff"])
NEAR = st.integers(-30, 50)
"""Times around the epoch: windows are a few microseconds long."""
FAR = st.one_of(
    NEAR,
    st.integers(START_OF_TIME_US, START_OF_TIME_US + 40),
    st.integers(END_OF_TIME_US - 40, END_OF_TIME_US),
    st.integers(START_OF_TIME_US, END_OF_TIME_US),
)
SPANS = st.integers(1, 13)
LATENESS = st.sampled_from([0, 0, 1, 7])

fixed = st.builds(WindowConfig, kind=st.just("fixed"), length_us=SPANS, lateness_us=LATENESS)
sliding = st.builds(
    WindowConfig, kind=st.just("sliding"), length_us=SPANS, slide_us=SPANS, lateness_us=LATENESS, keyed=st.booleans()
)
sessions = st.builds(WindowConfig, kind=st.just("session"), timeout_us=SPANS, lateness_us=LATENESS, keyed=st.booleans())
periods = st.builds(
    WindowConfig,
    kind=st.just("global"),
    every_us=SPANS,
    accumulate=st.booleans(),
    lateness_us=LATENESS,
    keyed=st.booleans(),
)
counts = st.builds(
    WindowConfig,
    kind=st.just("global"),
    count=st.one_of(st.none(), st.integers(1, 5)),
    accumulate=st.booleans(),
    lateness_us=LATENESS,
    keyed=st.booleans(),
)
KINDS = {"fixed": fixed, "sliding": sliding, "session": sessions, "period": periods, "count": counts}


def steps(times: st.SearchStrategy[int]) -> st.SearchStrategy[list[tuple[object, ...]]]:
    """What happens to a lane."""
    rows = st.lists(st.tuples(times, KEYS), min_size=1, max_size=12)
    some = st.one_of(st.none(), st.integers(1, 3))
    step = st.one_of(
        st.tuples(st.just("append"), rows),
        st.tuples(st.just("append"), rows),
        st.tuples(st.just("close"), times, some),
        st.tuples(st.just("early"), some, st.integers(1, 6)),
        st.tuples(st.just("checkpoint")),
        st.tuples(st.just("die"), st.integers(0, 3), st.sampled_from(["beginning", "checkpoint", "cut"])),
    )
    return st.lists(step, max_size=14)


def live(config: WindowConfig, story: list[tuple[object, ...]]) -> Lane:
    lane = Lane(config)
    for name, *values in story:
        if name == "append":
            lane.append(*values)  # type: ignore[arg-type]
        elif name == "close":
            lane.close(*values)  # type: ignore[arg-type]
        elif name == "early":
            lane.early(*values)  # type: ignore[arg-type]
        elif name == "checkpoint":
            lane.checkpoint()
        else:
            lost, way = values
            assert isinstance(lost, int)
            lane.die(lost, from_checkpoint=way == "checkpoint", cut=way == "cut")
        lane.check()
    lane.end()
    return lane


quickly = settings(max_examples=sized(30, 100), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.guarantee("I3", "I5")
@pytest.mark.parametrize("kind", KINDS)
@quickly
@given(data=st.data())
def test_windows_hold_what_a_naive_model_holds_whatever_happens(kind: str, data: st.DataObject) -> None:
    live(data.draw(KINDS[kind]), data.draw(steps(NEAR)))


@pytest.mark.guarantee("I3")
@pytest.mark.parametrize("kind", KINDS)
@quickly
@given(data=st.data())
def test_windows_at_the_ends_of_time_are_those_of_the_naive_model(kind: str, data: st.DataObject) -> None:
    live(data.draw(KINDS[kind]), data.draw(steps(FAR)))


@pytest.mark.parametrize("together", [True, False])
def test_sessions_meet_at_the_very_end_of_time_whether_their_rows_come_together(together: bool) -> None:
    config = WindowConfig(kind="session", timeout_us=11, lateness_us=0, keyed=False)
    rows = [(END_OF_TIME_US - 11, b""), (END_OF_TIME_US, b"")]
    live(config, [("append", rows)] if together else [("append", [row]) for row in rows])


def test_last_results_that_go_one_by_one_are_those_of_the_naive_model() -> None:
    config = WindowConfig(kind="global", count=4, accumulate=True, lateness_us=0, keyed=True)
    live(
        config,
        [
            ("append", [(0, b""), (0, b""), (0, b""), (0, b""), (13, b"")]),
            ("close", 0, None),
            ("append", [(0, b""), (0, b"a")]),
            ("close", END_OF_TIME_US, 1),
        ],
    )
