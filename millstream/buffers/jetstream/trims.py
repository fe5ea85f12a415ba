"""Determines the purges of a stream that trim its buffers, so that every lane keeps its mark.

    which subjects hold frames? ─► where is the last message of each lane? ─► one purge for each buffer, or for all, and
                                                                              one for each mark before that message
    which hold frames apart? ─► which references to them were passed? ─► one purge for each, or for all

A lane stores the frames of a buffer in the order in which it refers to them. So if a reader has passed a reference, it
needs neither the frame there nor any earlier frame of this lane for its buffer, whether something refers to it or not.
Frames are removed after the references to them, so a reference to nothing is damage.

A mark that is a message of its own is replaced by the next one of that kind, but not by a mark in a frame. It would
remain the first message of the stream, and the server keeps each file with a note about a message that was removed
behind the first one.

Above it: `ledger.py`, which purges. Below it: the subjects and the stream's leader.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from operator import itemgetter
from typing import Any

from millstream.buffers.jetstream.references import reference_in
from millstream.buffers.jetstream.requests import Get, message_headers
from millstream.ledger import batch
from millstream.ledger.subjects import (
    apart_filter,
    apart_subject,
    buffer_filter,
    buffer_of,
    frame_subject_of,
    frames_filter,
    lane_filter_of,
    marks_filter,
)
from millstream.record import BufferId

Info = Callable[[str], Awaitable[dict[str, Any]]]
"""Information about the stream, with the number of messages of every subject that matches a filter."""
_REFERENCES_MAX = 1024
"""References to one buffer that are remembered. If there are more, trims are less exact."""
_COMMITS_TOGETHER = 2
"""Frames apart are removed up to the same place if that leaves those of about this many commits to all buffers. A
commit has up to 8 MiB."""
_TOGETHER_MESSAGES_MAX = 64
"""And if at most this many messages lie between them: there may be many buffers."""


class ReadFrames:
    """What the readers of a connection have seen with the frames that they read.

    Marks show where the mark of a lane is, at least, and a request to the server would be answered with the whole
    message that has it. References show which frames that are stored apart a reader has passed.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, int]] = {}
        self._references: dict[str, list[tuple[int, int]]] = {}
        """Sequences of references, each with the sequence of the frame, by the subject of these frames."""
        self._checked_through: dict[str, int] = {}
        """Up to where a reader has to come before a look at such a subject is worth it again; see `looked`."""
        self.references = 0
        """How many were seen."""
        self._none_apart: set[str] = set()
        """Streams in which no frames were stored apart when the server was asked, and no reference was seen since."""
        self._losses = -1

    def note(self, subject: str, sequence: int, headers: Mapping[str, str], losses: int) -> None:
        """A message has arrived. `losses`: how often the connection had been lost; a stream cannot be set back while
        its server runs, so nothing that was seen before counts after that."""
        self._begin(losses)
        if (reference := reference_in(headers)) is not None:
            self.references += 1
            self._none_apart.discard(subject.partition(".")[0])
            known = self._references.setdefault(apart_subject(subject), [])
            # Several readers may read a copy, and a reader may read again.
            if not known or sequence > known[-1][0]:
                known.append((sequence, reference.sequence))
            if len(known) > _REFERENCES_MAX:
                # A process that does not trim would remember all of them.
                del known[1:-1:2]
        if batch.holds_mark(subject, headers):
            lane = lane_filter_of(subject)
            # Readers of several buffers are not equally far.
            if sequence > self._seen.get(lane, ("", 0))[1]:
                self._seen[lane] = subject, sequence

    def forget(self, stream: str) -> None:
        """A stream is deleted. Another one of this name begins again with the first sequence."""
        for known in (self._seen, self._references, self._checked_through):
            for name in [name for name in known if name.startswith(f"{stream}.")]:
                del known[name]
        self._none_apart.discard(stream)

    def from_on(self, sequence: int, lane: str, losses: int) -> tuple[str, int] | None:
        """Subject and sequence of a message with a mark of the lane, at `sequence` or later, if one was seen."""
        seen = self._seen.get(lane)
        return seen if seen is not None and losses == self._losses and seen[1] >= sequence else None

    def last_apart(self, subject: str, through: int, losses: int) -> int:
        """Sequence of the frame under this subject to which the last reference up to `through` refers; 0 if no such
        reference was seen. Earlier ones are forgotten."""
        known = self._references.get(subject, []) if losses == self._losses else []
        passed = bisect_right(known, through, key=itemgetter(0))
        if not passed:
            return 0
        del known[: passed - 1]
        return known[0][1]

    def looked(self, subject: str, losses: int) -> int:
        """Up to where a reader has to come before it is worth asking which frames under this subject it needs."""
        return self._checked_through.get(subject, -1) if losses == self._losses else -1

    def look(self, subject: str, beyond: int, losses: int) -> None:
        """The server was asked for that, and what it answered does not say it before `beyond` is passed."""
        self._begin(losses)
        self._checked_through[subject] = beyond

    def none_apart(self, stream: str, losses: int) -> bool:
        """Whether a stream has no frames stored apart that could be removed."""
        return losses == self._losses and stream in self._none_apart

    def found_none_apart(self, stream: str, losses: int, references: int) -> None:
        """The stream had no such frames. `references`: how many were seen before the server was asked."""
        self._begin(losses)
        if references == self.references:
            self._none_apart.add(stream)

    def _begin(self, losses: int) -> None:
        if losses != self._losses:
            self._seen.clear()
            self._references.clear()
            self._checked_through.clear()
            self._none_apart.clear()
            self._losses = losses


