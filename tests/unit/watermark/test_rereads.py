"""When a watcher reads its store again, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from itertools import pairwise
from typing import Any

from millstream.limits import OT_QUIET_AFTER_S, OT_QUIET_REREAD_INTERVAL_S, OT_REREAD_INTERVAL_S, OT_RETRY_INTERVAL_S
from millstream.watermark.rereads import Rereads
from tests.simulation.loop import Process, SimLoop

UNTIL_S = 40.0


def at(seconds: float) -> float:
    return round(seconds, 6)


def play(main: Coroutine[Any, Any, None]) -> None:
    loop = SimLoop(random.Random(1), lambda: 0.0)  # type: ignore[abstract]  # what asyncio does not use is missing
    loop.run(main, Process("watcher"), steps_max=10_000)


async def reads_until(rereads: Rereads, end_s: float) -> list[float]:
    """When a store is read that always answers."""
    loop, reads = asyncio.get_running_loop(), [0.0]
    while reads[-1] < end_s:
        await rereads.next()
        rereads.begin()
        reads.append(at(loop.time()))
    return reads


def pauses_between(reads: list[float]) -> list[float]:
    return [at(after - before) for before, after in pairwise(reads)]


def test_a_store_without_news_is_read_less_often_after_a_while() -> None:
    async def main() -> None:
        pauses = pauses_between(await reads_until(Rereads(), UNTIL_S))
        often = round(OT_QUIET_AFTER_S / OT_REREAD_INTERVAL_S)
        assert pauses[:often] == [OT_REREAD_INTERVAL_S] * often
        assert set(pauses[often:]) == {OT_QUIET_REREAD_INTERVAL_S}

    play(main())


def test_news_brings_the_next_read_within_a_second_wherever_it_comes() -> None:
    async def main() -> None:
        loop, rereads = asyncio.get_running_loop(), Rereads()
        reading = asyncio.ensure_future(reads_until(rereads, 10 * UNTIL_S))
        chance, heard = random.Random(2), []
        while loop.time() < 9 * UNTIL_S:
            await asyncio.sleep(chance.uniform(0.0, 3 * OT_QUIET_AFTER_S))
            heard.append(loop.time())
            rereads.on_news()
        reads = await reading
        for news_s in heard:
            assert any(news_s <= read_s <= news_s + OT_REREAD_INTERVAL_S for read_s in reads)
        assert max(pauses_between(reads)) <= OT_QUIET_REREAD_INTERVAL_S

    play(main())


def test_a_lost_connection_ends_either_pause() -> None:
    async def main() -> None:
        loop, rereads = asyncio.get_running_loop(), Rereads()
        for lost_s in (0.5, UNTIL_S + 1.0):
            reading = asyncio.ensure_future(reads_until(rereads, lost_s))
            await asyncio.sleep(lost_s - loop.time())
            rereads.on_loss()
            assert (await reading)[-1] == at(lost_s)

    play(main())


def test_a_loss_that_made_a_read_fail_is_no_reason_to_try_at_once() -> None:
    async def main() -> None:
        loop, rereads = asyncio.get_running_loop(), Rereads()
        rereads.begin()
        rereads.on_loss()
        await rereads.retry()
        assert at(loop.time()) == OT_RETRY_INTERVAL_S
        # One during a read that succeeded has to be read again.
        rereads.begin()
        rereads.on_loss()
        await rereads.next()
        assert at(loop.time()) == OT_RETRY_INTERVAL_S

    play(main())
