"""How the process of a function has ended, for those whose calls it had. Plain values.

Above it: the streams of calls, and those that make them. Below it: nothing. `exits.py` tells how a process has ended,
and `lives.py` which calls may be the cause.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ending:
    """How a process has ended."""

    why: str
    """Worded to follow the name of the function: `exited with code 3`."""
    own: bool
    """Whether it is its own doing."""
    maybe_asked: bool = False
    """It has ended without an error, as a function does that a signal has asked to end and that has answered its calls.
    It is its own doing only if its streams broke."""
    tail: str = ""
    """The last lines of its standard error, which may be the traceback of a crash."""

    def counts(self, *, broke: bool) -> bool:
        """Whether a call may be the cause. `broke`: the stream of the call has ended with an error."""
        return self.own and (broke or not self.maybe_asked)


class ProcessEndedError(Exception):
    """The process has ended during the call, by its own doing."""

    def __init__(self, ending: Ending, *, alone: bool) -> None:
        """`alone`: whether no other call was in flight."""
        super().__init__(f"its process {ending.why}")
        self.ending = ending
        self.alone = alone


@dataclass(slots=True)
class LostCall:
    """A call whose stream has ended."""

    life: int
    """The process that had it."""
    alone: bool
    """Whether it was the only call in flight."""
    broke: bool = False
    """Whether the stream has certainly ended with an error."""
