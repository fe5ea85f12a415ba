"""The changelog of a lane's state in its ledger: frames of steps, in a buffer that the lane writes and reads itself.

    result ─► frames ─► committed with its outputs ─► what lies before the oldest slots is trimmed
    takeover ─► frames, in order, or those that the image does not have ─► image

Above it: the stage. Below it: the ledger of the lane's own vertex.
"""

from __future__ import annotations

import logging
from array import array
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple

from millstream import codes
from millstream.errors import REPAIR, DamageError
from millstream.frame import Frame, build_frame
from millstream.ledger.frames import decoded
from millstream.ledger.protocol import Ledger, StoredFrame, Witness
from millstream.ledger.witness import given_up_of, name_of, witness_named
from millstream.limits import FRAME_BYTES_MAX
from millstream.record import BufferId, LaneId, changelog_of
from millstream.wire.ledger.v1 import mark_pb2
from millstream_vertex.keyed.image import SLOTS, Position, WrittenSlots
from millstream_vertex.keyed.room import wait_for_room
from millstream_vertex.keyed.state import KeyedState
from millstream_vertex.keyed.steps import Step, decode_step
from millstream_vertex.trimming import Trimmer
from millstream_writer.committer import Unit

_PAGE_FRAMES = 4
"""Frames that are asked for at once, where they are not read as a stream."""
READS_MAX = 5
"""After so many attempts, a changelog that cannot be read is damaged, and not trimmed while it is read."""


def changelog_buffer(lane: LaneId) -> BufferId:
    """The buffer with the changelog of a lane."""
    return BufferId(changelog_of(lane.vertex), lane.partition)


def frame_of_steps(steps: Sequence[bytes], now_us: int) -> Frame:
    """A frame of the changelog."""
    return build_frame(steps, array("q", [now_us] * len(steps)), ingest_time_us=now_us)


_log = logging.getLogger(__name__)


class _Made(NamedTuple):
    """A frame that is not committed."""

    slots: int
    """How many slots begin in it."""
    is_last: bool
    """Whether it is the last one of its result."""


