"""What several workers print reaches the standard output of the run in whole pieces, or they know that it did not."""

from __future__ import annotations

import asyncio
import io
import os
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from millstream.descriptors import PIPE_CLOSED
from millstream.print_channel import CHANNEL_VARIABLE, PrintChannel, open_channel, print_through_channel
from millstream_runner.local.screen import Screen
from millstream_runner.local.standard_output import StandardOutput

LINE_BYTES = 100_000
"""More than a pipe takes at once."""


@contextmanager
def printing_to_a_pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The reading end of what is standard output meanwhile. Not a fixture: pytest replaces it before the test."""
    reader, writer = os.pipe()
    with monkeypatch.context() as patched, os.fdopen(writer, "w", encoding="utf-8") as out:
        patched.setattr(sys, "stdout", out)
        yield reader


def worker_output(channel: PrintChannel, monkeypatch: pytest.MonkeyPatch) -> io.TextIOBase:
    """`sys.stdout` of a worker with that channel."""
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", sys.stdout)
        # The worker has a descriptor of its own.
        patched.setenv(CHANNEL_VARIABLE, str(os.dup(channel.descriptor)))
        print_through_channel()
        assert CHANNEL_VARIABLE not in os.environ
        return sys.stdout  # type: ignore[return-value]


async def test_the_lines_of_several_workers_do_not_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    output = StandardOutput(Screen(io.StringIO()), lambda: None)
    with ExitStack() as stack:
        pipe = stack.enter_context(printing_to_a_pipe(monkeypatch))
        channels = [stack.enter_context(open_channel(output.print)) for _ in range(3)]
        workers = [stack.enter_context(worker_output(channel, monkeypatch)) for channel in channels]
        async with asyncio.TaskGroup() as group:
            serving = [group.create_task(channel.serve()) for channel in channels]
            reading = group.create_task(asyncio.to_thread(_lines, pipe, 30))
            printing = [
                group.create_task(asyncio.to_thread(_print, worker, letter))
                for worker, letter in zip(workers, "abc", strict=True)
            ]
            await asyncio.wait(printing)
            for one in printing:
                one.result()
            await reading
            for one in serving:
                one.cancel()
    assert reading.result() == {letter * LINE_BYTES: 10 for letter in "abc"}


def _print(worker: io.TextIOBase, letter: str) -> None:
    for _ in range(10):
        worker.write(letter * LINE_BYTES + "\n")


def _lines(reader: int, count: int) -> Counter[str]:
    with os.fdopen(reader, encoding="utf-8") as lines:
        return Counter(lines.readline().removesuffix("\n") for _ in range(count))


async def test_a_worker_gets_the_error_of_standard_output_and_so_does_every_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard = 0

    def hear() -> None:
        nonlocal heard
        heard += 1

    output = StandardOutput(Screen(io.StringIO()), hear)
    with ExitStack() as stack:
        os.close(stack.enter_context(printing_to_a_pipe(monkeypatch)))
        channel = stack.enter_context(open_channel(output.print))
        worker = stack.enter_context(worker_output(channel, monkeypatch))
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(channel.serve())
            for _ in range(2):
                with pytest.raises(BrokenPipeError):
                    await asyncio.to_thread(worker.write, "line\n")
            serving.cancel()
    assert heard == 1
    failure = output.failure
    assert failure is not None
    assert (failure.exit_code, failure.code, failure.shown) == (PIPE_CLOSED, None, True)


async def test_a_worker_whose_supervisor_is_gone_prints_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    own, theirs = socket.socketpair()
    channel = PrintChannel(own, theirs, lambda lines: asyncio.sleep(0))
    with worker_output(channel, monkeypatch) as worker:
        own.close()
        with theirs, pytest.raises(OSError, match=r"Broken pipe|has ended"):
            worker.write("line\n")
