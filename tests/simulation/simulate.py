"""One seed from its beginning to its end."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from millstream.ledger import compression
from millstream_reduce.lane import units
from millstream_writer import committer
from tests.simulation.history import Violation
from tests.simulation.shapes import SHAPES, Shape
from tests.simulation.world import World


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a seed."""

    seed: int
    shape: str
    steps: int
    virtual_s: float
    commits: int
    faults: int
    violation: str
    """Empty: none."""
    noticed: str = ""
    """What was said of a ledger that was set back; empty: nothing, and the run went on to its end."""
    removed: int = 0
    """Commits that ledgers lost."""
    trace: list[str] = field(default_factory=list)


def simulate(
    seed: int, *, tracing: bool = False, adjust: Callable[[World], None] | None = None, shape: Shape | None = None
) -> Outcome:
    """Run one seed. Never raises for what it finds: see `Outcome.violation`. `adjust` may change what was drawn.

    `shape`: of the pipeline; by default the seed has one of `SHAPES`.
    """
    if shape is None:
        names = sorted(SHAPES)
        shape = SHAPES[names[seed % len(names)]]
    shared = Path("/dev/shm")
    directory = Path(tempfile.mkdtemp(prefix="simulation-", dir=shared if shared.is_dir() else None))
    logging.disable(logging.CRITICAL)
    world = World(seed, shape, directory, tracing=tracing)
    if adjust is not None:
        adjust(world)
    violation = ""
    unit_rows, units.UNIT_ROWS = units.UNIT_ROWS, world.unit_rows
    frame_records, committer.JOINED_RECORDS_MAX = committer.JOINED_RECORDS_MAX, world.frame_records
    bytes_min, compression.COMPRESSED_BYTES_MIN = compression.COMPRESSED_BYTES_MIN, world.compressed_bytes_min
    try:
        world.run()
    except Violation as error:
        violation = str(error)
        world.history.say(f"VIOLATION {violation}")
    finally:
        logging.disable(logging.NOTSET)
        units.UNIT_ROWS = unit_rows
        committer.JOINED_RECORDS_MAX = frame_records
        compression.COMPRESSED_BYTES_MIN = bytes_min
        world.close()
        shutil.rmtree(directory)
    return Outcome(
        seed,
        shape.name,
        world.loop.steps,
        world.loop.time(),
        world.history.commits,
        len(world.plan.faults),
        violation,
        world.noticed,
        world.history.removed,
        world.history.trace,
    )
