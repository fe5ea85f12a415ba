"""Runs a function with states over the records of a call: those of one key one after another, in order.

Above it: `execution`, which runs it in the function's thread, on its loop or in its threads. Below it: `key_states`,
and users' functions.

The turn of a record is over when its outputs are encoded and its changes counted, or when it has failed. Only then does
the next record of its key begin, or it is held up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from millstream_udf.context import Context
from millstream_udf.definition import Definition
from millstream_udf.failures import FAILURES, HeldUp, failure
from millstream_udf.key_states import BATCH, CURRENT_TURN, NONE, SETTLED, CallStates, Turn
from millstream_udf.outputs import encoded_outputs
from millstream_udf.states import KeyStates, State
from millstream_udf.timers import Timer

_HELD_UP = HeldUp()


class KeyedCall:
    """The records of one call that fit the function's type."""

    def __init__(
        self,
        definition: Definition,
        call: Callable[..., Any],
        states: CallStates,
        items: Sequence[Any],
        places: Sequence[int],
        context: Context,
    ) -> None:
        """`places`: where in the call each of the items is."""
        self.definition = definition
        self._call = call
        self._states = states
        self._items = items
        self._places = places
        self._context = context
        self._takes_state = "state" in definition.arguments
        self._arguments = (context,) if definition.wants_context else ()

    def chains(self) -> list[list[int]]:
        """The indexes of the items, by key, in the order in which keys first occur."""
        found: dict[int, list[int]] = {}
        keys = self._states.record_keys
        for index, place in enumerate(self._places):
            found.setdefault(keys[place], []).append(index)
        return list(found.values())

    def run(self, indexes: Iterable[int], results: list[Any]) -> None:
        """Run a function that is not async over these items, and put in the result of each."""
        states, call, items, places = self._states, self._call, self._items, self._places
        arguments, takes_state, enter, settle = self._arguments, self._takes_state, CURRENT_TURN.set, states.settle
        keys, held = states.record_keys, states.held
        for index in indexes:
            # As `begin` does, without the call.
            place = places[index]
            key = keys[place]
            if key in held:
                results[index] = _HELD_UP
                continue
            turn = Turn(states, key, place)
            enter(turn)
            if takes_state:
                arguments = self._arguments_of(turn)
            try:
                result = call(items[index], *arguments)
                # Most results need nothing more.
                if type(result) is bytes or result is None:
                    settle(turn)
                else:
                    result = self._settled(turn, result, items[index])
                results[index] = result
            except FAILURES as error:
                results[index] = states.failed(turn, failure(error))
        enter(NONE)

    async def run_one(self, index: int) -> Any:
        """Run an async function for one item. Returns its result, and raises what it raises."""
        turn = self._states.begin(self._places[index])
        if turn is None:
            return _HELD_UP
        CURRENT_TURN.set(turn)
        arguments = self._arguments_of(turn) if self._takes_state else self._arguments
        try:
            item = self._items[index]
            return self._settled(turn, await self._call(item, *arguments), item)
        except BaseException as error:
            # Also a cancellation, whatever it is that is cancelled.
            self._states.failed(turn, error)
            raise
        finally:
            CURRENT_TURN.set(NONE)

    def batch_arguments(self, turns: Sequence[Turn]) -> tuple[Any, ...]:
        """The arguments of a batch function: the items, and what it takes besides."""
        keys = self._states.record_keys
        handles = list(map(self._handle, turns))
        states = [handles[keys[place]] for place in self._places]
        CURRENT_TURN.set(BATCH)
        rest = [states if argument == "state" else self._context for argument in self.definition.arguments]
        return (self._items, *rest)

    def settled_batch(self, turns: Sequence[Turn], results: Sequence[Any]) -> list[Any]:
        """The results of a batch, after the changes of the keys whose records have all succeeded have counted."""
        settled = [self._encoded(result) for result in results]
        keys = self._states.record_keys
        for chain in self.chains():
            turn = turns[keys[self._places[chain[0]]]]
            if not any(isinstance(settled[index], FAILURES) for index in chain):
                try:
                    self._states.settle(turn)
                except FAILURES as error:
                    settled[chain[0]] = failure(error)
                else:
                    continue
            turn.is_open = False
            # The records of a key have changed its states together, so what they have changed cannot be told apart.
            is_held = False
            for index in chain:
                if is_held or not isinstance(settled[index], FAILURES):
                    settled[index] = _HELD_UP
                elif not isinstance(settled[index], SETTLED):
                    is_held = True
        for turn in turns:
            turn.is_open = False
        return settled

    def _handle(self, turn: Turn) -> Any:
        declarations = self.definition.declarations
        return State(turn) if declarations is None else KeyStates(declarations, turn)

    def _arguments_of(self, turn: Turn) -> tuple[Any, ...]:
        state = State(turn)
        if len(self.definition.arguments) == 1:
            return (state,)
        return tuple(state if argument == "state" else self._context for argument in self.definition.arguments)

    def _settled(self, turn: Turn, result: Any, item: Any) -> Any:
        """The result of a record, with outputs that can be sent. Raises if it has failed."""
        if type(result) is not bytes and result is not None:
            if isinstance(result, FAILURES):
                return self._states.failed(turn, result)
            earliest_us = item.event_time_us if type(item) is Timer else None
            result = encoded_outputs(result, self.definition.encode, earliest_us)
        self._states.settle(turn)
        return result

    def _encoded(self, result: Any) -> Any:
        """A result of a batch, or why it cannot be sent."""
        if isinstance(result, FAILURES):
            return result
        try:
            return encoded_outputs(result, self.definition.encode)
        except FAILURES as error:
            return failure(error)
