"""How much a lane may have in flight: enough to keep its functions and commits busy. More would only wait, in memory.

Above it: the lanes that commit frames. Below it: the tracker.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.limits import COMMIT_AHEAD_BYTES_MAX, FUNCTION_BYTES_MAX
from millstream_reader.tracker import Tracker, UnansweredBounds
from millstream_vertex.lane import Deliverer

_PIECES = 2
"""Pieces of any size for each function: the one that it processes, and the next one."""


def bound_by(tracker: Tracker, concurrencies: Sequence[int], deliverer: Deliverer | None = None) -> None:
    """Bound the work of a lane that commits frames, or passes them to the sink of its chain.

    `concurrencies`: how many records each function that they pass in the lane processes concurrently; 0: unknown.
    `deliverer`: of a chain that ends in a sink.
    """
    if any(one != 1 for one in concurrencies):
        # A function that waits for something else may need everything at once.
        return
    functions = len(concurrencies)
    unanswered = UnansweredBounds(_PIECES * functions, FUNCTION_BYTES_MAX * functions) if functions else None
    ahead = deliverer.ahead_bytes_max if deliverer is not None else COMMIT_AHEAD_BYTES_MAX
    tracker.bound(ahead + FUNCTION_BYTES_MAX * functions, unanswered)
