"""Pipelines killed at every durable step, and at every pair of them, the second in the recovery from the first.

    python benchmarks/crash_points.py [--pipeline windows ...] [--pairs COUNT | --pairs all] [--minutes M] [--seed N]
                                      [--journal FILE] [--secured] [--json]

First every point that a pipeline reaches, in every kind of vertex, then pairs: so many by chance, or all (hours), or
those of them that can be begun in M minutes. What was done is written to the journal; with the same one a sweep that
was stopped (SIGINT or SIGTERM: it begins nothing more) goes on where it was. Exit code 1 when a run was not finished
with exactly the outputs it must have; each of those is printed, with what to give this script to see it again: --again
'windows:POINT POINT'. The last line of --json is one object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from millstream.background import open_tasks
from tests.recovery import crash_plan
from tests.recovery.crash_pipelines import PIPELINES, SWEPT
from tests.recovery.crash_runs import CrashRuns, Outcome, open_crash_runs
from tests.spark_driver import SparkDriver, open_spark_driver
from tools import durable_steps

REPORT_S = 10.0
DRIVER_CHECK_S = 1.0

Case = tuple[str, tuple[str, ...]]
"""A pipeline and the points at which it is killed, one after another."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the runs that were killed once have shown."""

    places: int
    points_killed_at: int
    pairs: Sequence[Case]
    """All there are, in the order in which they are tried."""


@dataclass(frozen=True, slots=True)
class Done:
    """A case that has ended."""

    case: Case
    missed: bool
    failed: bool


