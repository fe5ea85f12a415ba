"""Which marks a trim leaves where they are, if a reader has seen marks and the connection is lost meanwhile."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from millstream.buffers.jetstream.trims import Seen, purges
from millstream.ledger.batch import MARK
from millstream.ledger.subjects import marks_filter
from millstream.record import BufferId

STREAM = "p-in"
SUBJECT = "p-in.source.0.d.in-a.0"
BUFFER = BufferId("in-a", 0)


class Server:
    """A stream with messages 1 to 30 of one lane, the last of which holds its mark. It may be set back before it
    answers a request about itself."""

    def __init__(self, *, set_back_to: int | None = None) -> None:
        self.losses = 0
        self._set_back_to = set_back_to
        self._last = 30
        self.marks: dict[str, int] = {}

    async def info(self, wanted: str) -> dict[str, Any]:
        if wanted == marks_filter(STREAM):
            return {"state": {"subjects": self.marks}}
        if self._set_back_to is not None:
            self.losses += 1
            self._last = self._set_back_to
        return {"state": {"subjects": {SUBJECT: self._last}}}

    async def get(self, _: Mapping[str, object]) -> dict[str, Any]:
        headers = f"NATS/1.0\r\n{MARK}: x\r\n\r\n"
        return {"subject": SUBJECT, "seq": self._last, "hdrs": b64encode(headers.encode()).decode()}


async def trimmed(server: Server, seen: Seen) -> list[tuple[str, int, int]]:
    wanted = purges(STREAM, {BUFFER: 20}, server.info, server.get, seen, lambda: server.losses, refers=False)
    return [one async for one in wanted]


@pytest.mark.guarantee("I1", "I15")
@pytest.mark.parametrize(("set_back_to", "first"), [(None, 21), (15, 15)])
async def test_a_mark_that_was_seen_before_the_stream_was_set_back_does_not_count(
    set_back_to: int | None, first: int
) -> None:
    server, seen = Server(set_back_to=set_back_to), Seen()
    seen.note(SUBJECT, 25, {MARK: "x"}, server.losses)
    ((_, found, _),) = await trimmed(server, seen)
    assert found == first


@pytest.mark.guarantee("I1")
async def test_only_a_mark_that_a_frame_has_replaced_is_removed() -> None:
    server = Server()
    own, other = "p-in.source.0.p", "p-in.source.1.p"
    server.marks = {own: 1, other: 1}
    frames, mark = await trimmed(server, Seen())
    assert frames == ("p-in.*.*.d.in-a.0", 21, 0)
    # Before the frame that has the mark of this lane. Nothing is known of the other lane.
    assert mark == (own, 30, 0)

    async def get(_: Mapping[str, object]) -> dict[str, Any]:
        return {"subject": own, "seq": 31}

    wanted = purges(STREAM, {BUFFER: 20}, server.info, get, Seen(), lambda: server.losses, refers=False)
    assert [subject async for subject, _, _ in wanted] == ["p-in.*.*.d.in-a.0"]


@pytest.mark.guarantee("I1", "I8")
@pytest.mark.parametrize(
    ("through", "stored", "in_a_frame", "filters"),
    [
        ((20, 20), 2, 0, {"p-in.*.*.d.>": 21}),
        # Not up to the same place.
        ((20, 19), 2, 0, {"p-in.*.*.d.in-a.0": 21, "p-in.*.*.d.in-a.1": 20}),
        # The reader of another buffer is in another process.
        ((20, 20), 3, 0, {"p-in.*.*.d.in-a.0": 21, "p-in.*.*.d.in-a.1": 21}),
        ((20,), 2, 0, {"p-in.*.*.d.in-a.0": 21}),
        # A frame that has the mark of its lane stays.
        ((30, 30), 2, 25, {"p-in.source.0.d.in-a.0": 31, "p-in.source.1.d.in-a.0": 25, "p-in.*.*.d.in-a.1": 31}),
    ],
)
async def test_buffers_are_purged_at_once_if_that_removes_nothing_else(
    through: tuple[int, ...], stored: int, in_a_frame: int, filters: dict[str, int]
) -> None:
    """Two lanes have written into `stored` buffers. `in_a_frame`: a frame with the last mark of the second one."""
    buffers = [BufferId("in-a", partition) for partition in range(len(through))]
    subjects = [f"p-in.source.{lane}.d.in-a.{partition}" for lane in (0, 1) for partition in range(stored)]

    async def info(wanted: str) -> dict[str, Any]:
        read = [subject for subject in subjects if wanted == "p-in.*.*.d.>" or subject.endswith(wanted[-1])]
        return {"state": {"subjects": {} if wanted == marks_filter(STREAM) else dict.fromkeys(read, 9)}}

    seen = Seen()
    seen.note("p-in.source.0.p", 40, {}, 0)
    if not in_a_frame:
        seen.note("p-in.source.1.p", 41, {}, 0)
    last = the_frame(in_a_frame)
    wanted = purges(STREAM, dict(zip(buffers, through, strict=True)), info, last, seen, lambda: 0, refers=False)
    assert {subject: first async for subject, first, _ in wanted} == filters


def the_frame(sequence: int) -> Callable[[Mapping[str, object]], Awaitable[dict[str, Any]]]:
    """The answer to a request for the last message of a lane: a frame with its mark."""
    headers = b64encode(f"NATS/1.0\r\n{MARK}: x\r\n\r\n".encode()).decode()

    async def get(_: Mapping[str, object]) -> dict[str, Any]:
        return {"subject": "p-in.source.1.d.in-a.0", "seq": sequence, "hdrs": headers}

    return get


def test_of_the_marks_of_a_lane_the_newest_counts() -> None:
    seen = Seen()
    seen.note(SUBJECT, 25, {MARK: "x"}, 0)
    # A reader of another buffer is not so far.
    seen.note("p-in.source.0.d.in-b.0", 5, {MARK: "x"}, 0)
    lane = "p-in.source.0.>"
    assert seen.from_on(20, lane, 0) == (SUBJECT, 25)
    seen.forget("p-in2")
    assert seen.from_on(20, lane, 0) is not None
    seen.forget(STREAM)
    assert seen.from_on(20, lane, 0) is None
