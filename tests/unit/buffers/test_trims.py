"""Which marks a trim leaves where they are, if a reader has seen marks and the connection is lost meanwhile."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from millstream.buffers.jetstream.references import REFERENCE
from millstream.buffers.jetstream.trims import ReadFrames, purges
from millstream.ledger.batch import MARK
from millstream.ledger.subjects import apart_filter, marks_filter
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


async def trimmed(server: Server, seen: ReadFrames) -> list[tuple[str, int, int]]:
    wanted = purges(STREAM, {BUFFER: 20}, server.info, server.get, seen, lambda: server.losses, refers=False)
    return [one async for one in wanted]


@pytest.mark.guarantee("I1", "I15")
@pytest.mark.parametrize(("set_back_to", "first"), [(None, 21), (15, 15)])
async def test_a_mark_that_was_seen_before_the_stream_was_set_back_does_not_count(
    set_back_to: int | None, first: int
) -> None:
    server, seen = Server(set_back_to=set_back_to), ReadFrames()
    seen.note(SUBJECT, 25, {MARK: "x"}, server.losses)
    ((_, found, _),) = await trimmed(server, seen)
    assert found == first


@pytest.mark.guarantee("I1")
async def test_only_a_mark_that_a_frame_has_replaced_is_removed() -> None:
    server = Server()
    own, other = "p-in.source.0.p", "p-in.source.1.p"
    server.marks = {own: 1, other: 1}
    frames, mark = await trimmed(server, ReadFrames())
    assert frames == ("p-in.*.*.d.in-a.0", 21, 0)
    # Before the frame that has the mark of this lane. Nothing is known of the other lane.
    assert mark == (own, 30, 0)

    async def get(_: Mapping[str, object]) -> dict[str, Any]:
        return {"subject": own, "seq": 31}

    wanted = purges(STREAM, {BUFFER: 20}, server.info, get, ReadFrames(), lambda: server.losses, refers=False)
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

    seen = ReadFrames()
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
    seen = ReadFrames()
    seen.note(SUBJECT, 25, {MARK: "x"}, 0)
    # A reader of another buffer is not so far.
    seen.note("p-in.source.0.d.in-b.0", 5, {MARK: "x"}, 0)
    lane = "p-in.source.0.>"
    assert seen.from_on(20, lane, 0) == (SUBJECT, 25)
    seen.forget("p-in2")
    assert seen.from_on(20, lane, 0) is not None
    seen.forget(STREAM)
    assert seen.from_on(20, lane, 0) is None


class Apart:
    """A stream with frames of two lanes that are stored apart, for two buffers."""

    def __init__(self) -> None:
        self.found = {apart(lane, partition): 9 for lane in (0, 1) for partition in (0, 1)}
        self.asked = 0
        self.losses = 0
        self.frames: dict[str, list[tuple[int, str]]] = {}
        """The frames of a subject: sequences, each with its reference."""

    async def info(self, wanted: str) -> dict[str, Any]:
        if wanted != apart_filter(STREAM):
            return {"state": {}}
        self.asked += 1
        return {"state": {"subjects": dict(self.found)}}

    async def get(self, request: Mapping[str, Any]) -> dict[str, Any] | None:
        if "last_by_subj" in request:
            return {"subject": f"{request['last_by_subj'].removesuffix('.>')}.p", "seq": 9000}
        frames = self.frames.get(request["next_by_subj"], [])
        sequence, reference = next((one for one in frames if one[0] >= request["seq"]), (0, ""))
        if not sequence:
            return None
        headers = f"NATS/1.0\r\n{REFERENCE}: {reference}\r\n\r\n" if reference else ""
        return {"subject": request["next_by_subj"], "seq": sequence, "hdrs": b64encode(headers.encode()).decode()}

    async def trimmed(self, seen: ReadFrames, through: Mapping[BufferId, int]) -> list[tuple[str, int]]:
        wanted = purges(STREAM, through, self.info, self.get, seen, lambda: self.losses, refers=True)
        return [(subject, first) async for subject, first, _ in wanted]


BOTH = [BufferId("in-a", 0), BufferId("in-a", 1)]


def frame(lane: int, partition: int) -> str:
    return f"p-in.source.{lane}.d.in-a.{partition}"


def apart(lane: int, partition: int) -> str:
    return f"p-in.@.source.{lane}.in-a.{partition}"


def seen_references(*references: tuple[int, int, int, int]) -> ReadFrames:
    """Each with its lane, its partition, its sequence, and the sequence of the frame."""
    seen = ReadFrames()
    for lane, partition, sequence, to in references:
        seen.note(frame(lane, partition), sequence, {REFERENCE: f"{to} 300000"}, 0)
    return seen


@pytest.mark.guarantee("I1", "I8")
async def test_frames_apart_are_removed_up_to_the_last_that_was_passed() -> None:
    server = Apart()
    references = [(0, 0, 20, 11), (0, 1, 21, 12), (1, 0, 30, 15), (1, 1, 31, 16), (0, 0, 40, 35), (0, 1, 41, 36)]
    seen = seen_references(*references)
    # At once, if the readers of all of them are about equally far.
    assert await server.trimmed(seen, dict.fromkeys(BOTH, 35)) == [(apart_filter(STREAM), 12)]
    # By subject, if another process reads some of them.
    assert await server.trimmed(seen, {BOTH[0]: 39}) == [(apart(0, 0), 12), (apart(1, 0), 16)]
    assert await server.trimmed(seen, {BOTH[0]: 40}) == [(apart(0, 0), 36), (apart(1, 0), 16)]
    far = [(0, 0, 9020, 9011), (1, 0, 9030, 9015), (0, 1, 9021, 9012)]
    for lane, partition, sequence, to in far:
        seen.note(frame(lane, partition), sequence, {REFERENCE: f"{to} 300000"}, 0)
    wanted = await server.trimmed(seen, dict.fromkeys(BOTH, 10_000))
    assert sorted(wanted) == [(apart(0, 0), 9012), (apart(0, 1), 9013), (apart(1, 0), 9016), (apart(1, 1), 17)]


@pytest.mark.guarantee("I1")
async def test_references_that_were_seen_before_the_connection_was_lost_do_not_count() -> None:
    server, seen = Apart(), seen_references((0, 0, 20, 11), (0, 1, 21, 12), (1, 0, 30, 15), (1, 1, 31, 16))
    server.losses = 1
    server.frames = {
        # The one that was read last stays.
        frame(0, 0): [(20, "11 300000")],
        # It was not stored apart, and neither was the next one. The one that follows them may be.
        frame(0, 1): [(20, ""), (25, ""), (30, "21 300000")],
        frame(1, 0): [(20, ""), (30, "17 300000")],
        # The lane has written nothing since to this buffer. Its mark is at 9000.
        frame(1, 1): [(20, "")],
    }
    wanted = await server.trimmed(seen, dict.fromkeys(BOTH, 19))
    assert sorted(wanted) == [(apart(0, 0), 11), (apart(1, 0), 17), (apart(1, 1), 9000)]


@pytest.mark.guarantee("I1")
async def test_frames_that_are_stored_while_a_trim_decides_stay() -> None:
    # A commit, to a buffer that had none when the server was asked, and before the one whose reference is found.
    server, seen = Apart(), ReadFrames()
    server.found = {apart(0, 0): 1}
    server.frames = {frame(0, 0): [(56, "54 300000")], frame(0, 1): [(55, "53 300000")]}
    assert await server.trimmed(seen, {BOTH[0]: 50}) == [(apart_filter(STREAM), 51)]
    # Or the mark of such a commit is.
    server.frames = {}
    assert await server.trimmed(seen, {BOTH[0]: 50}) == [(apart(0, 0), 9000)]


@pytest.mark.guarantee("I8")
async def test_a_buffer_whose_reader_is_behind_does_not_keep_the_frames_of_others() -> None:
    server = Apart()
    references = [(0, 0, 20, 11), (0, 1, 60, 51), (1, 0, 70, 61), (1, 1, 80, 71)]
    wanted = await server.trimmed(seen_references(*references), dict.fromkeys(BOTH, 100))
    assert sorted(wanted) == [(apart(0, 0), 12), (apart(0, 1), 52), (apart(1, 0), 62), (apart(1, 1), 72)]


async def test_what_cannot_be_known_yet_is_asked_once() -> None:
    server, seen = Apart(), ReadFrames()
    server.found = {apart(0, 0): 1}
    server.frames = {frame(0, 0): [(20, ""), (25, ""), (30, "28 300000")]}
    for passed in (19, 20, 25):
        assert await server.trimmed(seen, {BOTH[0]: passed}) == ([(apart_filter(STREAM), 26)] if passed == 25 else [])


async def test_a_stream_without_frames_apart_is_asked_once() -> None:
    server, seen = Apart(), ReadFrames()
    found, server.found = server.found, {}
    for _ in range(2):
        assert await server.trimmed(seen, {BUFFER: 20}) == []
    assert server.asked == 1
    server.found = found
    seen.note(frame(0, 0), 20, {REFERENCE: "11 300000"}, 0)
    assert (apart(0, 0), 12) in await server.trimmed(seen, {BUFFER: 20})
    server.found = {}
    await server.trimmed(seen, {BUFFER: 20})
    asked = server.asked
    await server.trimmed(seen, {BUFFER: 20})
    assert server.asked == asked
    server.losses = 1
    await server.trimmed(seen, {BUFFER: 20})
    assert server.asked == asked + 1


async def test_a_reference_that_is_seen_while_the_stream_is_asked_is_not_forgotten() -> None:
    server, seen = Apart(), ReadFrames()
    server.found = {}

    async def info(wanted: str) -> dict[str, Any]:
        state = await server.info(wanted)
        if wanted == apart_filter(STREAM):
            seen.note(frame(0, 0), 20, {REFERENCE: "11 300000"}, 0)
        return state

    assert [one async for one in purges(STREAM, {BUFFER: 20}, info, server.get, seen, lambda: 0, refers=True)] == []
    assert not seen.none_apart(STREAM, 0)


@pytest.mark.slow
@pytest.mark.guarantee("I8")
def test_a_process_that_reads_and_does_not_trim_remembers_a_bounded_number_of_references() -> None:
    seen = seen_references(*((0, 0, 10 * number, 10 * number - 5) for number in range(1, 50_000)))
    assert len(seen._references[apart(0, 0)]) <= 1024
    # Less exactly, and never a frame that was not passed.
    for through in (9, 10, 5_000, 250_000, 499_990):
        assert seen.last_apart(apart(0, 0), through, 0) <= max(0, through - 5)
    assert seen.last_apart(apart(0, 0), 499_990, 0) == 499_985
    assert seen.last_apart(apart(0, 0), 499_990, 1) == 0


def test_what_was_seen_of_a_stream_that_is_deleted_is_forgotten() -> None:
    seen = seen_references((0, 0, 20, 11))
    seen.forget("p-in2")
    assert seen.last_apart(apart(0, 0), 20, 0) == 11
    seen.forget(STREAM)
    assert seen.last_apart(apart(0, 0), 20, 0) == 0
