"""Pipelines killed at every durable step, and at every pair of them, the second in the recovery from the first.

    python benchmarks/crash_points.py [--pipeline windows ...] [--pairs COUNT | --pairs all] [--minutes M] [--seed N]
                                      [--json]

First every point that a pipeline reaches, in every kind of vertex, then pairs: so many by chance, or all (hours), or
those of them that can be begun in M minutes. Exit code 1 when a run was not finished with exactly the outputs it must
have; each of those is printed, with what to give this script to see it again: --again 'windows:POINT POINT'. The last
line of --json is one object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.recovery import crash_plan
from tests.recovery.crash_pipelines import PIPELINES, SWEPT
from tests.recovery.crash_runs import CrashRuns, Outcome, open_crash_runs
from tests.spark_driver import open_spark_driver
from tools import durable_steps

REPORT_S = 10.0


class Sweep:
    """Runs cases, reports those that fail as they come, and says how far it is."""

    def __init__(self, runs: CrashRuns, at_a_time: int) -> None:
        self._runs = runs
        self._places = asyncio.Semaphore(at_a_time)
        self._told_s = time.monotonic()
        self.failed: list[Outcome] = []
        self.done = 0
        self.missed = 0

    async def cases(self, cases: Sequence[tuple[str, tuple[str, ...]]], until_s: float = math.inf) -> list[Outcome]:
        """(pipeline, points) each; none is begun after `until_s` of the monotonic clock."""
        outcomes = []

        async def case(pipeline: str, points: Sequence[str]) -> Outcome | None:
            async with self._places:
                return await self._runs.case(pipeline, *points) if time.monotonic() < until_s else None

        for coming in asyncio.as_completed([case(pipeline, points) for pipeline, points in cases]):
            outcome = await coming
            if outcome is None:
                continue
            outcomes.append(outcome)
            self.done += 1
            self.missed += bool(outcome.missed)
            if outcome.failed:
                self.failed.append(outcome)
                print(f"FAILED --again '{outcome.pipeline}:{' '.join(outcome.points)}'\n{outcome}", file=sys.stderr)
            if time.monotonic() - self._told_s >= REPORT_S:
                self._told_s = time.monotonic()
                print(f"{len(outcomes)} of {len(cases)}, {len(self.failed)} failed", file=sys.stderr)
        return outcomes


async def sweep(runs: CrashRuns, options: argparse.Namespace) -> dict[str, Any]:
    started_s = time.monotonic()
    rng = random.Random(options.seed)
    all_of_them = Sweep(runs, options.at_a_time)
    if options.again:
        pipeline, _, points = options.again.partition(":")
        await all_of_them.cases([(pipeline, tuple(points.split()))])
        return {"failed": len(all_of_them.failed), "cases": 1}
    killed: set[str] = set()
    everything: dict[tuple[str, ...], list[tuple[str, tuple[str, ...]]]] = {}
    singles = 0
    for pipeline in options.pipeline or SWEPT:
        first = (await runs.case(pipeline)).reached
        places = crash_plan.one_of_each(first, rng)
        outcomes = await all_of_them.cases([(pipeline, (point,)) for point in places.values()])
        recoveries = [(outcome.points, outcome.reached) for outcome in outcomes]
        for pair in crash_plan.pairs(recoveries):
            everything.setdefault(crash_plan.places_of(pair), []).append((pipeline, pair))
        tried = set(places)
        while later := crash_plan.only_after_a_kill(tried, recoveries):
            last = await all_of_them.cases([(pipeline, points) for points in later.values()])
            outcomes += last
            recoveries = [(outcome.points, outcome.reached) for outcome in last]
            tried |= later.keys()
        killed |= {point for outcome in outcomes for point in outcome.points if point not in outcome.missed}
        singles += len(places)
    # What several pipelines come to is done with one of them.
    each = [rng.choice(everything[places]) for places in sorted(everything)]
    count = len(each) if options.pairs == "all" else min(int(options.pairs), len(each))
    until_s = time.monotonic() + options.minutes * 60
    pairs = await all_of_them.cases(rng.sample(each, count), until_s)
    return {
        "steps": len(durable_steps.steps()),
        "points_killed_at": len(crash_plan.names_of(killed)),
        "places": singles,
        "pairs": len(pairs),
        "pairs_there_are": len(each),
        "cases": all_of_them.done,
        "cases_without_a_kill": all_of_them.missed,
        "failed": len(all_of_them.failed),
        "seconds": round(time.monotonic() - started_s, 1),
    }


async def run(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as name, open_spark_driver() as driver:
        await driver.ready()
        async with open_crash_runs(Path(name), spark=driver.address, at_a_time=options.at_a_time) as runs:
            found = await sweep(runs, options)
    print(json.dumps(found) if options.json else "\n".join(f"{key:>20} {value}" for key, value in found.items()))
    return 1 if found["failed"] else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipeline", action="append", choices=list(PIPELINES), help="one of them (default: all)")
    parser.add_argument("--pairs", default="100", help="how many, or `all` (default: 100)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no pair after so many (default: no end)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-a-time", type=int, default=3, help="cases that run beside one another (default: 3)")
    parser.add_argument("--again", metavar="PIPELINE:POINTS", help="one case that failed")
    parser.add_argument("--json", action="store_true")
    return asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
