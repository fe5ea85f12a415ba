"""What is watched of states: each change once, whether a mark has it alone, a frame, or a repair wrote it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from millstream.background import beside
from millstream.compression import Compression
from millstream.ledger.memory import open_memory_broker
from millstream.udf.states import StateKind
from millstream.watermark.memory import OtMemory, open_memory_ot_stores
from millstream.wire.state.v1 import state_pb2
from millstream_runner.local import watching_states
from millstream_runner.local.moving_states import bounds_of
from millstream_runner.local.stored_states import state_of
from millstream_runner.local.view import PipelineView
from millstream_runner.local.watching_states import changed_entries
from millstream_vertex.keyed.owned import open_owned_state
from millstream_vertex.keyed.salvage import write_anew
from millstream_vertex.keyed.state import EntryChange
from millstream_vertex.settings import ledger_limits
from tests.support.ledgers import SettableClock
from tests.unit.local.test_moving_states import plan

if TYPE_CHECKING:
    from millstream.ledger.protocol import Ledger

TOTAL = state_pb2.StoredState(name="total", kind=StateKind.VALUE, codec="json", clock=1)
PLAN = plan(1)
(LANE,) = PLAN.lanes_of("a")


async def change(ledger: Ledger, **values: str) -> None:
    """As the owner of the lane, each in a commit of its own."""
    opening = open_owned_state(
        ledger, LANE, "test", bounds_of(PLAN, "a"), compression=Compression.NONE, clock=SettableClock()
    )
    async with opening as owned:
        number = owned.keyed.adopt(TOTAL)
        for key, value in values.items():
            await owned.apply([EntryChange(key.encode(), number, b"", value.encode())])


async def repair(ledger: Ledger, **values: str) -> None:
    """Write the changelog anew. `values`: what the repair has found in place of what was committed."""
    state = await state_of(ledger, LANE)
    assert state is not None
    for key, value in values.items():
        state.keyed.write(EntryChange(key.encode(), 0, b"", value.encode()))
    await write_anew(ledger, LANE, state.keyed, "test", compression=Compression.NONE, clock=SettableClock())


class Watch:
    """What a watch has seen, without changes of the key `go`."""

    def __init__(self) -> None:
        self.has_begun = False
        self._found: list[tuple[str, str]] = []
        self._more = asyncio.Event()

    async def follow(self, view: PipelineView) -> None:
        async for one in changed_entries(view, PLAN, "a"):
            self.has_begun = True
            if one.key != b"go":
                self._found.append((one.key.decode(), "" if one.stored is None else one.stored.value.decode()))
                self._more.set()

    async def next(self, count: int) -> list[tuple[str, str]]:
        """The next ones, of which there are so many."""
        async with asyncio.timeout(20):
            while len(self._found) < count:
                self._more.clear()
                await self._more.wait()
        found, self._found = self._found, []
        return found


async def test_each_change_is_seen_once_also_around_a_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching_states, "_LOOK_S", 0.001)
    others = [f"k{number}" for number in range(10)]
    async with open_memory_broker("p") as broker, open_memory_ot_stores(OtMemory(), "p") as stores:
        ledger, watch, number = await broker.ledger("a", ledger_limits(PLAN, "a")), Watch(), 0
        # Each more than a mark may have alone, so there are frames; what follows is in the mark.
        await change(ledger, **dict.fromkeys(others, "x" * 4000))
        async with beside(watch.follow(PipelineView(PLAN, broker, stores)), "watch"):
            while not watch.has_begun:
                number += 1
                await change(ledger, go=str(number))
            await change(ledger, a="1", b="1")
            await change(ledger, a="2")
            assert await watch.next(3) == [("a", "1"), ("b", "1"), ("a", "2")]
            # Its frame begins with slots, whose first entries are no changes that marks had.
            await repair(ledger, **dict.fromkeys(others, "0"))
            assert sorted(await watch.next(len(others))) == [(key, "0") for key in others]
            await change(ledger, b="3", a="y" * 4000)
            assert await watch.next(2) == [("b", "3"), ("a", "y" * 4000)]
