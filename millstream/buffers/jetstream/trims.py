"""Determines the purges of a stream that trim its buffers, so that every lane keeps its mark.

    which subjects hold frames? ─► where is the last message of each lane? ─► one purge for each buffer, or for all, and
                                                                              one for each mark before that message

A mark that is a message of its own is replaced by the next one of that kind, but not by a mark in a frame. It would
remain the first message of the stream, and the server keeps each file with a note about a message that was removed
behind the first one.

Above it: `ledger.py`, which purges. Below it: the subjects and the stream's leader.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from millstream.buffers.jetstream.requests import message_headers
from millstream.ledger import batch
from millstream.ledger.subjects import buffer_filter, buffer_of, frames_filter, lane_filter_of, marks_filter
from millstream.record import BufferId

Info = Callable[[str], Awaitable[dict[str, Any]]]
"""Information about the stream, with the number of messages of every subject that matches a filter."""
Get = Callable[[Mapping[str, object]], Awaitable[dict[str, Any] | None]]
"""One message from the stream's leader."""


class SeenMarks:
    """Marks that the readers of a connection have seen with the frames that they read. They show where the mark of a
    lane is, at least, and a request to the server would be answered with the whole message that has it."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, int]] = {}
        self._losses = -1

    def note(self, subject: str, sequence: int, headers: Mapping[str, str], losses: int) -> None:
        """A message has arrived. `losses`: how often the connection had been lost; a stream cannot be set back while
        its server runs, so nothing that was seen before counts after that."""
        if losses != self._losses:
            self._seen.clear()
            self._losses = losses
        if batch.holds_mark(subject, headers):
            lane = lane_filter_of(subject)
            # Readers of several buffers are not equally far.
            if sequence > self._seen.get(lane, ("", 0))[1]:
                self._seen[lane] = subject, sequence

    def forget(self, stream: str) -> None:
        """A stream is deleted. Another one of this name begins again with the first sequence."""
        for lane in [lane for lane in self._seen if lane.startswith(f"{stream}.")]:
            del self._seen[lane]

    def from_on(self, sequence: int, lane: str, losses: int) -> tuple[str, int] | None:
        """Subject and sequence of a message with a mark of the lane, at `sequence` or later, if one was seen."""
        seen = self._seen.get(lane)
        return seen if seen is not None and losses == self._losses and seen[1] >= sequence else None


async def purges(
    stream: str, through: Mapping[BufferId, int], info: Info, get: Get, seen: SeenMarks, losses: Callable[[], int]
) -> AsyncIterator[tuple[str, int, int]]:
    """Subject filters, each with the sequence before which all matching messages are to be removed, and how often the
    connection had been lost: after another loss, the stream may be an older one, and the purge is void.

    There is one filter for all buffers if they are trimmed up to the same place: the server notes what is removed in
    the middle of a file, and soon writes the file again without it. Otherwise there is one for each buffer, or one for
    each lane that wrote to it if the mark of a lane has to stay. There is one for each mark that was followed by a
    frame with a mark.
    `seen` and `losses`: see `SeenMarks`; `losses` returns how often the connection has been lost until now.
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


async def _mark_of(lane: str, get: Get) -> tuple[str, int] | None:
    """Subject and sequence of the last message of a lane; None if that message is in the middle of a batch."""
    message = await get({"last_by_subj": lane})
    if message is None or not batch.holds_mark(message["subject"], message_headers(message)):
        return None
    return message["subject"], int(message["seq"])


def _first_that_stays(subject: str, through: int, mark: tuple[str, int] | None) -> int:
    """The sequence before which the frames that a lane wrote to a buffer are removed."""
    if mark is None:
        return 0
    its_subject, sequence = mark
    return min(through + 1, sequence) if its_subject == subject else through + 1
