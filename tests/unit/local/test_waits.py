"""What a run shows of lanes that have been waiting for a while."""

from __future__ import annotations

from millstream.pauses import REPEATED_AFTER_S, WAIT, WAITS_FOR
from millstream_runner.local.workers import Waits


def test_the_longest_wait_of_a_vertex_is_known_until_its_line_says_that_it_is_over() -> None:
    waits = Waits()
    waits.take({"vertex": "out", "message": "a line of another kind"}, 0.0)
    assert waits.longest("out", 1.0) == (0.0, "")
    waits.take({"vertex": "out", WAIT: 1, WAITS_FOR: "it is away"}, 100.0)
    waits.take({"vertex": "out", WAIT: 2, WAITS_FOR: "it is full"}, 120.0)
    waits.take({"vertex": "out", WAIT: 1, WAITS_FOR: "it refuses"}, 130.0)
    assert waits.longest("out", 140.0) == (40.0 + REPEATED_AFTER_S, "it refuses")
    assert waits.longest("in", 140.0) == (0.0, "")
    waits.take({"vertex": "out", WAIT: 1, WAITS_FOR: ""}, 150.0)
    assert waits.longest("out", 150.0) == (30.0 + REPEATED_AFTER_S, "it is full")
