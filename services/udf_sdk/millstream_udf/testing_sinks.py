"""Tests of sinks that keep positions, without a pipeline: a part of the test kit.

`OpenSink` makes the calls that a pipeline makes, one at a time. `check_sink` kills the sink between them, in separate
processes, and lets two owners write.

Above it: `testing`. Below it: `position_sinks`.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from millstream_udf.defining import define
from millstream_udf.definition import SINK, Definition
from millstream_udf.position_sinks import PositionSink
from millstream_udf.sources import frame_of
from millstream_udf.testing_objects import record_of
from millstream_udf.values import Fenced, Record
from millstream_udf.wire.udf.v1 import udf_pb2

LANE = "test/sink.in-sink.0"
_KILL_LIMIT_S = 60.0


class OpenSink:
    """A sink that keeps positions, opened for one lane; a context manager. `position` is the position that the target
    had when it was opened."""

    def __init__(self, sink: type, *, lane: str = LANE, epoch: int | None = None) -> None:
        """`epoch`: by default higher than in every earlier opening. Raises `Fenced` if the target has this epoch or a
        higher one, and `RuntimeError` with the traceback if the sink fails."""
        definition = position_sink_of(sink)
        self._loop = asyncio.new_event_loop()
        self._lane = PositionSink(definition, hello_of(definition))
        opening = udf_pb2.SinkOpen(lane=lane, epoch=time.time_ns() if epoch is None else epoch)
        try:
            self.position: bytes = self._ask(open=opening).position
        except BaseException:
            self._loop.close()
            raise
        self._calls = 0

    def __enter__(self) -> OpenSink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check(self, inputs: Iterable[Any]) -> list[udf_pb2.Outcome]:
        """The outcomes of the inputs that the sink refuses."""
        return list(self._ask(check=self._call(inputs)).outcomes)

    def write(self, inputs: Iterable[Any]) -> None:
        """Add records to the transaction, without checking them."""
        self._ask(call=self._call(inputs))

    def flush(self, position: bytes) -> None:
        """Commit the transaction. Raises `Fenced` if the target has another epoch of the lane."""
        self._ask(flush=udf_pb2.SinkFlush(position=position))

    def close(self) -> None:
        """Close the sink. Records that were not flushed are discarded."""
        if not self._loop.is_closed():
            self._loop.run_until_complete(self._lane.close())
            self._loop.close()

    def _call(self, inputs: Iterable[Any]) -> udf_pb2.SealedSinkCall:
        self._calls += 1
        return udf_pb2.SealedSinkCall(
            call_id=self._calls,
            frame=frame_of([record_of(item) for item in inputs]),
            id_prefix=f"test/in-test/0/{self._calls}/",
        )

    def _ask(self, **request: Any) -> Any:
        return self._loop.run_until_complete(_asked(self._lane, **request))


def position_sink_of(sink: Any) -> Definition:
    """The definition of a sink. Raises `TypeError` if it does not keep positions."""
    definition = define(sink, getattr(sink, "__name__", type(sink).__name__))
    if not definition.keeps_positions:
        raise TypeError(f"{definition.name} does not keep positions: a class with open, write and flush")
    return definition


def hello_of(definition: Definition) -> udf_pb2.Hello:
    """The message with which a pipeline introduces itself."""
    return udf_pb2.Hello(
        protocol_version=1, kind=SINK, pipeline="test", vertex=definition.name, lane=f"in-{definition.name}.0"
    )


async def _asked(lane: PositionSink, **request: Any) -> Any:
    """The contents of the answer to a request. Raises `Fenced`, or `RuntimeError` if the sink fails."""
    response = await lane.answer(udf_pb2.SealedSinkRequest(**request))
    name = response.WhichOneof("message")
    assert name is not None, "a sink answers every request"
    answer: Any = getattr(response, name)
    if fenced := getattr(answer, "fenced", ""):
        raise Fenced(fenced)
    if answer.error:
        raise RuntimeError(answer.error)
    return answer


async def write_once(
    definition: Definition, hello: udf_pb2.Hello, records: Sequence[Record[Any]], attempt: int
) -> udf_pb2.SinkAnswer:
    """Check records, and write those that are not refused, in one transaction. Raises the same errors as `OpenSink`."""
    lane = PositionSink(definition, hello)
    ask = partial(_asked, lane)

    def call(some: Sequence[Record[Any]]) -> udf_pb2.SealedSinkCall:
        return udf_pb2.SealedSinkCall(frame=frame_of(some), id_prefix="test/in-test/0/1/", attempt=attempt)

    try:
        await ask(open=udf_pb2.SinkOpen(lane=LANE, epoch=time.time_ns()))
        checked: udf_pb2.SinkAnswer = await ask(check=call(records))
        refused = {outcome.index for outcome in checked.outcomes}
        if fitting := [record for index, record in enumerate(records) if index not in refused]:
            await ask(call=call(fitting))
        await ask(flush=udf_pb2.SinkFlush(position=b"test"))
        return checked
    finally:
        await lane.close()


def check_sink(sink: type, inputs: Sequence[Any], count: Callable[[], int]) -> None:
    """Write `inputs` in several ways. After each, check that the target has each of them as often as it was flushed,
    and the position of the last flush. Raises an `AssertionError` that says what the sink does wrong.

    `sink` writes to an empty target, and does not refuse any of the inputs; `count` returns the number of records
    in the target. The test kills some processes, which import the module of `sink`. So they must know the target, too,
    for example from the environment.
    """
    number = len(inputs)
    with OpenSink(sink) as first:
        _check(first.position == b"", f"open returned {first.position!r}, though the target was empty: return None")
        first.write(inputs)
        first.flush(b"first")
    _check_target(sink, count, number, b"first", "a flush")
    with OpenSink(sink) as discarded:
        discarded.write(inputs)
    _check_target(sink, count, number, b"first", "a write without a flush: discard it in close, or when it is opened")
    _killed(sink, inputs, None)
    _check_target(sink, count, number, b"first", "a kill between write and flush: commit only in flush")
    _killed(sink, inputs, b"second")
    _check_target(sink, count, 2 * number, b"second", "a kill after flush: commit before flush returns")
    now = time.time_ns()
    with OpenSink(sink, epoch=now) as old, OpenSink(sink, epoch=now + 1) as new:
        what = "an owner wrote after a newer one had opened the lane: in flush, raise Fenced if the epoch is another"
        _check(_is_fenced(lambda: _write(old, inputs, b"old")), what)
        _check(count() == 2 * number, what)
        _write(new, inputs, b"third")
    _check_target(sink, count, 3 * number, b"third", "two owners: only the newer one writes")
    for epoch in (now, now + 1):
        what = (
            "the lane was opened with an epoch that is not new: in open, raise Fenced if the target has it or a higher"
        )
        _check(_is_fenced(lambda epoch=epoch: OpenSink(sink, epoch=epoch).close()), what)  # type: ignore[misc]
    with OpenSink(sink, lane=f"{LANE}.other") as other:
        _check(other.position == b"", "open returned the position of another lane: store it by lane.name")


def _write(sink: OpenSink, inputs: Sequence[Any], position: bytes) -> None:
    sink.write(inputs)
    sink.flush(position)


def _check_target(sink: type, count: Callable[[], int], expected: int, position: bytes, when: str) -> None:
    found = count()
    _check(found == expected, f"after {when}: the target has {found} records instead of {expected}")
    with OpenSink(sink) as opened:
        found_position = opened.position
    _check(found_position == position, f"after {when}: open returned {found_position!r} instead of {position!r}")


def _is_fenced(call: Callable[[], object]) -> bool:
    try:
        call()
    except Fenced:
        return True
    return False


def _check(is_true: bool, what: str) -> None:  # as `assert`
    if not is_true:
        raise AssertionError(what)


def _killed(sink: type, inputs: Sequence[Any], position: bytes | None) -> None:
    """Run a process that writes, flushes if there is a position, and dies."""
    process = multiprocessing.get_context("spawn").Process(target=_write_and_die, args=(sink, inputs, position))
    process.start()
    process.join(_KILL_LIMIT_S)
    if process.is_alive():
        process.kill()
        process.join()
        raise AssertionError(f"a process that writes {len(inputs)} records did not end within {_KILL_LIMIT_S:g} s")
    _check(process.exitcode == -signal.SIGKILL, "the sink failed in another process; its error is above")


def _write_and_die(sink: type, inputs: Sequence[Any], position: bytes | None) -> None:
    opened = OpenSink(sink)
    opened.write(inputs)
    if position is not None:
        opened.flush(position)
    os.kill(os.getpid(), signal.SIGKILL)
