"""Checks that the frames a reader gets from a buffer follow those that it read before. Pure; the same for all ledgers.

A position alone is not enough: a stream that lost its end and was written again holds other frames at the same
sequences. So the mark of a reader names the last frame that it has read from each upstream lane, by number and commit.
The newest of these frames is not trimmed, and the reader checks for it whenever it starts or resumes reading.

    mark: in-tag.0 frame 17 (commit 3f…) at 208, in-tag.1 frame 9 at 205     ─► frame at 208 must be that one
    then, in order:  in-tag.1 frame 10 at 211, in-tag.0 frame 18 at 212, …   ─► no number may be missing

Above it: the ledgers, and the lanes' marks. Below it: nothing.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping

from millstream import codes
from millstream.errors import REPAIR, DamageError
from millstream.ledger.protocol import GivenUp, Witness
from millstream.wire.ledger.v1 import mark_pb2

NAME = "Millstream-Frame"
"""Header of a frame that contains its `Witness.name`."""
_NAME = re.compile(r"(\S+) ([1-9][0-9]{0,18}) ([0-9a-f]{16})")


def name_of(lane: str, number: int, commit_id: bytes) -> str:
    """The value of a frame's header."""
    return Witness(lane, 0, number, _short(commit_id)).name


def witness_of(sequence: int, headers: Mapping[str, str]) -> Witness | None:
    """The name of the frame at that sequence; None for a message without a readable name."""
    return witness_named(sequence, headers.get(NAME, ""))


def witness_named(sequence: int, name: str) -> Witness | None:
    """The frame at that sequence, from its `Witness.name`; None if the name cannot be read."""
    match = _NAME.fullmatch(name)
    return Witness(match[1], sequence, int(match[2]), int(match[3], 16)) if match else None


def from_messages(read: Iterable[mark_pb2.Witness]) -> list[Witness]:
    return [Witness(item.lane, item.sequence, item.number, item.commit) for item in read]


def given_up_of(mark: mark_pb2.Mark, edge: str) -> list[GivenUp]:
    """The frames of this edge that a repair gave up, from the mark of the lane that reads them."""
    return [GivenUp(item.lane, item.sequence, item.after, item.through) for item in mark.given_up if item.edge == edge]


def not_passed(given_up: Iterable[mark_pb2.GivenUp], mark: mark_pb2.Mark) -> list[mark_pb2.GivenUp]:
    """The entries of `given_up` that a reader with this mark still needs. A reader that may read its input again needs
    all of them."""
    if mark.HasField("reduce"):
        return list(given_up)
    if mark.inputs:
        of_edges = {(done.edge, item.lane): item.sequence for done in mark.inputs for item in done.read}
        return [item for item in given_up if of_edges.get((item.edge, item.lane), 0) <= item.sequence]
    read = {item.lane: item.sequence for item in mark.read}
    return [item for item in given_up if read.get(item.lane, 0) <= item.sequence]


def merged(before: Iterable[mark_pb2.Witness], read: Iterable[Witness]) -> list[mark_pb2.Witness]:
    """The last frame of each lane, after the frames in `read` were read following those in `before`."""
    last = {item.lane: item for item in before}
    for witness in read:
        last[witness.lane] = mark_pb2.Witness(**witness._asdict())
    return [last[lane] for lane in sorted(last)]


def newest(read: Iterable[mark_pb2.Witness]) -> int:
    """Sequence of the newest frame that was read; 0 if there is none. That frame and all later ones stay in the
    buffer."""
    return max((item.sequence for item in read), default=0)


