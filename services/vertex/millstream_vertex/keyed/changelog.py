"""The changelog of a lane's state in its ledger: frames of steps, in a buffer that the lane writes and reads itself.

    result ─► frames ─► committed with its outputs ─► what lies before the oldest slots is trimmed
    takeover ─► frames, in order ─► image

Above it: the stage. Below it: the ledger of the lane's own vertex.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from millstream import codes
from millstream.errors import DamageError
from millstream.frame import Frame, build_frame
from millstream.ledger.frames import decoded
from millstream.ledger.protocol import Ledger, StoredFrame
from millstream.ledger.witness import given_up_of
from millstream.limits import FRAME_BYTES_MAX
from millstream.record import BufferId, LaneId, changelog_of
from millstream.wire.ledger.v1 import mark_pb2
from millstream_vertex.keyed.image import SLOTS
from millstream_vertex.keyed.state import KeyedState
from millstream_vertex.keyed.steps import decode_step
from millstream_vertex.trimming import Trimmer
from millstream_writer.committer import Unit

READS_MAX = 5
"""After so many attempts, a changelog that cannot be read is damaged, and not trimmed while it is read."""


def changelog_buffer(lane: LaneId) -> BufferId:
    """The buffer with the changelog of a lane."""
    return BufferId(changelog_of(lane.vertex), lane.partition)


class _Written(NamedTuple):
    """Slots that were written anew."""

    before: int
    """Sequence of the last frame before them: up to there, nothing of these slots is needed."""
    slots: int


class Changelog:
    """The changelog of a lane. Made by `open_changelog`."""

    def __init__(self, buffer: BufferId, trimmer: Trimmer) -> None:
        self.buffer = buffer
        self._trimmer = trimmer
        self._made: deque[int] = deque()
        """For each frame that is made and not committed: how many slots begin in it."""
        self._made_before = 0
        self._written: deque[_Written] = deque()
        """The newest slots that were written, until they are all of them; the oldest first."""
        self._covered = 0
        """How many slots these are."""
        self._last = 0
        """Sequence of the last frame."""

    def frames(self, steps: Iterable[tuple[bytes, int]], now_us: int) -> list[tuple[BufferId, Frame]]:
        """The frames to commit for the steps of a result (`KeyedState.take_steps`)."""
        frames: list[tuple[BufferId, Frame]] = []
        values: list[bytes] = []
        size = slots = 0

        def cut() -> None:
            frame = build_frame(values, array("q", [now_us] * len(values)), ingest_time_us=now_us)
            frames.append((self.buffer, frame))
            self._made.append(slots)

        for data, begun in steps:
            if values and size + len(data) > FRAME_BYTES_MAX:
                cut()
                values, size, slots = [], 0, 0
            values.append(data)
            size, slots = size + len(data), slots + begun
        if values:
            cut()
        return frames

    def begin(self) -> None:
        """The frames that were made stay, whatever happens to the next ones."""
        self._made_before = len(self._made)

    def undo(self) -> None:
        """The frames since `begin` are not committed."""
        while len(self._made) > self._made_before:
            self._made.pop()

    def committed(self, units: Sequence[Unit], sequences: Mapping[BufferId, int]) -> None:
        """These units were committed, some with frames. `sequences`: of the last frame in each buffer."""
        frames = sum(buffer == self.buffer for unit in units for buffer, _ in unit.frames)
        if not frames:
            return
        slots = sum(self._made.popleft() for _ in range(frames))
        self._made_before = max(0, self._made_before - frames)
        self._add(slots, sequences[self.buffer])

    def _add(self, slots: int, sequence: int) -> None:
        """Frames up to a sequence follow, in which so many slots begin."""
        if slots:
            self._written.append(_Written(self._last, slots))
            self._covered += slots
            while self._covered - self._written[0].slots >= SLOTS:
                self._covered -= self._written.popleft().slots
            if self._covered >= SLOTS:
                self._trimmer.consumed(self.buffer, self._written[0].before)
        self._last = sequence

    async def load(self, ledger: Ledger, lane: LaneId, mark: mark_pb2.Mark, state: KeyedState) -> None:
        """Read it into `state`, which knows the states of the mark. For the owner of the lane, after its takeover.
        Raises `DamageError`."""
        for sequence, slots in await self._read(ledger, lane, mark, state):
            self._add(slots, sequence)

    async def _read(
        self, ledger: Ledger, lane: LaneId, mark: mark_pb2.Mark, state: KeyedState
    ) -> Sequence[tuple[int, int]]:
        for _ in range(READS_MAX - 1):
            try:
                return await read_changelog(ledger, lane, mark, state)
            except DamageError:
                # An earlier owner that is still there may have trimmed it meanwhile. Nothing guards a trim, because
                # what it removes is needed by nobody, except a reader that is in the midst of it.
                state.forget()
        return await read_changelog(ledger, lane, mark, state)


async def read_changelog(
    ledger: Ledger, lane: LaneId, mark: mark_pb2.Mark, state: KeyedState
) -> Sequence[tuple[int, int]]:
    """Read the changelog of a lane up to its mark into `state`, which knows the states of the mark. Returns the
    sequence of each frame, and how many slots begin in it. Raises `DamageError` if it is not complete; the reason may
    be that it was trimmed meanwhile."""
    buffer, frames = changelog_buffer(lane), list[tuple[int, int]]()
    numbers = {(total.edge, total.partition): total.frames for total in mark.written}
    written, first, number = numbers.get(buffer, 0), 0, 0
    unwritten = 0
    last = await ledger.last_sequence(buffer) if written else 0
    if last:
        given_up = given_up_of(mark, buffer.edge)
        async with ledger.read(buffer, 0, given_up=given_up) as stored:
            async for frame in stored:
                number = frame.witness.number if frame.witness is not None else 0
                first = first or number
                slots, size = _load(ledger, buffer, frame, lane, state)
                frames.append((frame.sequence, slots))
                unwritten = size if slots else unwritten + size
                if number >= written or frame.sequence >= last:
                    break
    if number != written or (first > 1 and sum(slots for _, slots in frames) < SLOTS):
        raise DamageError(
            codes.STATE_UNREADABLE,
            f"the state of lane {lane} is not complete: its changelog has frames {first} to {number} of {written}. "
            "Restore the ledger, or start the pipeline over",
        )
    state.loaded(unwritten)
    return frames


def _load(ledger: Ledger, buffer: BufferId, stored: StoredFrame, lane: LaneId, state: KeyedState) -> tuple[int, int]:
    """Do what a frame says. Returns how many slots begin in it, and the bytes of the changes behind them."""
    slots = size = 0
    for value in decoded(ledger.vertex, buffer, stored).values():
        try:
            step = decode_step(value)
        except ValueError as error:
            raise DamageError(
                codes.STATE_UNREADABLE,
                f"the state of lane {lane} cannot be read: at sequence {stored.sequence}, {error}. Restore the ledger, "
                "or start the pipeline over",
            ) from error
        state.load(step)
        slots += step.slots
        size = 0 if step.slots else size + len(value)
    return slots, size
