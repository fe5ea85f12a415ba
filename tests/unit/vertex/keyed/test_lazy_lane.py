"""A lane whose function reads of lazy states: one owner after another, with timers, results that are halved, and
counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import millstream_udf as udf
from tests.unit.vertex.keyed.keyed_stream import open_keyed_stream
from tests.unit.vertex.keyed.test_timer_lane import frame_of, owned, put_out, stored_state
from tests.unit.vertex.lane_rig import Rig, open_rig


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with open_rig() as opened:
        yield opened


@udf.map
class Noting:
    """Notes each value under its key, and puts out how many there are. A timer forgets the even ones."""

    notes = udf.map_state(str, int, lazy=True)
    count = udf.counter()

    def process(self, record: udf.Record) -> str:
        name, _, size = record.value.decode().partition(" ")
        self.notes[name] = self.count.add(1)
        udf.timer("forget", at=udf_second(100))
        return f"{name} {sum(1 for _ in self.notes)}".ljust(int(size or 0))

    def on_timer(self, timer: udf.Timer) -> str:
        for name, number in self.notes.items():
            if number % 2 == 0:
                self.notes.discard(name)
        return "left " + " ".join(self.notes)


def udf_second(second: int) -> int:
    return second * 1_000_000


@pytest.mark.guarantee("I7", "I12")
async def test_each_owner_reads_what_was_committed(rig: Rig) -> None:
    async with open_keyed_stream(Noting) as stream, asyncio.timeout(60):
        # The outputs of the first frame do not fit into one commit, so it is processed again in halves.
        large = 1_500_000
        rows = [("a", 1, f"n{number} {large}") for number in range(8)] + [("b", 2, "n0")]
        await rig.feed(frame_of(rows), watermark_us=udf_second(3))
        async with owned(rig, stream) as lane:
            running = asyncio.create_task(lane.run())
            while len(await put_out(rig)) < len(rows):  # noqa: ASYNC110 - a buffer has no event for it
                await asyncio.sleep(0)
            running.cancel()
            await asyncio.wait([running])
        await rig.feed(frame_of([("a", 4, "n0"), ("a", 5, "n8")]), ended=True)
        async with owned(rig, stream) as lane:
            await lane.run()
            # A page for each record, and for each timer two.
            assert lane.statistics().state_reads == 2 + 2 * 2
    shown = [(key, value.strip()) for key, value, _ in await put_out(rig)]
    assert shown == [
        *(("a", f"n{number} {number + 1}") for number in range(8)),
        ("b", "n0 1"),
        ("a", "n0 8"),
        ("a", "n8 9"),
        # n0 was noted a second time, as the ninth.
        ("a", "left n0 n2 n4 n6"),
        ("b", "left n0"),
    ]
    state = await stored_state(rig)
    notes = {(key, item) for key, number, item, _ in state.all() if state.stored[number].name == "notes"}
    assert notes == {(b"b", b'"n0"')} | {(b"a", b'"n%d"' % number) for number in (0, 2, 4, 6)}
