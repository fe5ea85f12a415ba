"""From a server through a function to the same server, while any process may be killed: the pipeline's, its function's,
the broker, the server.

Above it: the tests of each connector, and `benchmarks/exactly_once.py`. Below it: the connectors' places in
`storm_places`. The source is filled between the kills, so the pipeline has work as long as they last, whatever the
machine's speed.
"""

from __future__ import annotations

import json
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.mesh.running import Ended, start
from tests.recovery.kills import FUNCTION, OUTSIDE, kill

VICTIMS = ("in-0", "map-0", "out-0", FUNCTION, "broker", OUTSIDE)
"""Workers by a replica of theirs, the process of the function, our own broker, and the server outside."""
PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {{name: p}}
spec:
  vertices:
  - {{name: in, partitions: {lanes}, source: {{{source}, guarantee: exactlyOnce}}}}
  - {{name: map, partitions: {lanes}, udf: {{python: "functions.py:branded"}}}}
  - {{name: out, partitions: {lanes}, sink: {{{sink}, guarantee: exactlyOnce}}}}
  edges:
  - {{from: in, to: map, chain: false}}
  - {{from: map, to: out}}
"""
# Of records that are processed twice, at most one result may count.
BRANDING = """\
import os


def branded(value):
    return value + b" " + os.urandom(4).hex().encode()
"""


class Place(ABC):
    """Where a connector's records come from and go to: a server that can be killed and keeps what it has."""

    lanes = 1
    victims: Sequence[str] = VICTIMS
    function = BRANDING

    @abstractmethod
    async def settings(self) -> tuple[str, str]:
        """Make source and target; returns both as flow mappings of a pipeline file."""

    @abstractmethod
    async def fill(self, first: int, stop: int) -> None:
        """Append these numbers to what the source reads."""

    @abstractmethod
    async def restart(self) -> None:
        """Kill the server and start it; returns when it answers."""

    @abstractmethod
    async def numbers(self) -> list[int]:
        """Those in the target, as a client finds them, lane by lane in their order."""


def mapping(kind: str, given: Mapping[str, Any], **more: object) -> str:
    """The settings of a source or a sink, in a pipeline file."""
    return f"{kind}: {json.dumps({**given, **more})}"


def number_of(value: bytes) -> int:
    """Of a branded one."""
    return int(value.split()[0])


@dataclass(slots=True)
class Storm:
    """What became of a pipeline that was killed."""

    kills: Counter[str] = field(default_factory=Counter)
    numbers: Sequence[int] = ()
    """In the target."""
    ended: Ended | None = None

    def check(self, records: int) -> None:
        """Each number is there once, and the account says the same."""
        assert self.ended is not None
        assert self.ended.exit_code == 0, self.ended.err
        assert "account: BALANCED" in self.ended.out
        assert sorted(self.numbers) == [*range(records)]


async def storm(
    place: Place,
    directory: Path,
    *,
    records: int,
    victims: Sequence[str],
    rng: random.Random,
    show: Callable[[str], object] = lambda _: None,
) -> Storm:
    """Run the pipeline over so many numbered records, with a kill of each victim in turn; returns when all have arrived
    and the pipeline has drained."""
    source, sink = await place.settings()
    (directory / "pipeline.yaml").write_text(PIPELINE.format(lanes=place.lanes, source=source, sink=sink))
    (directory / "functions.py").write_text(place.function)
    found = Storm()
    part = records // (len(victims) + 1)
    async with start(directory, "run", "pipeline.yaml") as run:
        for number, victim in enumerate(victims):
            await place.fill(number * part, (number + 1) * part)
            # Sometimes before what was killed last is back, sometimes in the middle of the work.
            seen = run.records("out")
            # What comes while the source is filled may be done by now.
            wanted = min(seen + rng.choice((0, 1, rng.randrange(part))), (number + 1) * part)
            await run.until(lambda wanted=wanted: run.records("out") >= wanted)  # type: ignore[misc]
            await kill(run, victim, place.restart)
            found.kills[victim] += 1
            show(f"{number + 1}: {victim} at {run.records('out')} of {(number + 1) * part}")
        await place.fill(len(victims) * part, records)
        await run.until(lambda: run.records("out") >= records)
        run.interrupt()
        found.ended = await run.ended()
    found.numbers = await place.numbers()
    return found
