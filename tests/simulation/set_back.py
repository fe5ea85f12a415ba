"""A ledger is again what it was some time ago, and its writers go on from there.

What they write then has sequences that others have read already. A reader has to notice by what it has read, before it
uses a record; a run ends where one does. One that has read nothing of what was lost goes on.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.simulation.faults import Fault

if TYPE_CHECKING:
    from tests.simulation.world import World


def with_set_backs(world: World) -> None:
    """Have ledgers set back beside whatever was drawn."""
    rng = random.Random(world.seed)
    if world.outside.way is not None:
        # What a function refused is kept from the mark on, and a mark that went back knows of less.
        world.outside.way.refuses = False
    more = [
        Fault(0.7 * rng.random() * world.span_s, "set-back", 0.0, (0.05 + 0.6 * rng.random()) * world.span_s)
        for _ in range(rng.choice((1, 1, 2)))
    ]
    world.follow(replace(world.plan, faults=tuple(sorted([*world.plan.faults, *more], key=lambda one: one.at_s))))


async def set_back(world: World, length_s: float) -> None:
    """Some ledger loses what it is given for so long from now."""
    vertex = world.rng.choice(world.stages.vertices).name
    bucket = world.ot._buckets.get((world.shape.name, vertex))
    if await world.broker.existing_ledger(vertex) is None or bucket is None:
        return
    if world.setting_back:
        # A copy that is older than one that is put back meanwhile would bring back what that one has lost.
        return
    world.setting_back = True
    restore, note = world.broker.save(vertex), world.history.save(vertex)
    entries, revisions = dict(bucket.entries), dict(bucket.revisions)
    await asyncio.sleep(length_s)
    world.setting_back = False
    if world.has_no_readers_left(vertex):
        # No lane is opened that could notice. The runner does, which compares marks before it starts anything.
        return
    # Who is alive goes on, or finds its broker changed when it begins.
    for life in [life for life in world.current.values() if not life.over.is_set() and not life.replaced]:
        if world.rng.random() < (0.9 if life.vertex == vertex else 0.5):
            world.loop.kill(life.process)
            life.over.set()
    world.history.say(f"the ledger of {vertex} is set back")
    restore()
    world.network.set_backs += 1
    otherwise_too = world.rng.random() < 0.5
    if otherwise_too:
        # Then the only trace of what was lost is what its readers have read.
        bucket.entries, bucket.revisions = entries, revisions
    note(published_too=otherwise_too)
    world.live_again(vertex)
    for target in world.outside.targets.values():
        target.delivered_again = True