class ReadCheck:
    """The checks of one reader. It is created with what was read before, and checks every frame before it is used."""

    def __init__(
        self,
        stream: str,
        subject: str,
        after: int,
        witnesses: Iterable[Witness] | None,
        given_up: Iterable[GivenUp] = (),
    ) -> None:
        self._stream = stream
        self._subject = subject
        self._after = after
        gaps = sorted(given_up, key=lambda gap: gap.sequence)
        known = [item for item in witnesses or () if not any(_is_void(item, gap, after) for gap in gaps)]
        self.last: Witness | None = max(known, key=lambda item: item.sequence, default=None)
        """The newest frame that was read, which the buffer must hold."""
        self._numbers = {gap.lane: gap.through for gap in gaps if gap.sequence <= after}
        self._numbers.update((item.lane, item.number) for item in known if item.sequence <= after)
        self._to_come = {item.sequence: item for item in known if item.sequence > after}
        """Frames that will be read again: all frames of a rebuilt log, or one frame that was read in part."""
        self._gaps: dict[str, deque[GivenUp]] = {}
        """The gaps ahead, by lane, in stream order."""
        for gap in gaps:
            if gap.sequence > after:
                self._gaps.setdefault(gap.lane, deque()).append(gap)
        self._all_known = witnesses is not None and (after == 0 or bool(known) or bool(gaps))
        """Whether a lane without a witness is known to be unread. If not, its first frame may have any number."""
        self._read_again = frozenset(item.lane for item in self._to_come.values())

    def stored(self, found: Witness | None) -> None:
        """Check the frame that the buffer holds at the sequence of `last`. Raises `DamageError` if it is a different
        one."""
        if self.last is None or found == self.last:
            return
        there = f"frame {found.number} of lane {found.lane}, of another commit" if found else "no frame of this lane"
        if found is not None and (found.lane, found.number) != (self.last.lane, self.last.number):
            there = f"frame {found.number} of lane {found.lane}"
        raise DamageError(
            codes.LEDGER_CUT,
            f"{self._subject}: the last frame that was read, frame {self.last.number} of lane {self.last.lane} at "
            f"sequence {self.last.sequence}, no longer exists: {self._stream} holds {there} at that sequence. It "
            "lost its latest data or was rolled back, and may have been written again since; no later record was "
            f"used. {REPAIR}",
        )

    def next(self, found: Witness | None, sequence: int) -> None:
        """Check the next frame. Raises `DamageError` if it does not follow what was read."""
        if found is None:
            # The code that decodes the frame will refuse it.
            self._after = sequence
            return
        begins = self._all_known and found.lane not in self._read_again
        before = self._numbers.get(found.lane, 0 if begins else None)
        gaps = self._gaps.get(found.lane)
        while gaps and gaps[0].sequence < sequence:
            gap = gaps.popleft()
            if before == gap.after:
                before = gap.through
        expected = self._to_come.pop(sequence, None)
        if expected is not None and expected != found:
            self.last = expected
            self.stored(found)
        if expected is None and before is not None and found.number != before + 1:
            raise DamageError(
                codes.BUFFER_GAP,
                f"{self._subject}: frame {before} of lane {found.lane} is followed by frame {found.number}, at "
                f"sequence {sequence}: the data between sequences {self._after} and {sequence} of {self._stream} is "
                f"damaged. {REPAIR}",
            )
        self._numbers[found.lane] = found.number
        self._after = sequence
        if self.last is None or sequence > self.last.sequence:
            self.last = found


class ObserverCheck:
    """The check of a reader that only observes: any frame may be trimmed before it arrives."""

    last: Witness | None = None

    def stored(self, found: Witness | None) -> None:
        """Accept any frame: no frame that was read must still be stored."""

    def next(self, found: Witness | None, sequence: int) -> None:
        """Accept any frame."""


def _is_void(read: Witness, gap: GivenUp, after: int) -> bool:
    """Whether a repair gave up a frame that was read, so that it may be missing now."""
    return read.lane == gap.lane and read.sequence <= gap.sequence and (gap.sequence <= after or read.sequence > after)


def _short(commit_id: bytes) -> int:
    return int.from_bytes(commit_id[:8].ljust(8, b"\0"))
