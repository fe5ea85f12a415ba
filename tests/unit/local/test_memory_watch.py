"""When the next look at a process is, and what is said of one that takes too much."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from millstream_runner.local import memory_watch
from millstream_runner.local.memory_watch import GROWTH_BYTES_PER_S, LOOK_LATER_S, LOOK_S, denied, pause_s

GIB = 1 << 30


async def test_a_process_cannot_reach_its_limit_before_the_next_look() -> None:
    assert pause_s(GROWTH_BYTES_PER_S // 4) == 0.25
    assert pause_s(0) == pause_s(-1) == LOOK_S
    assert 0 < pause_s(1 << 40) <= LOOK_LATER_S


async def test_a_process_that_grows_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: Iterator[int | None] = iter([None, 2 * GIB, 2 * GIB + 1])
    monkeypatch.setattr(memory_watch, "pause_s", lambda left: 0.0)
    exceeded = await asyncio.wait_for(memory_watch.until_exceeded(1, 2 * GIB, lambda pid: next(sizes)), 5)
    assert exceeded == "took 2.0 GiB of memory, more than its limit of 2.0 GiB: it was killed"
    assert next(sizes, None) is None


@pytest.mark.parametrize(
    ("exit_code", "lines", "is_denied"),
    [
        (-6, "memory allocation of 137438953472 bytes failed", True),
        (-6, "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc", True),
        (-6, "an assertion failed", False),
        (-11, "std::bad_alloc", False),
        (1, "memory allocation of 1 bytes failed", False),
    ],
)
def test_a_library_that_gets_no_memory_says_so_when_it_ends_the_process(
    exit_code: int, lines: str, *, is_denied: bool
) -> None:
    assert bool(denied(exit_code, lines)) is is_denied
