"""Kills any process of a running pipeline at random, many times, and counts what came out.

    python benchmarks/kills.py [--pipeline mesh|windows] [--records N] [--kills K] [--seed S] [--secured] [--json]

`millstream chaos` with figures of its own. In the pipeline `mesh` a generator numbers the records, a function gives
each a fresh random id, and two file sinks get all of them. Whatever is killed, both sinks must hold each number once,
and agree on its id: a function that ran twice for a record must have counted once. In `windows` records are multiplied
and summed by key and window in Spark; each result must be there once, and right. docs/chaos.md defines the time to
resume.
Exit code 1 when anything is lost, repeated or disagreeing, and when the run ended before the kills did.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

import uvloop

from millstream.errors import MillstreamError
from millstream_runner.chaos.experiment import Options, conduct
from millstream_runner.chaos.report import as_json, fault_line
from millstream_runner.chaos.session import Struck

COUNTS = ("lost", "repeated", "disagreeing")


def measure(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """One run."""
    wanted = Options(
        options.pipeline,
        directory,
        seed=options.seed,
        kills=options.kills,
        records=options.records,
        rate=options.rate,
        secured=options.secured,
    )
    outcome = as_json(uvloop.run(conduct(wanted, _show)))
    done = sum(outcome["faults"].values())
    return {
        "benchmark": "kills",
        "pipeline": options.pipeline,
        "records": options.records,
        "secured": options.secured,
        "kills": {what.removeprefix("kill "): count for what, count in outcome["faults"].items()},
        "seconds": outcome["seconds"],
        **{name: outcome["counts"].get(name, 0) for name in COUNTS},
        "resume_s": outcome["resume_s"],
        "violations": outcome["violations"],
        "passed": outcome["sound"] and done == options.kills,
    }


def _show(struck: Struck) -> None:
    print(fault_line(struck), file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipeline", choices=("mesh", "windows"), default="mesh")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=int, help="records per second (default: they last for the kills)")
    parser.add_argument("--secured", action="store_true", help="TLS to the broker, functions in a strict sandbox")
    parser.add_argument("--json", action="store_true", help="one object on the last line")
    options = parser.parse_args()
    logging.getLogger("millstream").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="millstream-kills-") as name:
        try:
            result = measure(options, Path(name))
        except MillstreamError as error:
            print(error, file=sys.stderr)
            return 1
    roles = ", ".join(f"{role} {count}" for role, count in sorted(result["kills"].items()))
    counts = ", ".join(f"{result[name]} {name}" for name in COUNTS)
    kills = sum(result["kills"].values())
    print(f"{result['records']:,} records, {kills} kills ({roles}) in {result['seconds']:.0f} s: {counts}")
    for which, figures in result["resume_s"].items():
        if figures["measured"]:
            print(
                f"time to resume, {which.replace('_', ' ')}: median {figures['median']:.2f} s, "
                f"p99 {figures['p99']:.2f} s, max {figures['max']:.2f} s ({figures['measured']} measured)"
            )
    for violation in result["violations"]:
        print(f"VIOLATED: {violation}")
    if options.json:
        print(json.dumps(result))
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
