"""The numbers of the states that a function declares: among these, and among those that are stored. Pure.

Above it: the state of a lane. Below it: nothing. A number is a byte, so columns of them are translated as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.udf.states import DeclaredState

STATES_MAX = 256
"""How many states a vertex can have had."""


class StateNumbers:
    """The numbers of the states of one function. Empty until `declare`."""

    def __init__(self) -> None:
        self.declarations: Sequence[DeclaredState] = ()
        self.stored = bytearray(STATES_MAX)
        """For each state that the function declares, its number among those that are stored."""
        self.declared = bytearray(STATES_MAX)
        """The reverse."""
        self.lazy: dict[int, int] = {}
        """For each lazy state, as `stored`."""
        self.are_first_versions = False
        """Whether the function writes values of version 1 only."""

    def declare(self, declared: Sequence[DeclaredState], stored: Sequence[int]) -> None:
        """`stored`: the number of each of them among those that are stored."""
        self.declarations = declared
        for place, (state, number) in enumerate(zip(declared, stored, strict=True)):
            self.stored[place], self.declared[number] = number, place
            if state.is_lazy:
                self.lazy[place] = number
        self.are_first_versions = all(state.version == 1 for state in declared)
