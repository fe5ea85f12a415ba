"""What has happened in a simulated pipeline, as the broker and the world outside saw it: what the model judges.

Nothing is ever taken from it: buffers are trimmed, their history is not. What can be judged at once is: a commit of an
owner that was replaced, an account that does not balance, a watermark that goes back, input trimmed too early.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from millstream.account import Account, has_inputs, inputs_in
from millstream.clock import START_OF_TIME_US
from millstream.ledger.protocol import Commit, Receipt
from millstream.ledger.sharing import Sharing
from millstream.record import WINDOW_INPUT, BufferId, LaneId
from millstream.wire.ledger.v1 import mark_pb2
from millstream.wire.watermark.v1.ot_pb2 import OtEntry
from tests.simulation.silence import SourceJudge


class Violation(AssertionError):
    """An invariant does not hold."""


class Noticed(Exception):
    """A past that was replaced, as a process told it: the run ends there."""


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """A frame as it was committed."""

    sequence: int
    lane: LaneId
    data: bytes
    promised_us: int
    """What the lane had promised before, in its marks."""
    at_us: int


@dataclass(slots=True)
class LaneHistory:
    """One lane of a vertex."""

    epoch: int = 0
    promised_us: int = START_OF_TIME_US
    marks: dict[int, mark_pb2.Mark] = field(default_factory=dict)
    """By sequence."""
    mark: mark_pb2.Mark = field(default_factory=mark_pb2.Mark)
    """The last one."""
    published_us: int = START_OF_TIME_US
    ended: bool = False


class SetBack(Protocol):
    def __call__(self, *, published_too: bool) -> None: ...


class History:
    """All that was stored."""

    def __init__(self, now_s: Callable[[], float], now_us: Callable[[], int], *, tracing: bool) -> None:
        self._now_s = now_s
        self._now_us = now_us
        self._base_us = now_us()
        self._tracing = tracing
        self.trace: list[str] = []
        self.buffers: dict[BufferId, list[Written]] = defaultdict(list)
        self.lanes: dict[tuple[str, str], LaneHistory] = defaultdict(LaneHistory)
        """By vertex and key of the lane."""
        self.promises: dict[tuple[str, str, BufferId], list[tuple[int, int, int]]] = defaultdict(list)
        """Of a lane's entries: the last sequence in that buffer they do not speak of, when they were made, the
        watermark."""
        self.readers: dict[BufferId, tuple[str, str]] = {}
        """Who reads a buffer."""
        self.sources: dict[tuple[str, str], SourceJudge] = {}
        """By vertex and key of the lane."""
        self.on_commit: Callable[[Commit], None] = lambda _: None
        """Called with every commit that has landed."""
        self.commits = 0
        self.removed = 0
        """Commits that ledgers lost when they were set back."""
        self._delivered: dict[tuple[object, BufferId], list[Written]] = defaultdict(list)
        """To one life of a reader, by its link."""
        self._consumed: dict[tuple[str, str, BufferId], Written] = {}
        """The last frame that a lane has committed to have read, if only in part."""

    def say(self, text: str) -> None:
        if self._tracing:
            self.trace.append(f"{self._now_s():12.6f}  {text}")

    def save(self, vertex: str) -> SetBack:
        """Remember what the ledger of `vertex` holds. To call what is returned says that it was set back to that."""
        lanes = {name: replace(lane, marks=dict(lane.marks)) for name, lane in self.lanes.items() if name[0] == vertex}
        buffers = {buffer: list(written) for buffer, written in self.buffers.items()}
        promises = {name: len(steps) for name, steps in self.promises.items()}

        def set_back(*, published_too: bool) -> None:
            for name, lane in [(name, lane) for name, lane in self.lanes.items() if name[0] == vertex]:
                self.lanes[name] = before = lanes.get(name, LaneHistory())
                self.removed += len(lane.marks) - len(before.marks)
                if not published_too:
                    before.published_us, before.ended = lane.published_us, lane.ended
            for buffer, written in self.buffers.items():
                if any(one.lane.vertex == vertex for one in written):
                    self.buffers[buffer] = buffers.get(buffer, [])
            for promised in [name for name in self.promises if name[0] == vertex]:
                del self.promises[promised][promises.get(promised, 0) :]

        return set_back

    def delivered(self, link: object, buffer: BufferId, sequence: int) -> None:
        """A frame is handed to a process. What it, or the owner before it, read last has to be there still."""
        reader = self.readers.get(buffer)
        if reader is None:
            return
        read = self._delivered[link, buffer]
        last = read[-1] if read else self._consumed.get((*reader, buffer))
        stored = self.buffers[buffer]
        if self.removed and last is not None and last not in stored:
            raise Violation(f"I15: {reader} gets {sequence} of {buffer}, and what it read at {last.sequence} is gone")
        read.extend(one for one in stored if one.sequence == sequence)

    def _note_consumed(self, link: object, lane: LaneId, mark: mark_pb2.Mark) -> None:
        for buffer in [buffer for buffer, reader in self.readers.items() if reader == (lane.vertex, lane.key)]:
            done, index = _read_of(lane, mark, buffer)
            read = self._delivered.get((link, buffer), ())
            passed = [one for one in read if one.sequence <= done]
            begun = [one for one in read if one.sequence > done][:1] if index else []
            for one in [*passed, *begun][-1:]:
                self._consumed[lane.vertex, lane.key, buffer] = one

    def committed(self, commit: Commit, receipt: Receipt, link: object, sharing: Sharing) -> None:
        """A commit of the process behind `link` has landed, or was found to have landed before."""
        lane = self.lanes[commit.lane.vertex, commit.lane.key]
        mark = commit.mark
        if receipt.mark_sequence in lane.marks:
            if lane.marks[receipt.mark_sequence].commit_id != mark.commit_id:
                raise Violation(f"I1: {commit.lane}: two commits at sequence {receipt.mark_sequence}")
            return
        if self._tracing:
            self.say(f"commit {commit.lane} epoch {mark.epoch} at {receipt.mark_sequence}: {_told(commit)}")
        self.commits += 1
        if mark.epoch < lane.epoch:
            raise Violation(f"I1: {commit.lane}: a commit of epoch {mark.epoch} after epoch {lane.epoch} took over")
        if lane.mark.ended and commit.frames:
            raise Violation(f"I6: {commit.lane} commits frames after its end")
        if (difference := Account.from_message(mark.account).difference) != 0:
            raise Violation(f"I2: {commit.lane}: the account does not balance by {difference}: {mark.account}")
        self._check_forward(commit.lane, lane.mark, mark)
        for (buffer, data), sequence in zip(commit.frames, receipt.frame_sequences, strict=True):
            # One copy is what each of its readers gets.
            for reader in sharing.readers(sharing.stored(buffer)):
                written = self.buffers[reader]
                if written and written[-1].sequence >= sequence:
                    raise Violation(f"I6: {reader}: sequence {sequence} behind {written[-1].sequence}")
                written.append(Written(sequence, commit.lane, data, lane.promised_us, self._now_us()))
        self._judge_source(commit.lane, lane, mark)
        self._note_consumed(link, commit.lane, mark)
        lane.epoch = mark.epoch
        lane.marks[receipt.mark_sequence] = lane.mark = mark
        lane.promised_us = max(lane.promised_us, mark.watermark_us)
        self.on_commit(commit)

    def _judge_source(self, name: LaneId, lane: LaneHistory, mark: mark_pb2.Mark) -> None:
        judge = self.sources.get((name.vertex, name.key))
        # A ledger that was set back has its records committed again.
        if judge is not None and not self.removed:
            wrong = judge.committed(mark, max(lane.promised_us, lane.published_us))
            if wrong:
                raise Violation(wrong)

    def _check_forward(self, lane: LaneId, before: mark_pb2.Mark, mark: mark_pb2.Mark) -> None:
        for buffer in [buffer for buffer, reader in self.readers.items() if reader == (lane.vertex, lane.key)]:
            if _read_of(lane, mark, buffer) < (was := _read_of(lane, before, buffer)):
                raise Violation(f"I6: {lane}: its mark goes back from {was} in {buffer}")
        if mark.watermark_us < before.watermark_us and before.epoch:
            raise Violation(f"I5: {lane}: the watermark of its mark goes back")
        if mark.reduce.hand_over < before.reduce.hand_over:
            raise Violation(f"I3: {lane}: hand-over {mark.reduce.hand_over} after {before.reduce.hand_over}")
        if mark.epoch > before.epoch and mark.account != before.account:
            raise Violation(f"I2: {lane}: a takeover changes the account")

    def published(self, vertex: str, key: str, entry: OtEntry) -> None:
        """An entry was stored in the OT store."""
        lane = self.lanes[vertex, key]
        if self._tracing:
            self.say(f"publish {vertex}/{key} epoch {entry.epoch}: {entry.watermark_us}" + " ended" * entry.ended)
        if entry.watermark_us < lane.published_us:
            raise Violation(
                f"I5: {vertex}/{key}: its watermark goes back from {lane.published_us} to {entry.watermark_us}"
            )
        judge = self.sources.get((vertex, key))
        if judge is not None and not self.removed:
            wrong = judge.published(entry, max(lane.published_us, lane.promised_us), self._base_us)
            if wrong:
                raise Violation(wrong)
        for state in entry.outputs:
            # It may arrive after a commit that was made after it.
            steps = self.promises[vertex, key, BufferId(state.edge, state.partition)]
            steps.append((state.sequence, entry.published_us, entry.watermark_us))
        lane.published_us = entry.watermark_us
        lane.ended = lane.ended or entry.ended

    def promised_us(self, buffer: BufferId, written: Written) -> int:
        """What the lane had promised before it wrote this: nothing older than that should follow."""
        steps = self.promises[written.lane.vertex, written.lane.key, buffer]
        entries = (
            watermark_us
            for sequence, made_us, watermark_us in steps
            if sequence < written.sequence and made_us <= written.at_us
        )
        return max((written.promised_us, *entries))

    def trimmed(self, buffer: BufferId, through: int) -> None:
        """What is asked to be removed must come before its reader's mark."""
        if buffer.edge == WINDOW_INPUT or self.removed:
            # A lane's own, which it reads only where its log is lost; or a mark may have gone back meanwhile.
            return
        vertex, key = self.readers[buffer]
        mark = self.lanes[vertex, key].mark
        done, _ = _read_of(LaneId(vertex, key.rpartition(".")[0], buffer.partition), mark, buffer)
        if through > done:
            raise Violation(f"I1: {buffer} is trimmed through {through}, its reader's mark is at {done}")


def _read_of(lane: LaneId, mark: mark_pb2.Mark, buffer: BufferId) -> tuple[int, int]:
    """How far the mark of a lane says that it has read a buffer: up to a sequence, and records of the next frame."""
    if not has_inputs(lane, mark):
        return mark.sequence, mark.record_index
    return next(((one.sequence, one.record_index) for one in inputs_in(mark) if one.edge == buffer.edge), (0, 0))


def _told(commit: Commit) -> str:
    mark = commit.mark
    text = f"{len(commit.frames)} frames, mark {mark.sequence}+{mark.record_index} {mark.position!r}"
    if mark.HasField("reduce"):
        inputs = " ".join(f"{done.edge}:{done.sequence}" for done in mark.reduce.inputs)
        text += f" {inputs} hand-over {mark.reduce.hand_over}+{mark.reduce.result_records}"
    return text + " ended" * mark.ended