class Changelog:
    """The changelog of a lane. Empty until `load`."""

    def __init__(self, lane: LaneId, trimmer: Trimmer, last_mark: Callable[[], mark_pb2.Mark]) -> None:
        """`last_mark`: of the lane, as of its last commit."""
        self._lane = lane
        self.buffer = changelog_buffer(lane)
        self._trimmer = trimmer
        self._last_mark = last_mark
        self._made: deque[_Made] = deque()
        """The frames that are made and not committed; the oldest first."""
        self._made_before = 0
        self._written: deque[WrittenSlots] = deque()
        """The newest slots that were written, until they are all of them; the oldest first."""
        self._covered = 0
        """How many slots these are."""
        self._last = 0
        """Sequence of the last frame."""
        self._frame: Witness | None = None
        """The last frame that was loaded or committed."""

    @property
    def epoch(self) -> int:
        """Of the owner of the lane."""
        return self._last_mark().epoch

    def frames(self, steps: Iterable[tuple[bytes, int]], now_us: int) -> list[tuple[BufferId, Frame]]:
        """The frames to commit for the steps of a result (`KeyedState.take_steps`)."""
        frames: list[tuple[BufferId, Frame]] = []
        values: list[bytes] = []
        size = slots = 0

        def cut(*, is_last: bool) -> None:
            frames.append((self.buffer, frame_of_steps(values, now_us)))
            self._made.append(_Made(slots, is_last))

        for data, begun in steps:
            if values and size + len(data) > FRAME_BYTES_MAX:
                cut(is_last=False)
                values, size, slots = [], 0, 0
            values.append(data)
            size, slots = size + len(data), slots + begun
        if values:
            cut(is_last=True)
        return frames

    def begin(self) -> None:
        """The frames that were made stay, whatever happens to the next ones."""
        self._made_before = len(self._made)

    def undo(self) -> None:
        """The frames since `begin` are not committed."""
        while len(self._made) > self._made_before:
            self._made.pop()

    def committed(self, units: Sequence[Unit], sequences: Mapping[BufferId, int]) -> int:
        """These units were committed, some with frames. `sequences`: of the last frame in each buffer. Returns how many
        results with frames these are."""
        frames = sum(buffer == self.buffer for unit in units for buffer, _ in unit.frames)
        if not frames:
            return 0
        made = [self._made.popleft() for _ in range(frames)]
        self._made_before = max(0, self._made_before - frames)
        self._add(sum(one.slots for one in made), sequences[self.buffer])
        mark = self._last_mark()
        name = name_of(self._lane.key, frames_of(mark)[self.buffer], mark.commit_id)
        self._frame = witness_named(self._last, name)
        return sum(one.is_last for one in made)

    def position(self) -> Position:
        """Of the last frame that was loaded or committed; there must have been one."""
        assert self._frame is not None, "a frame of a lane has a name"
        return Position(self._frame, tuple(self._written))

    def _add(self, slots: int, sequence: int) -> None:
        """Frames up to a sequence follow, in which so many slots begin."""
        if slots:
            self._written.append(WrittenSlots(self._last, slots))
            self._covered += slots
            while self._covered - self._written[0].slots >= SLOTS:
                self._covered -= self._written.popleft().slots
            if self._covered >= SLOTS:
                self._trimmer.consumed(self.buffer, self._written[0].before)
        self._last = sequence

    async def load(self, ledger: Ledger, lane: LaneId, mark: mark_pb2.Mark, state: KeyedState) -> None:
        """Read it into `state`, which knows the states of the mark: all of it, or what its image does not have. For the
        owner of the lane, after its takeover. Raises `DamageError`."""
        self._written.clear()
        self._covered = self._last = 0
        self._frame = None
        kept, numbers = state.kept, frames_of(mark)
        written = numbers.get(self.buffer, 0)
        why = "" if kept is None else await self._misfit(ledger, kept.frame, written)
        if kept is not None and not why:
            state.resume()
            self._frame, self._last = kept.frame, kept.frame.sequence
            self._written.extend(kept.written)
            self._covered = sum(one.slots for one in self._written)
        else:
            state.start_over()
        read = 0
        async with aclosing(read_frames(ledger, lane, mark, state, after=self._frame)) as frames:
            async for frame, slots in frames:
                self._add(slots, frame.sequence)
                self._frame = frame.witness
                state.reached(self.position)
                await wait_for_room(state, lane)
                read += 1
        await wait_for_room(state, lane)
        if why:
            _log.info(
                "%s: all %d frames of its changelog were read: its store cannot be used, because %s", lane, read, why
            )
        elif kept is not None:
            _log.info("%s: %d of the %d frames of its changelog were read: a store has the others", lane, read, written)
        elif read:
            _log.info("%s: all %d frames of its changelog were read", lane, read)

    async def _misfit(self, ledger: Ledger, frame: Witness, written: int) -> str:
        """Why an image up to this frame cannot be used, if it cannot."""
        if frame.number > written:
            return f"it has frame {frame.number}, which the ledger has not, or has no more"
        found = await _frame_at(ledger, self.buffer, frame.sequence)
        if found is None:
            return f"its last frame, {frame.number}, is no longer in the ledger"
        if found.witness != frame:
            return f"its last frame, {frame.number}, is another one in the ledger"
        return ""


async def has_frame(ledger: Ledger, lane: LaneId, frame: Witness) -> bool:
    """Whether this frame is in the changelog of a lane."""
    found = await _frame_at(ledger, changelog_buffer(lane), frame.sequence)
    return found is not None and found.witness == frame


async def _frame_at(ledger: Ledger, buffer: BufferId, sequence: int) -> StoredFrame | None:
    """The frame at a sequence, if it is still there."""
    found = await ledger.peek(buffer, sequence - 1, 1)
    return found[0] if found and found[0].sequence == sequence else None


def frames_of(mark: mark_pb2.Mark) -> dict[BufferId, int]:
    """How many frames the lane of a mark has written to each buffer."""
    return {BufferId(total.edge, total.partition): total.frames for total in mark.written}


async def read_changelog(ledger: Ledger, lane: LaneId, mark: mark_pb2.Mark, state: KeyedState) -> None:
    """Read the changelog of a lane up to its mark into `state`, which knows the states of the mark. Raises
    `DamageError` if it is not complete; for a caller that does not own the lane, the reason may be that it was trimmed
    meanwhile."""
    async for _ in read_frames(ledger, lane, mark, state):
        pass


