"""Calls a reduce function behind a gRPC address: the synchronous client for Spark's Python workers.

    parts ─► messages ─► sent, and kept until their groups are answered ══► function
                               ▲                x the stream breaks            │
                               └── kept messages, one group at a time          ▼
    answers, in the order of the groups ◄─────────────────────────────────── answer

Above it: Spark's tasks. Below it: `reduce_stream` and `reduce_parts`. `parts` is iterated in the caller's thread, so it
may read the input from Spark; a second thread receives. Groups are sent ahead of their answers as far as HTTP/2 allows.

When a stream breaks (the function's process was killed, or drains), groups without a complete answer are sent again,
one after the other, each when the previous one is answered. So the group that ends the process is known. Cases:
 1. The first group without an answer is the same at BREAKS_MAX breaks in a row: it has failed, and the others continue.
 2. A group cannot be sent again if more than KEPT_BYTES_MAX of it were sent, or more than PARTIAL_BYTES_MAX of its
    results were passed on: `FunctionLostError`. Spark runs the caller's task again, from frozen contents.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from google.protobuf.message import DecodeError

from millstream import codes
from millstream.errors import UdfError
from millstream.plurals import counted
from millstream.udf.checks import check_parts
from millstream.udf.native.reduce_parts import (
    PartEncoder,
    PartMessage,
    check_reduce_answer,
    check_reduce_groups,
    decode_answer,
    one_by_one,
)
from millstream.udf.native.reduce_stream import FunctionLostError, Stream, open_stream
from millstream.udf.native.service import fatal_error
from millstream.wire.reduce.v1 import engine_pb2
from millstream_udf.groups import Group, Part
from millstream_udf.reducing import Answer, Failure
from millstream_udf.wire.udf.v1 import udf_pb2

KEPT_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of unanswered messages that are kept so that they can be sent again. A slow function does not get more."""
PARTIAL_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of results that are held back for a group without a complete answer."""
_ANSWER = (2,)
"""Number of the answer's field in a response."""
BREAKS_MAX = 3
"""Breaks in a row that one group may cause."""


