"""How long partitions of Pulsar are said to be without a connection."""

from __future__ import annotations

from millstream_connectors.pulsar.source.losses import Losses


def test_a_partition_that_is_apart_for_the_limit_is_named() -> None:
    losses = Losses(10.0)
    named = {now_s: losses.look(["a"], float(now_s)) for now_s in range(100, 112)}
    assert [now_s for now_s, names in named.items() if names] == [110, 111]


def test_two_brief_losses_are_not_a_long_one() -> None:
    losses = Losses(10.0)
    assert losses.look(["a"], 100.0) == []
    # It did not look meanwhile.
    assert losses.look(["a"], 200.0) == []
    assert losses.look([], 201.0) == []
    for now_s in range(202, 212):
        assert losses.look(["a", "b"][now_s % 2 :], float(now_s)) == []


def test_a_lane_that_looks_rarely_names_it_too() -> None:
    losses = Losses(10.0)
    assert [losses.look(["a"], 100.0 * n) for n in range(5)] == [[], [], [], [], ["a"]]


def test_what_was_looked_at_closely_is_named_again_later() -> None:
    losses = Losses(1.0)
    found = []
    for now_s in range(40):
        names = losses.look(["a"], now_s / 4)
        if names:
            losses.postpone(names)
            found.append(now_s)
    assert found == [4, 20, 36]
    losses.forget()
    assert losses.look(["a"], 100.0) == []