class Journal:
    """A file with a line for each case that has ended, and one for the plan, so that a sweep can go on."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.plan: Plan | None = None
        self.done: list[Done] = []
        if path and path.exists():
            # A sweep that was killed may have written half a line.
            whole = path.read_text().rpartition("\n")[0]
            path.write_text(whole and f"{whole}\n")
            for line in whole.splitlines():
                self._read(json.loads(line))
        if self.plan is None:
            self.done.clear()
            if path:
                path.write_text("")

    def _read(self, line: dict[str, Any]) -> None:
        if "pairs" in line:
            self.plan = Plan(**line | {"pairs": [_case(*pair) for pair in line["pairs"]]})
        else:
            self.done.append(Done(**line | {"case": _case(*line["case"])}))

    def add(self, entry: Plan | Done) -> None:
        if isinstance(entry, Plan):
            self.plan = entry
        else:
            self.done.append(entry)
        if self._path:
            with self._path.open("a") as file:
                print(json.dumps(asdict(entry)), file=file)


def _case(pipeline: str, points: Sequence[str]) -> Case:
    return pipeline, tuple(points)


class Sweep:
    """Runs cases, reports those that fail as they come, and says how far it is."""

    def __init__(self, runs: CrashRuns, journal: Journal, at_a_time: int) -> None:
        self._runs = runs
        self._journal = journal
        self._places = asyncio.Semaphore(at_a_time)
        self._reported_at_s = time.monotonic()
        self.stopped = False

    def stop(self) -> None:
        """Begin no further case."""
        self.stopped = True

    async def cases(self, cases: Sequence[Case], until_s: float = math.inf) -> list[Outcome]:
        """None is begun after `stop`, nor later than `until_s` of the monotonic clock."""
        outcomes = []

        async def case(pipeline: str, points: Sequence[str]) -> Outcome | None:
            async with self._places:
                begins = time.monotonic() < until_s and not self.stopped
                return await self._runs.case(pipeline, *points) if begins else None

        for coming in asyncio.as_completed([case(pipeline, points) for pipeline, points in cases]):
            outcome = await coming
            if outcome is None:
                continue
            outcomes.append(outcome)
            ended = _case(outcome.pipeline, outcome.points)
            self._journal.add(Done(ended, missed=bool(outcome.missed), failed=bool(outcome.failed)))
            if outcome.failed:
                print(f"FAILED --again '{outcome.pipeline}:{' '.join(outcome.points)}'\n{outcome}", file=sys.stderr)
            if time.monotonic() - self._reported_at_s >= REPORT_S:
                self._reported_at_s = time.monotonic()
                failed = sum(done.failed for done in self._journal.done)
                print(f"{len(outcomes)} of {len(cases)}, {failed} failed", file=sys.stderr)
        return outcomes


async def kill_once(runs: CrashRuns, sweep: Sweep, pipelines: Sequence[str], rng: random.Random) -> Plan:
    """Every point that they reach, also those that only a recovery reaches."""
    killed: set[str] = set()
    everything: dict[tuple[str, ...], list[Case]] = {}
    singles = 0
    for pipeline in pipelines:
        whole = await runs.case(pipeline)
        if whole.failed:
            raise SystemExit(f"nothing was killed, and yet: {whole}")
        places = crash_plan.one_of_each(whole.reached, rng)
        outcomes = await sweep.cases([(pipeline, (point,)) for point in places.values()])
        recoveries = [(outcome.points, outcome.reached) for outcome in outcomes]
        for pair in crash_plan.pairs(recoveries):
            everything.setdefault(crash_plan.places_of(pair), []).append((pipeline, pair))
        tried = set(places)
        while later := crash_plan.only_after_a_kill(tried, recoveries):
            last = await sweep.cases([(pipeline, points) for points in later.values()])
            outcomes += last
            recoveries = [(outcome.points, outcome.reached) for outcome in last]
            tried |= later.keys()
        killed |= {point for outcome in outcomes for point in outcome.points if point not in outcome.missed}
        singles += len(places)
    # What several pipelines come to is done with one of them.
    each = [rng.choice(everything[places]) for places in sorted(everything)]
    return Plan(singles, len(crash_plan.names_of(killed)), rng.sample(each, len(each)))


async def sweep(runs: CrashRuns, options: argparse.Namespace) -> dict[str, Any]:
    started_s = time.monotonic()
    journal = Journal(options.journal)
    all_of_them = Sweep(runs, journal, options.at_a_time)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, all_of_them.stop)
    if options.again:
        pipeline, _, points = options.again.partition(":")
        await all_of_them.cases([(pipeline, tuple(points.split()))])
        return {"failed": sum(done.failed for done in journal.done), "cases": 1}
    if journal.plan is None:
        rng = random.Random(options.seed)
        plan = await kill_once(runs, all_of_them, options.pipeline or SWEPT, rng)
        if all_of_them.stopped:
            raise SystemExit("stopped before it was known which pairs there are: nothing to go on from")
        journal.add(plan)
    assert journal.plan is not None
    pairs = journal.plan.pairs[: None if options.pairs == "all" else int(options.pairs)]
    done = {done.case for done in journal.done}
    until_s = time.monotonic() + options.minutes * 60
    await all_of_them.cases([pair for pair in pairs if pair not in done], until_s)
    done = {done.case for done in journal.done}
    return {
        "steps": len(durable_steps.steps()),
        "points_killed_at": journal.plan.points_killed_at,
        "places": journal.plan.places,
        "pairs": sum(pair in done for pair in pairs),
        "pairs_there_are": len(journal.plan.pairs),
        "cases": len(journal.done),
        "cases_without_a_kill": sum(done.missed for done in journal.done),
        "failed": sum(done.failed for done in journal.done),
        "seconds": round(time.monotonic() - started_s, 1),
    }


async def start_again(driver: SparkDriver) -> None:
    """Start Spark again whenever it has ended, as the runner does: hours of killed vertices are hard on it."""
    while True:
        await asyncio.sleep(DRIVER_CHECK_S)
        if not driver.running:
            print(f"Spark ended and is started again: {driver.tail()}", file=sys.stderr)
            driver.start()


async def run(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as name, open_spark_driver() as driver:
        await driver.ready()
        async with (
            open_tasks() as tasks,
            open_crash_runs(
                Path(name), spark=driver.address, at_a_time=options.at_a_time, secured=options.secured
            ) as runs,
        ):
            watching = tasks.create_task(start_again(driver), name="start Spark again")
            found = await sweep(runs, options)
            watching.cancel()
    print(json.dumps(found) if options.json else "\n".join(f"{key:>20} {value}" for key, value in found.items()))
    return 1 if found["failed"] else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipeline", action="append", choices=list(PIPELINES), help="one of them (default: all)")
    parser.add_argument("--pairs", default="100", help="how many, or `all` (default: 100)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no pair after so many (default: no end)")
    parser.add_argument("--journal", type=Path, metavar="FILE", help="go on from it, and write there what is done")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-a-time", type=int, default=3, help="cases that run beside one another (default: 3)")
    parser.add_argument("--again", metavar="PIPELINE:POINTS", help="one case that failed")
    parser.add_argument(
        "--secured", action="store_true", help="TLS, a user of the broker for each vertex, functions in a sandbox"
    )
    parser.add_argument("--json", action="store_true")
    return asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
