"""Runs a pipeline for a long time under faults of every kind, and says whether memory and disk stay flat.

    python benchmarks/soak.py [--pipeline mesh|push|windows] [--minutes M] [--rate N] [--faults KINDS] [--json]

`millstream chaos` with a look at the run every few seconds: resident memory of every process, bytes of the data
directory. In what is left of the time after a tenth of it, the median of the last quarter may not exceed that of the
first quarter by more than a fifth (or 24 MiB, whichever is more), of any process and of the disk. A process that is
killed starts again with its memory, as it would elsewhere: `--faults pause,network` leaves them all alive. Exit code 1
when it is not flat, or when the oracle finds anything.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import uvloop

from millstream.errors import MillstreamError
from millstream_runner.chaos.experiment import Options, conduct
from millstream_runner.chaos.plan import FaultKind
from millstream_runner.chaos.processes import processes_of
from millstream_runner.chaos.report import as_json, fault_line
from millstream_runner.local.directory import DataDirectory

MIB = 1024 * 1024
SAMPLE_S = 2.0
WARM_UP_SHARE = 0.1
GROWTH_MAX = 1.2
SLACK_BYTES = 24 * MIB

Samples = dict[str, list[tuple[float, int]]]


async def sample(data: DataDirectory, samples: Samples) -> None:
    """Look at the run, until cancelled."""
    begun_s = time.monotonic()
    while True:
        runtime = data.read_runtime()
        at_s = time.monotonic() - begun_s
        largest: dict[str, int] = defaultdict(int)
        for one in processes_of(runtime.runner.pid) if runtime is not None else ():
            with suppress(psutil.Error):
                largest[one.name] = max(largest[one.name], one.process.memory_info().rss)
        for name, size in largest.items():
            samples[name].append((at_s, size))
        samples["disk"].append((at_s, disk_bytes(data.root)))
        await asyncio.sleep(SAMPLE_S)


def disk_bytes(directory: Path) -> int:
    """What its files take up."""
    total = 0
    for place, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                total += (Path(place) / name).stat().st_blocks * 512
    return total


def judged(samples: Samples) -> dict[str, dict[str, Any]]:
    """Of everything that was looked at, the medians of the first and last quarter in MiB, and whether it is flat."""
    found: dict[str, dict[str, Any]] = {}
    for name, points in sorted(samples.items()):
        end_s = max(at_s for series in samples.values() for at_s, _ in series)
        kept = [size for at_s, size in points if at_s >= WARM_UP_SHARE * end_s]
        if len(kept) < 8:
            continue
        quarter = len(kept) // 4
        first, last = statistics.median(kept[:quarter]), statistics.median(kept[-quarter:])
        flat = last <= max(first * GROWTH_MAX, first + SLACK_BYTES)
        found[name] = {
            "first_mib": round(first / MIB, 1),
            "last_mib": round(last / MIB, 1),
            "max_mib": round(max(kept) / MIB, 1),
            "flat": flat,
        }
    return found


async def measure(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """One soak."""
    samples: Samples = defaultdict(list)
    kinds = tuple(FaultKind(name) for name in options.faults.split(","))
    seconds = options.minutes * 60
    wanted = Options(
        options.pipeline,
        directory,
        seed=options.seed,
        seconds=seconds,
        kinds=kinds,
        # As many as there is time for.
        records=1,
        rate=options.rate,
    )
    async with asyncio.TaskGroup() as tasks:
        sampling = tasks.create_task(sample(DataDirectory(directory / "state"), samples), name="sample")
        outcome = as_json(await conduct(wanted, lambda struck: print(fault_line(struck), file=sys.stderr, flush=True)))
        sampling.cancel()
    sizes = judged(samples)
    return {
        "benchmark": "soak",
        "pipeline": options.pipeline,
        "minutes": options.minutes,
        "faults": outcome["faults"],
        "resume_s": outcome["resume_s"],
        "violations": outcome["violations"],
        "sizes": sizes,
        "flat": all(size["flat"] for size in sizes.values()),
        "passed": outcome["sound"] and all(size["flat"] for size in sizes.values()),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipeline", choices=("mesh", "push", "windows"), default="mesh")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=int, default=1000, help="records per second (default: 1000)")
    parser.add_argument("--faults", default="kill,pause,network", help="(default: kill,pause,network)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one object on the last line")
    options = parser.parse_args()
    logging.getLogger("millstream").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="millstream-soak-") as name:
        try:
            result = uvloop.run(measure(options, Path(name)))
        except MillstreamError as error:
            print(error, file=sys.stderr)
            return 1
    print(
        f"{options.minutes:g} minutes, {sum(result['faults'].values())} faults: {'flat' if result['flat'] else 'GROWS'}"
    )
    for what, size in result["sizes"].items():
        how = "" if size["flat"] else "  GROWS"
        print(
            f"{what}: {size['first_mib']} MiB at first, {size['last_mib']} MiB at last, at most {size['max_mib']}{how}"
        )
    for violation in result["violations"]:
        print(f"VIOLATED: {violation}")
    if options.json:
        print(json.dumps(result))
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
