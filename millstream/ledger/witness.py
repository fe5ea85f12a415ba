"""Whether what a reader gets of a buffer follows what was read of it before. Pure; the same for both ledgers.

A position alone does not tell: a stream that lost its end and was written again holds other frames at the same
sequences. So the mark of a reader names the last frame it has read of each lane upstream, by its number and its commit.
The newest of them is not trimmed, and is looked for whenever reading begins or goes on.

    mark: in-tag.0 frame 17 (commit 3f…) at 208, in-tag.1 frame 9 at 205     ─► frame at 208 must be that one
    then, in order:  in-tag.1 frame 10 at 211, in-tag.0 frame 18 at 212, …   ─► no number may be missing

Above it: the two ledgers, and the lanes' marks. Below it: nothing.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping

from millstream import codes
from millstream.errors import DamageError
from millstream.ledger.protocol import GivenUp, Witness
from millstream.wire.ledger.v1 import mark_pb2

NAME = "Millstream-Frame"
"""Header of a frame: its `Witness.name`."""
_NAME = re.compile(r"(\S+) ([1-9][0-9]{0,18}) ([0-9a-f]{16})")
REPAIR = "Restore it, see the advice of `millstream repair`, or start the pipeline over"
"""The way on from damage."""


def name_of(lane: str, number: int, commit_id: bytes) -> str:
    """The header of a frame."""
    return Witness(lane, 0, number, _short(commit_id)).name


def witness_of(sequence: int, headers: Mapping[str, str]) -> Witness | None:
    """The name of the frame at that sequence; None for a message without one that can be read."""
    return witness_named(sequence, headers.get(NAME, ""))


def witness_named(sequence: int, name: str) -> Witness | None:
    """The frame at that sequence, from its `Witness.name`; None where that cannot be read."""
    match = _NAME.fullmatch(name)
    return Witness(match[1], sequence, int(match[2]), int(match[3], 16)) if match else None


def from_messages(read: Iterable[mark_pb2.Witness]) -> list[Witness]:
    return [Witness(item.lane, item.sequence, item.number, item.commit) for item in read]


def given_up_of(mark: mark_pb2.Mark, edge: str) -> list[GivenUp]:
    """What a repair gave up of what a lane with this mark reads."""
    return [GivenUp(item.lane, item.sequence, item.after, item.through) for item in mark.given_up if item.edge == edge]


def not_passed(given_up: Iterable[mark_pb2.GivenUp], mark: mark_pb2.Mark) -> list[mark_pb2.GivenUp]:
    """What of it still matters to a reader with this mark. To one that may read its input again, all."""
    if mark.HasField("reduce"):
        return list(given_up)
    read = {item.lane: item.sequence for item in mark.read}
    return [item for item in given_up if read.get(item.lane, 0) <= item.sequence]


def merged(before: Iterable[mark_pb2.Witness], read: Iterable[Witness]) -> list[mark_pb2.Witness]:
    """The last frame of each lane, when these were read after those before."""
    last = {item.lane: item for item in before}
    for witness in read:
        last[witness.lane] = mark_pb2.Witness(**witness._asdict())
    return [last[lane] for lane in sorted(last)]


def newest(read: Iterable[mark_pb2.Witness]) -> int:
    """Sequence of the newest frame that was read; 0 without any. It stays in the buffer, and what is after it."""
    return max((item.sequence for item in read), default=0)


class ReadCheck:
    """What one reader checks. Made with what was read before it; told every frame it hands out."""

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
        """Those that are read once more: all of a rebuilt log, or one frame that was read in part."""
        self._gaps: dict[str, deque[GivenUp]] = {}
        """Those ahead, by lane, in the order in which they come."""
        for gap in gaps:
            if gap.sequence > after:
                self._gaps.setdefault(gap.lane, deque()).append(gap)
        self._all_known = witnesses is not None and (after == 0 or bool(known) or bool(gaps))
        """Of a lane without a witness nothing was read: where that is not known, its first number may be any."""
        self._read_again = frozenset(item.lane for item in self._to_come.values())

    def stored(self, found: Witness | None) -> None:
        """What the buffer holds at `last`. Raises `DamageError` when it is not that."""
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
        """The next frame that is handed out. Raises `DamageError` when it does not follow."""
        if found is None:
            # Who decodes it will not use it.
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


class Unchecked:
    """The check of a reader that only looks: any frame may be gone before it arrives."""

    last: Witness | None = None

    def stored(self, found: Witness | None) -> None:
        """Nothing was read that must still be there."""

    def next(self, found: Witness | None, sequence: int) -> None:
        """Any frame may come next."""


def _is_void(read: Witness, gap: GivenUp, after: int) -> bool:
    """What was read of a lane before a repair gave it up need not be there any more."""
    return read.lane == gap.lane and read.sequence <= gap.sequence and (gap.sequence <= after or read.sequence > after)


def _short(commit_id: bytes) -> int:
    return int.from_bytes(commit_id[:8].ljust(8, b"\0"))
