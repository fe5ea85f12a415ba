"""Waits while a full disk keeps the store of a state from having what is committed.

Above it: the stage, and the changelog while it is read. Below it: the state of the lane.
"""

from __future__ import annotations

import logging

from millstream.errors import StorageFullError
from millstream.pauses import Pauses, RepeatedFailure, until_done
from millstream.record import LaneId
from millstream_vertex.keyed.state import KeyedState

_log = logging.getLogger(__name__)
_FIRST_S, _LAST_S = 0.1, 5.0


async def wait_for_room(state: KeyedState, lane: LaneId | str) -> None:
    """Return when the store has what it was given. What waits for this is neither processed nor lost."""
    if not state.is_behind:
        return
    failure = RepeatedFailure()

    async def store() -> None:
        state.store()

    await until_done(
        store, StorageFullError, lambda error: failure.warn(_log, "", str(error)), Pauses(_FIRST_S, _LAST_S)
    )
    failure.over(_log, f"{lane}: ")
