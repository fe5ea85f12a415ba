"""What can be read of a damaged changelog, and which slots that leaves in doubt; and a changelog that is written anew.

    frames ─► those that can be read ─► state
        └───► those that are lost ─► every slot that was not written anew after the last of them is in doubt
    state ─► all slots ─► COMMITs of the lane ─► what lies before them is trimmed

A slot that was written anew has all entries that its keys had then. So a lost frame affects only slots that were not
written anew after it: their keys may be missing, have come back, or have older values.

Above it: the repair. Below it: the changelog, and the state of the lane.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from millstream.clock import Clock
from millstream.compression import Compression
from millstream.errors import DamageError
from millstream.ledger.protocol import Ledger, Witness
from millstream.limits import FRAME_BYTES_MAX
from millstream.record import LaneId
from millstream.wire.ledger.v1 import mark_pb2
from millstream_vertex.keyed.changelog import Changelog, changelog_buffer, every_frame, frames_of, steps_of
from millstream_vertex.keyed.committing import commit_in_time, committer_to
from millstream_vertex.keyed.image import SLOTS
from millstream_vertex.keyed.state import KeyedState
from millstream_vertex.keyed.steps import Step
from millstream_vertex.trimming import Trimmer
from millstream_writer.committer import Unit

_NEVER = -1


@dataclass(slots=True)
class Salvage:
    """What was found."""

    written: int
    """Number of the last frame of the changelog."""
    lost: list[str] = field(default_factory=list)
    """The frames that are lost, for people."""
    in_doubt: Sequence[int] = ()
    """The slots whose entries may be others."""

    @property
    def is_damaged(self) -> bool:
        """Whether the lane cannot read it."""
        return bool(self.lost)


class _Slots:
    """When each slot was written anew, counted in frames, and when the last frame was lost."""

    def __init__(self, *, known: bool) -> None:
        """`known`: whether what is in each slot is known before the first frame."""
        self._anew = [0 if known else _NEVER] * SLOTS
        self._lost = _NEVER
        self._now = 0

    def read(self, steps: Sequence[Step]) -> None:
        self._now += 1
        for step in steps:
            self._anew[step.first_slot : step.first_slot + step.slots] = [self._now] * step.slots

    def lose(self) -> None:
        self._now += 1
        self._lost = self._now

    def in_doubt(self) -> list[int]:
        return [slot for slot, anew in enumerate(self._anew) if anew == _NEVER or anew < self._lost]


async def salvage(
    ledger: Ledger, lane: LaneId, mark: mark_pb2.Mark, state: KeyedState, *, after: Witness | None = None
) -> Salvage:
    """Read what can be read of the changelog of a lane up to its mark into `state`, which knows the states of the mark.
    `after`: a frame that is in the state, with all before it."""
    found = Salvage(frames_of(mark).get(changelog_buffer(lane), 0))
    number, sequence = (None, 0) if after is None else (after.number, after.sequence)
    slots = _Slots(known=after is not None)
    async with aclosing(every_frame(ledger, lane, sequence)) as frames:
        async for frame in frames:
            if frame.witness is None:
                found.lost.append(f"the frame at sequence {frame.sequence}, whose name cannot be read")
                slots.lose()
                continue
            if number is None and frame.witness.number == 1:
                slots = _Slots(known=True)
            elif number is not None and frame.witness.number != number + 1:
                found.lost.append(_frames_text(number + 1, frame.witness.number - 1))
                slots.lose()
            number = frame.witness.number
            try:
                steps = steps_of(ledger, lane, frame)
                for step in steps:
                    state.load(step)
            except (ValueError, DamageError) as error:
                found.lost.append(f"{_frames_text(number, number)}: {str(error).partition('. ')[0]}")
                slots.lose()
            else:
                slots.read(steps)
    if (number or 0) < found.written:
        found.lost.append(_frames_text((number or 0) + 1, found.written))
        slots.lose()
    state.loaded()
    found.in_doubt = slots.in_doubt() if found.written else ()
    if not found.in_doubt:
        # A lane reads what follows the last of them.
        found.lost.clear()
    elif not found.lost:
        found.lost.append("frames before the first one, which is not the first that was written")
    return found


def _frames_text(first: int, last: int) -> str:
    return f"frame {first}" if first == last else f"frames {first} to {last}"


def slots_text(slots: Sequence[int]) -> str:
    """Slots for people, as ranges."""
    if len(slots) == SLOTS:
        return "all slots"
    ranges: list[list[int]] = []
    for slot in slots:
        if ranges and slot == ranges[-1][1] + 1:
            ranges[-1][1] = slot
        else:
            ranges.append([slot, slot])
    return "slots " + ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in ranges)


async def write_anew(
    ledger: Ledger, lane: LaneId, state: KeyedState, owner: str, *, compression: Compression, clock: Clock
) -> int:
    """Write the whole state of a lane into its changelog, as the owner of the lane, and remove what was there before.
    Returns the bytes. Whoever is killed meanwhile leaves what was there. Raises `FencedError`, and
    `InfrastructureError` if the ledger has no room."""
    buffer, taken_over = changelog_buffer(lane), await ledger.take_over(lane, owner)
    committer = await committer_to(ledger, lane, taken_over, buffer, compression)
    changelog = Changelog(lane, Trimmer(ledger.trim, sharing=ledger.sharing), lambda: committer.mark)
    steps: list[tuple[bytes, int]] = []
    size = total = 0

    async def commit() -> None:
        frames = changelog.frames(steps, clock.now_us())
        unit = Unit(frames=frames, size=sum(frame.size for _, frame in frames), pieces=0)
        unit.changes.states = {lane.vertex: state.encoded_states}
        await commit_in_time(committer, lane, unit, "Make room, then repeat the repair")

    for data, slots in state.all_steps():
        steps.append((data, slots))
        size, total = size + len(data), total + len(data)
        if size >= FRAME_BYTES_MAX:
            await commit()
            steps, size = [], 0
    if steps:
        await commit()
    # Everything that is needed follows the takeover.
    await ledger.trim({buffer: taken_over.sequence})
    return total
