"""What records inside a chain are called: the same at every attempt, and no two of them alike."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.record import LaneId
from millstream_vertex.lineage import Lineage

LANE = LaneId("two", "one-two", 0)


def positions(lineage: Lineage, records: int) -> list[str]:
    origin = lineage.origin(LANE)
    return [origin.position(index) for index in range(records)]


def through(lineage: Lineage, copies: Sequence[Sequence[int]]) -> dict[str, int]:
    """Names behind steps that make so many of each record, in their order, with how often each is used."""
    for step, made in enumerate(copies):
        lineage = lineage.children([index for index, count in enumerate(made) for _ in range(count)], step)
    records = sum(copies[-1])
    names = positions(lineage, records)
    return {name: names.count(name) for name in names}


def test_records_that_stay_in_their_order_are_numbered_as_they_were_read() -> None:
    read = Lineage("12/", 5)
    assert positions(read, 2) == ["two/one-two/0/12/5", "two/one-two/0/12/6"]
    assert positions(read.children(None, 0), 2) == positions(read, 2)
    # One that is left out shifts no other.
    assert positions(read.children([1, 2], 0), 2) == ["two/one-two/0/12/6", "two/one-two/0/12/7"]
    assert positions(read.children([0, 2], 0), 2) == ["two/one-two/0/12/5", "two/one-two/0/12/7"]
    assert positions(read.part(2, 1), 1) == positions(read.children([2], 0), 1)


def test_further_outputs_have_names_of_their_own_whatever_step_made_them() -> None:
    read = Lineage("1/", 0)
    # Twice in the first step, then once; or once, then twice: three records from one, in either way.
    names = through(read, [[2, 1], [2, 1, 1], [1, 2, 1, 1]])
    assert set(names.values()) == {1}
    assert "two/one-two/0/1/0" in names
    assert {"two/one-two/0/1/0+0.1", "two/one-two/0/1/0+1.1"} <= set(names)


def test_names_do_not_depend_on_how_input_is_cut() -> None:
    copies = [1, 2, 0, 3, 1, 1]
    parents = [index for index, count in enumerate(copies) for _ in range(count)]
    read = Lineage("7/", 10)
    whole = positions(read.children(parents, 1), len(parents))
    for cut in range(1, len(copies)):
        before = [one for one in parents if one < cut]
        after = [one - cut for one in parents if one >= cut]
        found = positions(read.children(before, 1), len(before))
        found += positions(read.part(cut, len(copies) - cut).children(after, 1), len(after))
        assert found == whole
