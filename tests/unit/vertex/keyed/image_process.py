"""A process that changes a state on disk until it is killed: `python image_process.py DIRECTORY`.

Prints the number of each result once it is committed. What a result changes follows from its number.
"""

from __future__ import annotations

import asyncio
import random
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from millstream_vertex.keyed.disk import image as image_module
from tests.unit.vertex.keyed.images import Changes, Lane, Model, position


def changes_of(number: int) -> Changes:
    rng = random.Random(number)
    found = {}
    for _ in range(30):
        entry = (b"key-%d" % rng.randrange(3000), rng.randrange(2), b"i%d" % rng.randrange(3))
        if not entry[1]:
            entry = (entry[0], 0, b"")
        value = (b"%d " % number + rng.randbytes(rng.randrange(200)), rng.choice([0, 10**15 + rng.randrange(1000)]))
        found[entry] = None if rng.random() < 0.2 else value
    return list(found.items())


def model_of(results: int) -> Model:
    """The state after so many."""
    model: Model = {}
    for number in range(1, results + 1):
        for entry, value in changes_of(number):
            if value is None:
                model.pop(entry, None)
                continue
            before_us = model[entry][1] if entry in model and not entry[1] else 0
            model[entry] = (value[0], max(value[1], before_us) if value[1] else 0)
    return model


async def main(directory: Path) -> None:
    image_module.WRITTEN_FROM_BYTES = 20_000
    async with AsyncExitStack() as stack:
        lane = Lane(directory)
        await lane.open_kept(stack)
        number = 0 if lane.state.kept is None else lane.state.kept.frame.number
        while True:
            number += 1
            lane.apply(changes_of(number))
            lane.state.take_steps()
            lane.state.committed(1, lambda number=number: position(number))  # type: ignore[misc]
            print(number, flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
