"""Which requests go into a job: none is lost or overtaken, bounds hold, large jobs do not hold up small ones."""

from __future__ import annotations

import asyncio
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from millstream.wire.reduce.v1 import engine_pb2
from millstream_reduce.spark.executor import (
    JOB_BYTES_MAX,
    JOB_WINDOWS_MAX,
    LARGE_BYTES,
    Job,
    JobLane,
    Outcome,
    Request,
    RequestQueue,
    bytes_of,
)
from millstream_reduce.spark.session import JOBS_MAX
from millstream_reduce.values import Piece, Window, WindowContents, WindowTable

SMALL, LARGE = 1000, LARGE_BYTES + 1


def request(name: int, program: bytes, size: int, windows: int = 1) -> Request:
    message = engine_pb2.RunRequest(attempt=name)
    message.windows.count = windows
    # Nobody waits for it.
    return Request(message, program, size, cast("asyncio.Future[Outcome]", None))


def names(job: Job) -> list[int]:
    return [one.message.attempt for one in job.requests]


def waiting_of(*requests: tuple[int, bytes, int]) -> RequestQueue:
    """(name, program, bytes) of each."""
    waiting = RequestQueue()
    for name, program, size in requests:
        waiting.add(request(name, program, size))
    return waiting


def test_all_that_wait_for_a_program_go_into_one_job() -> None:
    waiting = waiting_of((1, b"a", SMALL), (2, b"b", SMALL), (3, b"a", SMALL))
    first = waiting.take(set())
    assert first is not None
    assert (first.lane, names(first)) == (JobLane(b"a", large=False), [1, 3])
    second = waiting.take({first.lane})
    assert second is not None
    assert names(second) == [2]
    assert len(waiting) == 0


def test_what_comes_while_a_job_of_its_program_runs_waits_for_the_next() -> None:
    waiting = waiting_of((1, b"a", SMALL))
    first = waiting.take(set())
    assert first is not None
    waiting.add(request(2, b"a", SMALL))
    waiting.add(request(3, b"a", SMALL))
    assert waiting.take({first.lane}) is None
    second = waiting.take(set())
    assert second is not None
    assert names(second) == [2, 3]


def test_a_large_job_runs_beside_small_ones_of_the_same_program_but_not_beside_a_large_one() -> None:
    waiting = waiting_of((1, b"a", LARGE), (2, b"b", LARGE), (3, b"a", SMALL))
    large = waiting.take(set())
    assert large is not None
    assert (large.lane.large, names(large)) == (True, [1])
    small = waiting.take({large.lane})
    assert small is not None
    assert names(small) == [3]
    assert waiting.take({large.lane}) is None
    assert waiting.take({large.lane, small.lane}) is None


def test_a_request_that_is_taken_back_is_in_no_job() -> None:
    waiting = RequestQueue()
    first, second = request(1, b"a", SMALL), request(2, b"a", SMALL)
    for one in (first, second):
        waiting.add(one)
    assert waiting.remove(first)
    assert not waiting.remove(first)
    batch = waiting.take(set())
    assert batch is not None
    assert names(batch) == [2]


requests = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"b", b"c"]),
        st.integers(1, JOB_WINDOWS_MAX + 1),
        st.sampled_from([0, 1, LARGE_BYTES, LARGE_BYTES + 1, JOB_BYTES_MAX // 2, JOB_BYTES_MAX, 2 * JOB_BYTES_MAX]),
    ),
    max_size=30,
)


@given(requests, st.lists(st.integers(0, JOBS_MAX - 1)))
def test_every_request_is_in_one_job_in_its_order_and_within_the_bounds(
    wanted: list[tuple[bytes, int, int]], ends: list[int]
) -> None:
    waiting = RequestQueue()
    for index, (program, windows, size) in enumerate(wanted):
        waiting.add(request(index, program, size, windows))
    done: dict[JobLane, list[int]] = {}
    running: list[JobLane] = []
    pauses = iter(ends)
    while len(waiting):
        batch = waiting.take(set(running))
        if batch is None:
            assert running, "something waits and nothing runs"
            running.pop(next(pauses, 0) % len(running))
            continue
        running.append(batch.lane)
        assert len(running) <= JOBS_MAX
        assert len(set(running)) == len(running)
        assert sum(lane.large for lane in running) <= 1
        windows, size = (
            sum(wanted[index][1] for index in names(batch)),
            sum(wanted[index][2] for index in names(batch)),
        )
        assert len(batch.requests) == 1 or (windows <= JOB_WINDOWS_MAX and size <= JOB_BYTES_MAX)
        done.setdefault(batch.lane, []).extend(names(batch))
    assert sorted(index for items in done.values() for index in items) == list(range(len(wanted)))
    for lane, items in done.items():
        assert items == sorted(items), lane


def test_an_entry_that_windows_share_counts_once() -> None:
    shared = WindowContents(Window(0, 1), (Piece(1, 0, 640, 0, 5), Piece(1, 640, 64, 0, 1)))
    other = WindowContents(Window(1, 2), (Piece(1, 0, 640, 5, 5), Piece(2, 0, 128, 0, 1)))
    request = engine_pb2.RunRequest(windows=WindowTable.of([shared, other]).message())
    assert bytes_of(request) == 640 + 64 + 128
    assert bytes_of(engine_pb2.RunRequest()) == 0