async def purges(
    stream: str,
    through: Mapping[BufferId, int],
    info: Info,
    get: Get,
    seen: ReadFrames,
    losses: Callable[[], int],
    *,
    refers: bool,
) -> AsyncIterator[tuple[str, int, int]]:
    """Subject filters, each with the sequence before which all matching messages are to be removed, and how often the
    connection had been lost: after another loss, the stream may be an older one, and the purge is void.

    There is one filter for all buffers if they are trimmed up to the same place: the server notes what is removed in
    the middle of a file, and soon writes the file again without it. Otherwise there is one for each buffer, or one for
    each lane that wrote to it if the mark of a lane has to stay. There is one for each mark that was followed by a
    frame with a mark.
    `seen` and `losses`: see `ReadFrames`; `losses` returns how often the connection has been lost until now. `refers`:
    whether frames may be stored apart.
    """
    # The frames to be removed were stored before this request, so no lane is missing in the answer.
    wanted = frames_filter(stream) if len(through) > 1 else buffer_filter(stream, *through)
    found: dict[str, int] = (await info(wanted))["state"].get("subjects") or {}
    alone: dict[str, int] = (await info(marks_filter(stream)))["state"].get("subjects") or {}
    # Only now: the request is repeated after a loss, and the answer may be about a stream that was set back.
    lost = losses()
    subjects: dict[BufferId, list[str]] = {}
    for subject in found:
        subjects.setdefault(buffer_of(subject), []).append(subject)
    # A lane continues after what is now its last message, or after a later one. None of these is removed.
    lanes = {lane_filter_of(subject) for buffer in through for subject in subjects.get(buffer, ())}
    newest = max(through.values())
    marks = {lane: seen.from_on(newest, lane, lost) or await _mark_of(lane, get) for lane in sorted(lanes)}
    firsts = {
        buffer: {one: _first_that_stays(one, last, marks[lane_filter_of(one)]) for one in subjects[buffer]}
        for buffer, last in through.items()
        if buffer in subjects
    }
    different = {first for some in firsts.values() for first in some.values()}
    if len(subjects) == len(firsts) > 1 and different == {newest + 1}:
        yield frames_filter(stream), newest + 1, lost
        firsts = {}
    for buffer, some in firsts.items():
        if all(first == through[buffer] + 1 for first in some.values()):
            yield buffer_filter(stream, buffer), through[buffer] + 1, lost
        else:
            for subject, first in some.items():
                yield subject, first, lost
    for subject in alone:
        newest_of_lane = marks.get(lane_filter_of(subject))
        if newest_of_lane is not None and newest_of_lane[0] != subject:
            yield subject, newest_of_lane[1], lost
    if refers and not seen.none_apart(stream, lost):
        async for purge in _purges_apart(stream, through, info, get, seen, losses):
            yield purge


async def _purges_apart(
    stream: str, through: Mapping[BufferId, int], info: Info, get: Get, seen: ReadFrames, losses: Callable[[], int]
) -> AsyncIterator[tuple[str, int, int]]:
    """The purges of frames that are stored apart and whose references were passed."""
    references = seen.references
    found: dict[str, int] = (await info(apart_filter(stream)))["state"].get("subjects") or {}
    lost = losses()
    if not found:
        seen.found_none_apart(stream, lost, references)
        return
    firsts: dict[str, int] = {}
    for subject in found:
        if (passed := through.get(buffer_of(subject))) is None:
            continue
        if last := seen.last_apart(subject, passed, lost):
            firsts[subject] = last + 1
            continue
        # Read by an earlier process, or by this one before the connection was lost.
        if seen.looked(subject, lost) > passed:
            continue
        first, beyond = await _first_apart(subject, passed, get)
        if first:
            firsts[subject] = first
        else:
            seen.look(subject, beyond, lost)
    # Frames under a subject that was not found are behind everything that was passed before the server was asked.
    lowest = min([*firsts.values(), max(through.values()) + 1])
    apart_max = min(_COMMITS_TOGETHER * (2 * len(found) + 1), _TOGETHER_MESSAGES_MAX)
    if len(firsts) == len(found) and max(firsts.values()) - lowest <= apart_max:
        yield apart_filter(stream), lowest, lost
        return
    for subject, first in firsts.items():
        yield subject, first, lost


async def _mark_of(lane: str, get: Get) -> tuple[str, int] | None:
    """Subject and sequence of the last message of a lane; None if that message is in the middle of a batch."""
    message = await get({"last_by_subj": lane})
    if message is None or not batch.holds_mark(message["subject"], message_headers(message)):
        return None
    return message["subject"], int(message["seq"])


async def _first_apart(subject: str, passed: int, get: Get) -> tuple[int, int]:
    """The sequence before which a reader that has passed `passed` needs no frame under this subject; 0 if that is not
    known before it has passed the second one."""
    mark = await _mark_of(lane_filter_of(subject), get)
    after = passed
    # The first of these may be the newest frame that was read, which stays.
    for _ in range(2):
        message = await get({"seq": after + 1, "next_by_subj": frame_subject_of(subject)})
        if message is None:
            # Every commit up to the mark was passed.
            return (mark[1] if mark is not None else 0), after
        if (reference := reference_in(message_headers(message))) is not None:
            return reference.sequence, after
        after = int(message["seq"])
    return 0, after


def _first_that_stays(subject: str, through: int, mark: tuple[str, int] | None) -> int:
    """The sequence before which the frames that a lane wrote to a buffer are removed."""
    if mark is None:
        return 0
    its_subject, sequence = mark
    return min(through + 1, sequence) if its_subject == subject else through + 1