class UdfReduction:
    """The processing of groups by a function. `run` may be called once; see `reduce_over_grpc`."""

    def __init__(self, program: engine_pb2.UdfProgram) -> None:
        self._program = program
        self._where = f"{program.pipeline}/{program.vertex}: the function at {program.address}"
        self._encoder = PartEncoder()
        self._stream: Stream | None = None
        self._kept: deque[PartMessage] = deque()
        self._kept_bytes = 0
        self._answered = 0
        self._tail: list[Answer] = []
        """Results of the group that is partly answered."""
        self._tail_bytes = 0
        self._once: set[int] = set()
        """The group that cannot be sent again, if there is one."""
        self.breaks = 0
        """Streams that broke."""
        self._suspect = -1
        self._suspected = 0
        """Breaks in a row at which the suspect was the first group without an answer."""

    def run(self, parts: Iterable[Part]) -> Iterator[Answer]:
        """Sends the parts, and returns the answers."""
        try:
            for part in parts:
                for message in self._encoder.messages(part):
                    yield from self._send(message)
            while self._answered < self._encoder.count:
                stream = self._live()
                stream.half_close()
                yield from self._take(stream.wait())
                if stream.ended and self._answered < self._encoder.count:
                    yield from self._recover(stream)
        finally:
            if self._stream is not None:
                self._stream.close()

    def _send(self, message: PartMessage) -> Iterator[Answer]:
        yield from self._make_room(len(message.data))
        stream = self._live()
        if message.first < stream.first:
            # The message begins with the end of a group that was answered on an earlier stream.
            for rest in list(one_by_one((message,), stream.first)):
                yield from self._send(rest)
            return
        self._kept.append(message)
        self._kept_bytes += len(message.data)
        while not stream.offer(message.data):
            yield from self._take(stream.wait(for_room=True))
            if stream.ended:
                # This message is sent with the other kept messages.
                yield from self._recover(stream)
                return
        yield from self._take(stream.take())

    def _make_room(self, size: int) -> Iterator[Answer]:
        while self._kept and self._kept_bytes + size > KEPT_BYTES_MAX:
            last = self._kept[-1]
            if last.unfinished and self._answered == last.last:
                # Only the group that is being sent is left: it is too large to be kept.
                self._once = {last.last}
                self._kept.clear()
                self._kept_bytes = 0
                return
            stream = self._live()
            yield from self._take(stream.wait())
            if stream.ended:
                yield from self._recover(stream)

    def _recover(self, stream: Stream) -> Iterator[Answer]:
        """Sends the kept messages again, one group after the other, because the stream has ended."""
        while True:
            yield from self._judge(stream)
            stream.close()
            self._stream = None
            self._tail, self._tail_bytes = [], 0
            self._kept = deque(one_by_one(self._kept, self._answered))
            self._kept_bytes = sum(len(message.data) for message in self._kept)
            stream = self._live()
            yield from self._send_again(stream)
            if not stream.ended:
                return

    def _send_again(self, stream: Stream) -> Iterator[Answer]:
        for message in list(self._kept):
            while not stream.offer(message.data):
                yield from self._take(stream.wait(for_room=True))
                if stream.ended:
                    return
            while not message.unfinished and self._answered <= message.last:
                yield from self._take(stream.wait())
                if stream.ended:
                    return

    def _judge(self, stream: Stream) -> Iterator[Answer]:
        """Decides what a break means for the first group without an answer."""
        self.breaks += 1
        if (fatal := fatal_error(stream.code, stream.details, self._where)) is not None:
            raise fatal
        number = self._answered
        if number == self._encoder.count:
            return
        group = self._encoder.group(number)
        if number in self._once:
            raise FunctionLostError(
                f"{self._where} ended ({stream.why}) in the middle of {group}, which is too large to be sent again "
                "from here; run the task again"
            )
        self._suspected = self._suspected + 1 if number == self._suspect else 1
        self._suspect = number
        if self._suspected == BREAKS_MAX:
            error = f"the function's process ended {BREAKS_MAX} times while it processed this group ({stream.why})"
            self._tail = []
            yield Answer([group], [0], [], [Failure(0, error)])
            self._settle(1)

    def _live(self) -> Stream:
        """The open stream, or a new one that continues after the answered groups."""
        if self._stream is None:
            self._stream = open_stream(self._program, self._where, self._answered)
        return self._stream

    def _take(self, answers: Iterable[bytes]) -> Iterator[Answer]:
        for data in answers:
            try:
                check_parts(data, _ANSWER)
                sealed = udf_pb2.SealedReduceResponse.FromString(data).answer
                check_reduce_groups(sealed, self._encoder.count - self._answered)
            except (ValueError, DecodeError) as error:
                raise UdfError(
                    codes.FUNCTION_PROTOCOL, f"{self._where} returned an answer that does not fit: {error}"
                ) from error
            groups = [self._encoder.group(self._answered + index) for index in range(len(sealed.counts))]
            yield from self._hold(self._decoded(sealed, groups), len(data))

    def _decoded(self, sealed: udf_pb2.SealedReduceAnswer, groups: Sequence[Group]) -> Answer:
        """The decoded answer. If its columns do not fit, no part of it is used and its groups have failed."""
        try:
            check_reduce_answer(sealed)
        except ValueError as error:
            reason = f"{self._where} returned an answer for {counted(len(groups), 'group')} that does not fit: {error}"
            failures = [Failure(index, reason) for index in range(len(groups))]
            return Answer(list(groups), [0] * len(groups), [], failures, sealed.unfinished)
        return decode_answer(sealed, groups)

    def _hold(self, answer: Answer, size: int) -> Iterator[Answer]:
        """Passes on complete groups, and keeps the results of an incomplete one: if the stream breaks, they are sent
        again."""
        whole, tail = _split(answer)
        if whole.groups:
            yield from self._tail
            self._tail, self._tail_bytes = [], 0
            yield whole
            self._settle(len(whole.groups))
        if tail is not None:
            self._tail.append(tail)
            self._tail_bytes += size
            if self._tail_bytes > PARTIAL_BYTES_MAX:
                self._once = {self._answered}
                yield from self._tail
                self._tail, self._tail_bytes = [], 0

    def _settle(self, groups: int) -> None:
        self._answered += groups
        self._encoder.forget(self._answered)
        while self._kept and self._kept[0].last < self._answered:
            self._kept_bytes -= len(self._kept.popleft().data)


def reduce_over_grpc(program: engine_pb2.UdfProgram, parts: Iterable[Part]) -> Iterator[Answer]:
    """Reduces the groups of `parts` by the function at an address. Answers are in the order of the groups.

    Groups without records are not sent and have no answer. The results of a failed group do not count, even those in
    earlier answers. Raises `FunctionLostError` if the caller has to start again, `UdfError` if the function breaks the
    protocol or does not serve reduce, and any error that `parts` raises.
    """
    return UdfReduction(program).run(parts)


def _split(answer: Answer) -> tuple[Answer, Answer | None]:
    """The complete groups, and the results of an incomplete one."""
    if not answer.unfinished:
        return answer, None
    last = len(answer.groups) - 1
    first_result = len(answer.results) - answer.counts[-1]
    whole = Answer(
        answer.groups[:-1],
        answer.counts[:-1],
        answer.results[:first_result],
        [failure for failure in answer.failures if failure.index < last],
    )
    failures = [Failure(0, failure.error, failure.detail) for failure in answer.failures if failure.index == last]
    tail = Answer(answer.groups[-1:], answer.counts[-1:], answer.results[first_result:], failures, unfinished=True)
    return whole, tail