async def read_frames(
    ledger: Ledger, lane: LaneId, mark: mark_pb2.Mark, state: KeyedState, *, after: Witness | None = None
) -> AsyncGenerator[tuple[StoredFrame, int]]:
    """Each frame of the changelog once it is in `state`, and how many slots begin in it. `after`: a frame that is in
    the state, with all before it. Otherwise as `read_changelog`. If a frame cannot be read and everything is in those
    that follow it, the state forgets the others, and these are next."""
    begin, written = 0, frames_of(mark).get(changelog_buffer(lane), 0)
    for left in reversed(range(READS_MAX)):
        try:
            async with aclosing(_frames(ledger, lane, mark, state, after, begin)) as frames:
                async for one in frames:
                    yield one
            break
        except DamageError:
            # Nothing guards a trim, because what it removes is needed by nobody, except a reader that is in the midst
            # of it: an earlier owner may still be there. And a broker that is killed while it removes frames may have
            # removed later ones, and have earlier ones again.
            found = await _whole_after(ledger, lane, written) if left else None
            if found is None:
                # A store that fits stays: it may be all that is left.
                raise
            state.start_over()
            after, begin = None, found
    state.loaded()


async def _frames(
    ledger: Ledger, lane: LaneId, mark: mark_pb2.Mark, state: KeyedState, after: Witness | None, begin: int
) -> AsyncGenerator[tuple[StoredFrame, int]]:
    """As `read_frames`, without another attempt. `begin`: a sequence up to which nothing is needed."""
    buffer, slots_read = changelog_buffer(lane), 0
    written, first = frames_of(mark).get(buffer, 0), 0
    number, sequence = (0, begin) if after is None else (after.number, after.sequence)
    last = await ledger.last_sequence(buffer) if written > number else 0
    if last > sequence:
        given_up = [gap for gap in given_up_of(mark, buffer.edge) if gap.sequence > begin]
        async with ledger.read(buffer, sequence, None if after is None else [after], given_up=given_up) as stored:
            async for frame in stored:
                number = frame.witness.number if frame.witness is not None else 0
                first = first or number
                slots = _load(ledger, frame, lane, state)
                slots_read += slots
                yield frame, slots
                if number >= written or frame.sequence >= last:
                    break
    if number != written or (after is None and first > 1 and slots_read < SLOTS):
        raise DamageError(
            codes.STATE_UNREADABLE,
            f"the state of lane {lane} is not complete: its changelog has frames {first} to {number} of {written}. "
            f"{REPAIR}",
        )


async def every_frame(ledger: Ledger, lane: LaneId, after: int = 0) -> AsyncGenerator[StoredFrame]:
    """The frames of the changelog of a lane that are there, from a sequence on, whether they follow each other or
    not."""
    while frames := await ledger.peek(changelog_buffer(lane), after, _PAGE_FRAMES):
        for frame in frames:
            after = frame.sequence
            yield frame


async def _whole_after(ledger: Ledger, lane: LaneId, written: int) -> int | None:
    """A sequence after which every slot of a changelog was written anew, and no frame is missing up to number
    `written`; None if there is none."""
    begin = number = slots = 0
    async with aclosing(every_frame(ledger, lane)) as frames:
        async for frame in frames:
            before, number = number, 0 if frame.witness is None else frame.witness.number
            if number != before + 1:
                begin, slots = frame.sequence - 1, 0
            try:
                slots += sum(step.slots for step in steps_of(ledger, lane, frame))
            except (ValueError, DamageError):
                begin, slots = frame.sequence, 0
            if number >= written:
                break
    return begin if number >= written and slots >= SLOTS else None


def steps_of(ledger: Ledger, lane: LaneId, frame: StoredFrame) -> Sequence[Step]:
    """The steps of a frame. Raises `ValueError` and `DamageError`."""
    return [decode_step(value) for value in decoded(ledger.vertex, changelog_buffer(lane), frame).values()]


def _load(ledger: Ledger, stored: StoredFrame, lane: LaneId, state: KeyedState) -> int:
    """Do what a frame says. Returns how many slots begin in it."""
    try:
        steps = steps_of(ledger, lane, stored)
    except ValueError as error:
        raise DamageError(
            codes.STATE_UNREADABLE,
            f"the state of lane {lane} cannot be read: at sequence {stored.sequence}, {error}. {REPAIR}",
        ) from error
    for step in steps:
        state.load(step)
    return sum(step.slots for step in steps)
