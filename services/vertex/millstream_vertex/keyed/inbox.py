"""The inbox of a lane's state: edits that are handed over to whoever owns the lane, and what became of them.

    hand over ─► COMMIT of the inbox's writer: edit ─► owner of the lane ─► COMMIT: changes, result, place in the inbox
    wait for the mark with that place ◄──────────────────────────────────────────────┘

Both are buffers in the ledger of the lane's vertex, beside the changelog. The inbox has one writer at a time, which is
a lane of its own. What is in it is durable: the lane makes it also if whoever handed it over is gone, and the next
owner does if this one is.

Above it: the stage, the state of a lane that no process runs, and commands. Below it: the ledger.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

from millstream.clock import START_OF_TIME_US, Clock
from millstream.compression import Compression
from millstream.frame import Frame, build_frame
from millstream.ledger.frames import decoded
from millstream.ledger.protocol import Ledger, StoredFrame
from millstream.record import BufferId, LaneId, edit_results_of, inbox_of
from millstream.udf.states import DeclaredState
from millstream.wire.state.v1 import state_pb2
from millstream_vertex.keyed.committing import committer_to
from millstream_vertex.keyed.edits import Edit, EditResult, decode_edit, decode_result, make_edit
from millstream_vertex.keyed.state import KeyedState
from millstream_vertex.trimming import Trimmer
from millstream_writer.committer import Unit

RESULTS_KEPT = 16
"""So many results stay for those who have handed the edits over."""
_PAGE_FRAMES = 16
_LOOK_FIRST_S, _LOOK_LAST_S = 0.01, 0.25
"""Between two looks whether an edit was made."""

_log = logging.getLogger(__name__)


def inbox_buffer(lane: LaneId) -> BufferId:
    """The inbox of a lane."""
    return BufferId(inbox_of(lane.vertex), lane.partition)


def results_buffer(lane: LaneId) -> BufferId:
    """The buffer with what became of the edits of a lane."""
    return BufferId(edit_results_of(lane.vertex), lane.partition)


def writer_of(lane: LaneId) -> LaneId:
    """Who writes into the inbox of a lane."""
    return lane._replace(input=inbox_of(lane.vertex))


class Inbox:
    """The inbox of a lane, for its owner."""

    def __init__(self, ledger: Ledger, lane: LaneId, trimmer: Trimmer) -> None:
        self._ledger = ledger
        self._lane = lane
        self.buffer = inbox_buffer(lane)
        self._results = results_buffer(lane)
        self._trimmer = trimmer
        self._made: deque[int] = deque()
        """Sequences of the edits whose results are not committed."""
        self._kept: deque[int] = deque()
        """Sequences of the newest results."""

    def edits(self, state: KeyedState) -> AbstractAsyncContextManager[AsyncIterator[StoredFrame]]:
        """The edits that follow the last one of the state, as they come; without end."""
        # Only this owner trims, so none is missed.
        return self._ledger.watch(self.buffer, state.last_edit[0])

    async def waiting(self, state: KeyedState) -> AsyncIterator[StoredFrame]:
        """Those that are there now. Each is made before the next one."""
        while frames := await self._ledger.peek(self.buffer, state.last_edit[0], _PAGE_FRAMES):
            for frame in frames:
                yield frame

    def make(
        self,
        state: KeyedState,
        stored: StoredFrame,
        epoch: int,
        now_us: int,
        declared: Sequence[DeclaredState] | None = None,
    ) -> list[tuple[BufferId, Frame]]:
        """Make an edit. Returns what to commit with the changes. `declared`: see `make_edit`."""
        number = 0 if stored.witness is None else stored.witness.number
        if number != state.last_edit[1] + 1:
            _log.warning(
                "%s: edits %d to %d of its state are lost: they are no longer in its inbox",
                *(self._lane, state.last_edit[1] + 1, number - 1),
            )
        results = [
            make_edit(state, edit, epoch, declared) if isinstance(edit, Edit) else edit
            for edit in self._edits_in(stored, epoch)
        ]
        state.edited(stored.sequence, number)
        self._made.append(stored.sequence)
        values = [result.encode() for result in results]
        times = array("q", [now_us] * len(values))
        return [(self._results, build_frame(values, times, ingest_time_us=now_us))]

    def _edits_in(self, stored: StoredFrame, epoch: int) -> list[Edit | EditResult]:
        found: list[Edit | EditResult] = []
        for value in decoded(self._ledger.vertex, self.buffer, stored).values():
            try:
                found.append(decode_edit(value))
            except ValueError as error:
                _log.warning("%s: an edit of its state is refused: %s", self._lane, error)
                found.append(EditResult("", str(error), epoch=epoch))
        return found

    def committed(self, units: Sequence[Unit], sequence: int) -> None:
        """These units are durable. `sequence`: of the last result."""
        edits = sum(buffer == self._results for unit in units for buffer, _ in unit.frames)
        if not edits:
            return
        for _ in range(edits):
            through = self._made.popleft()
        self._trimmer.consumed(self.buffer, through, 0)
        self._kept.extend([sequence] * edits)
        if len(self._kept) > RESULTS_KEPT:
            # Also those of former owners. One frame may have some that stay.
            self._trimmer.consumed(self._results, self._kept[-RESULTS_KEPT] - 1, 0)
            while len(self._kept) > RESULTS_KEPT:
                self._kept.popleft()

    @property
    def results(self) -> BufferId:
        """The buffer of results."""
        return self._results


class HandedOver(NamedTuple):
    """An edit in the inbox of a lane."""

    lane: LaneId
    id: str
    sequence: int
    results_after: int
    """Sequence of the last result before it."""


class MadeEdit(NamedTuple):
    """An edit that was made or refused."""

    sequence: int
    """Of the commit."""
    result: EditResult | None
    """None if it is no longer there, because so many others were made."""


async def hand_over(
    ledger: Ledger, lane: LaneId, edit: Edit, owner: str, *, compression: Compression, clock: Clock
) -> HandedOver:
    """Put an edit into the inbox of a lane. On return it is durable. Raises `FencedError` if somebody else writes there
    at the same time: then it may be there or not."""
    writer, inbox, results = writer_of(lane), inbox_buffer(lane), results_buffer(lane)
    results_after = await ledger.last_sequence(results)
    taken_over = await ledger.take_over(writer, owner)
    committer = await committer_to(ledger, writer, taken_over, inbox, compression)
    now_us = clock.now_us()
    frame = build_frame([edit.encode()], array("q", [now_us]), ingest_time_us=now_us)
    unit = Unit(frames=[(inbox, frame)], size=frame.size, pieces=0)
    await committer.commit([unit], watermark_us=START_OF_TIME_US)
    return HandedOver(lane, edit.id, committer.sequences[inbox], results_after)


async def found_edit(ledger: Ledger, lane: LaneId, identity: str) -> HandedOver | None:
    """An edit of which it is not known whether it was handed over; None if it was not. Nobody hands it over now."""
    inbox, results = inbox_buffer(lane), results_buffer(lane)
    # In this order: an edit that is made meanwhile has a result before it leaves the inbox.
    for buffer, name_in in ((inbox, _edit_name), (results, _result_name)):
        after = 0
        while frames := await ledger.peek(buffer, after, _PAGE_FRAMES):
            for frame in frames:
                values = decoded(ledger.vertex, buffer, frame).values()
                if identity in map(name_in, values):
                    return HandedOver(lane, identity, frame.sequence if buffer == inbox else 0, 0)
            after = frames[-1].sequence
    return None


def _edit_name(data: bytes) -> str:
    return state_pb2.Edit.FromString(data).id


def _result_name(data: bytes) -> str:
    return state_pb2.EditResult.FromString(data).id


async def result_of(ledger: Ledger, handed: HandedOver) -> MadeEdit | None:
    """What became of an edit; None as long as it waits."""
    stored = await ledger.mark(handed.lane)
    if stored is None:
        return None
    states = state_pb2.KeyedState.FromString(stored.mark.states.get(handed.lane.vertex, b""))
    if states.edit_sequence < handed.sequence:
        return None
    buffer, after = results_buffer(handed.lane), handed.results_after
    while frames := await ledger.peek(buffer, after, _PAGE_FRAMES):
        for frame in frames:
            for value in decoded(ledger.vertex, buffer, frame).values():
                result = decode_result(value)
                if result.id == handed.id:
                    return MadeEdit(frame.sequence, result)
        after = frames[-1].sequence
    return MadeEdit(stored.sequence, None)


async def until_made(ledger: Ledger, handed: HandedOver) -> MadeEdit:
    """Wait until an edit is made or refused."""
    pause_s = _LOOK_FIRST_S
    while (made := await result_of(ledger, handed)) is None:
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LOOK_LAST_S)
    return made
