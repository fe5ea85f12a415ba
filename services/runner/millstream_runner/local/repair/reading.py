"""Compares the contents of a buffer with what its reader has read. Pure, apart from the frames that are passed in.

    read before ─► frames after it, in order ─► total written
                │                             │
                └── frames that are missing, rewritten or unusable are a gap: of one lane, by number

Above it: the repair. Below it: what marks and frames say.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

from millstream.dead_letter import time_text
from millstream.frame import join_frames
from millstream.ledger.frames import name_for_people, readable
from millstream.ledger.packs import frames_in
from millstream.ledger.protocol import GivenUp, StoredFrame, Witness
from millstream.naming import Naming, Origin
from millstream.record import BufferId, LaneId
from millstream_runner.local.repair.finding import LostStretch


@dataclass(frozen=True, slots=True)
class ReadUpTo:
    """How far a lane has read one buffer."""

    lane: LaneId
    buffer: BufferId
    sequence: int
    """Sequence of the last frame that was read completely."""
    read: Sequence[Witness]
    """The last frame of each upstream lane, including one that was read in part."""
    given_up: Sequence[GivenUp]
    """What earlier repairs gave up."""

    @property
    def in_part(self) -> int | None:
        """Sequence of the frame that was read in part; None if there is none."""
        return next((item.sequence for item in self.read if item.sequence > self.sequence), None)


@dataclass(slots=True)
class Reading:
    """What is wrong between a reader and its buffer."""

    up_to: ReadUpTo
    faults: list[str] = field(default_factory=list)
    gaps: list[GivenUp] = field(default_factory=list)
    """The new gaps."""
    lost: list[LostStretch] = field(default_factory=list)
    unusable: list[StoredFrame] = field(default_factory=list)
    """Frames that exist but cannot be used."""
    waiting_records: int = 0
    """Records in usable frames after the position."""
    waiting_bytes: int = 0
    last_is_there: bool = True
    """Whether the newest frame that was read, completely or in part, still exists, and its rest can be read."""
    first_sequence: int | None = None
    """First sequence of the frames that were checked."""

    @property
    def is_incomplete(self) -> bool:
        """Whether frames are missing, no matter whether that was known before."""
        first = self.first_sequence
        known = [gap for gap in self.up_to.given_up if gap.sequence <= self.up_to.sequence]
        return bool(self.faults) or (first is not None and any(gap.sequence >= first for gap in known))


class Look:
    """Checks one buffer."""

    def __init__(self, writer: str, up_to: ReadUpTo, naming: Naming) -> None:
        """`writer`: the upstream vertex."""
        self._writer = writer
        self._naming = naming
        self._found = Reading(up_to)
        self._up_to = up_to
        self._numbers: dict[str, int] = {}
        """Number of the last frame of each lane, as far as it is known."""
        self._last: dict[str, StoredFrame] = {}
        self._seen: set[str] = set()
        """Lanes that have a frame after the position."""
        self._gaps = sorted(up_to.given_up, key=lambda gap: gap.sequence)

    async def behind_position(
        self,
        newest: StoredFrame | None,
        frames: AsyncIterator[StoredFrame],
        written: Mapping[str, int],
        last_sequence: int,
    ) -> Reading:
        """`newest`: what is stored at the position of the newest frame that was read. `written`: the total number of
        frames that each upstream lane has written. `last_sequence`: that of the stream."""
        after = self._up_to.sequence
        passed = {gap.lane: gap.sequence for gap in self._gaps if gap.sequence <= after}
        self._numbers.update({gap.lane: gap.through for gap in self._gaps if gap.sequence <= after})
        self._gaps = [gap for gap in self._gaps if gap.sequence > after]
        for item in self._up_to.read:
            if item.sequence > passed.get(item.lane, 0):
                # A frame that was read in part is read again.
                self._numbers[item.lane] = item.number - (item.sequence > after)
        for lane in written:
            self._numbers.setdefault(lane, 0)
        self._check_newest(newest, passed)
        await self._follow(frames)
        for lane, frames_written in written.items():
            self._pass_gaps(lane, last_sequence + 1)
            self._go_on(lane, frames_written, max(after, last_sequence), None)
        if not self._found.last_is_there:
            self._void_newest()
        return self._found

    async def before_position(self, frames: AsyncIterator[StoredFrame]) -> Reading:
        """Check kept input: the frames up to the position, beginning anywhere."""
        await self._follow(frames)
        return self._found

    async def _follow(self, frames: AsyncIterator[StoredFrame]) -> None:
        async for stored in frames:
            if self._found.first_sequence is None:
                self._found.first_sequence = stored.sequence
            try:
                frame = readable(stored)
            except ValueError as error:
                self._note_unusable(stored, str(error))
                continue
            assert stored.witness is not None
            lane, number = stored.witness.lane, stored.witness.number
            self._pass_gaps(lane, stored.sequence)
            place = stored.sequence - 1 if lane in self._seen else self._up_to.sequence
            self._go_on(lane, number - 1, place, stored)
            self._numbers[lane] = number
            self._seen.add(lane)
            self._last[lane] = stored
            self._found.waiting_records += frame.records
            self._found.waiting_bytes += len(stored.data)

    def _pass_gaps(self, lane: str, sequence: int) -> None:
        for gap in [gap for gap in self._gaps if gap.lane == lane and gap.sequence < sequence]:
            self._gaps.remove(gap)
            if self._numbers.get(lane) == gap.after:
                self._numbers[lane] = gap.through

    def _go_on(self, lane: str, through: int, place: int, before: StoredFrame | None) -> None:
        """The frames of a lane continue after number `through`."""
        after = self._numbers.get(lane)
        if after is None or after == through:
            return
        found = self._found
        found.gaps.append(GivenUp(lane, place, after, through))
        whose = f"of lane {self._writer}/{lane}"
        if through > after:
            what = f"{_frames_text(after + 1, through)} {whose} cannot be read"
        else:
            what = (
                f"{_frames_text(through + 1, after)} {whose} were read, and are written again, perhaps with other "
                "contents"
            )
        found.faults.append(what)
        previous = self._last.get(lane)
        found.lost.append(
            LostStretch(
                what,
                previous=self._record(previous, -1) if previous is not None else "",
                following=self._record(before, 0) if before is not None else "",
            )
        )

    def _check_newest(self, stored: StoredFrame | None, passed: Mapping[str, int]) -> None:
        newest = max(self._up_to.read, key=lambda item: item.sequence, default=None)
        if newest is None or newest.sequence <= passed.get(newest.lane, 0):
            return
        there = stored.witness if stored is not None and stored.sequence == newest.sequence else None
        if there == newest:
            assert stored is not None
            if newest.sequence <= self._up_to.sequence:
                self._last[newest.lane] = stored
            return
        self._found.last_is_there = False
        self._found.faults.append(
            f"frame {newest.number} of lane {self._writer}/{newest.lane} at sequence {newest.sequence}, the newest "
            + (
                "that was read, is missing"
                if there is None
                else f"that was read, is frame {there.number} of lane {there.lane} now, of another commit"
            )
        )

    def _void_newest(self) -> None:
        """The newest frame that was read need not exist any more, even if the numbers continue as they did."""
        newest = max(self._up_to.read, key=lambda item: item.sequence)
        if not any(gap.lane == newest.lane and gap.sequence <= self._up_to.sequence for gap in self._found.gaps):
            number = newest.number - (newest.sequence > self._up_to.sequence)
            self._found.gaps.append(GivenUp(newest.lane, self._up_to.sequence, number, number))

    def _note_unusable(self, stored: StoredFrame, why: str) -> None:
        which = f"{name_for_people(self._writer, stored)} at sequence {stored.sequence}"
        self._found.unusable.append(stored)
        if stored.sequence == self._up_to.in_part:
            self._found.last_is_there = False
        self._found.faults.append(f"{which} cannot be used: {why}")
        self._found.lost.append(LostStretch(which, records=self._salvaged(stored)))

    def _salvaged(self, stored: StoredFrame) -> list[str]:
        """What is known about the records of an unusable frame."""
        try:
            frame = join_frames(frames_in(stored.data))
            ids, times = frame.ids(), frame.event_times_us()
        except Exception:  # noqa: BLE001  # whatever its bytes are, they are not relied on
            return []
        names = ids if ids is not None and len(ids) == frame.records else range(frame.records)
        prefix = "record" if ids is not None else "record at index"
        return [f"{prefix} {name} (event time {time_text(time)})" for name, time in zip(names, times, strict=False)]

    def _record(self, stored: StoredFrame, index: int) -> str:
        """The first record of a frame, or its last."""
        try:
            frame = readable(stored)
        except ValueError:
            return ""
        lane, buffer = self._up_to.lane, self._up_to.buffer
        prefix = f"{lane.vertex}/{buffer.edge}/{buffer.partition}/{stored.sequence}/"
        return self._naming.of(frame, index % frame.records, Origin(prefix))


def _frames_text(first: int, last: int) -> str:
    return f"frame {first}" if first == last else f"frames {first} to {last}"
