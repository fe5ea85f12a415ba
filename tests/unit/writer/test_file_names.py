"""Names of finished files say how far a lane is."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream import codes
from millstream.record import Position
from millstream_connectors.file.sink.names import FinishedName, how_far, lane_text
from tests.support.errors import raises

positions = st.builds(Position, st.integers(0, 10**20), st.integers(0, 10**9))
lanes = st.from_regex(r"[a-z0-9][a-z0-9.-]{0,40}", fullmatch=True)


@given(
    lane=lanes, after=positions, end=positions, epoch=st.integers(0, 10**9), extension=st.sampled_from(["csv", "jsonl"])
)
def test_a_name_says_what_it_was_made_of(lane: str, after: Position, end: Position, epoch: int, extension: str) -> None:
    name = FinishedName(lane, after, end, epoch, extension)
    assert FinishedName.parse(str(name)) == name


@pytest.mark.parametrize("name", ["", ".millstream", "notes.txt", "out.in.0-1.2-3.4-e1.jsonl", "part-0000.parquet"])
def test_other_names_are_not_ours(name: str) -> None:
    assert FinishedName.parse(name) is None


@given(st.lists(st.tuples(st.integers(0, 10**15), st.integers(0, 9_999_999)), min_size=2, unique=True))
def test_names_sort_as_their_records_do(pairs: list[tuple[int, int]]) -> None:
    ordered = [Position(*pair) for pair in sorted(pairs)]
    names = [str(FinishedName("out.in.0", after, end, 1, "csv")) for after, end in pairwise(ordered)]
    assert sorted(names) == names


def test_long_lanes_fit_a_file_name_and_stay_apart() -> None:
    long, other = f"{'v' * 63}.fallback.{'e' * 139}.10", f"{'v' * 63}.fallback.{'e' * 139}.11"
    assert lane_text(long) != lane_text(other)
    name = str(FinishedName(lane_text(long), Position(10**15, 10**6), Position(10**15, 10**6), 10**9, "parquet"))
    assert len(name.encode()) <= 255
    assert FinishedName.parse(name) is not None


def test_a_chain_ends_where_its_last_file_ends() -> None:
    assert how_far([], "here") == (None, [])
    assert how_far([named(2, 9), named(0, 2)], "here") == (Position(9), [])


def test_files_moved_away_are_spoken_of_and_do_not_stop_the_lane() -> None:
    position, odd = how_far([named(0, 2), named(5, 9)], "here")
    assert position == Position(9)
    assert len(odd) == 1
    assert str(named(0, 2)) in odd[0]
    assert str(named(5, 9)) in odd[0]


@pytest.mark.parametrize("other", [(1, 4), (0, 2), (0, 9), (1, 2)])
def test_records_in_two_files_are_damage(other: tuple[int, int]) -> None:
    with raises(codes.SINK_FILES_OVERLAP) as raised:
        how_far([named(0, 2), named(*other)], "p/out/in.0")
    assert str(named(*other)) in str(raised.value)


def named(after: int, end: int) -> FinishedName:
    return FinishedName("out.in.0", Position(after), Position(end), 1, "jsonl")
