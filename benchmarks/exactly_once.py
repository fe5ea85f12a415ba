"""Moves numbered records through a connector's source, a function and its sink, kills everything at random, and counts.

    python benchmarks/exactly_once.py --connector NAME [--records 200000] [--kills 60] [--seed S] [--json]

Killed are the workers of the three vertices, the function's process, the broker, and the server outside that the
connector reads and writes, if there is one. The seed determines who is killed, and after how many records; when that is
in time depends on the machine. The target is read with a client: each number must be there once, and the account must
be balanced.
Exit code 1 when a number is missing or repeated, or when the run ended otherwise than well.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import uvloop

from tests.recovery.storm_places import PLACES
from tests.recovery.storms import storm


async def measure(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """One run."""
    rng = random.Random(options.seed)
    begun_s = time.monotonic()
    async with PLACES[options.connector](directory) as place:
        victims = [rng.choice(place.victims) for _ in range(options.kills)]
        found = await storm(place, directory, records=options.records, victims=victims, rng=rng, show=_show)
    seen = Counter(found.numbers)
    result = {
        "benchmark": "exactly_once",
        "connector": options.connector,
        "seed": options.seed,
        "records": options.records,
        "kills": dict(sorted(found.kills.items())),
        "seconds": round(time.monotonic() - begun_s, 1),
        "lost": len(range(options.records)) - sum(number in seen for number in range(options.records)),
        "repeated": sum(count - 1 for count in seen.values()),
        "unknown": sum(not 0 <= number < options.records for number in seen),
        "exit_code": found.ended.exit_code if found.ended else None,
        "balanced": found.ended is not None and "account: BALANCED" in found.ended.out,
    }
    wrong = result["lost"] or result["repeated"] or result["unknown"] or result["exit_code"] != 0
    result["passed"] = not wrong and result["balanced"]
    if not result["passed"] and found.ended:
        print(found.ended.out, found.ended.err, sep="\n", file=sys.stderr)
    return result


def _show(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connector", choices=sorted(PLACES), required=True)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one object on the last line")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="millstream-exactly-once-") as name:
        result = uvloop.run(measure(options, Path(name)))
    kills = ", ".join(f"{victim} {count}" for victim, count in result["kills"].items())
    print(
        f"{result['connector']}, seed {result['seed']}: {result['records']:,} records, "
        f"{sum(result['kills'].values())} kills ({kills}) in {result['seconds']:.0f} s: "
        f"{result['lost']} lost, {result['repeated']} repeated, {result['unknown']} unknown"
    )
    if options.json:
        print(json.dumps(result))
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
