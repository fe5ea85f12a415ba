"""Simulates pipelines, one for each seed, with everything that can go wrong, and judges what they have done.

    python benchmarks/simulation.py --seeds 10000 [--from 0] [--jobs 2] [--json]     seeds per second, what was found
    python benchmarks/simulation.py --seeds 2000 --set-back                          ledgers lose their end as well
    python benchmarks/simulation.py --seeds 2000 --shape copies                      of that shape (`BESIDE`)
    python benchmarks/simulation.py --seed 843 --trace                               what happens in one of them

Exit code 1 when an invariant does not hold. `tests/simulation/world.py` says what a simulation consists of.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.simulation.set_back import with_set_backs
from tests.simulation.shapes import BESIDE, Shape
from tests.simulation.simulate import Outcome, simulate

CHUNK = 20
"""Seeds a process is given at a time."""


def outcomes_of(seeds: range, jobs: int, *, set_back: bool, shape: Shape | None) -> Iterator[Outcome]:
    """In the order of the seeds."""
    one = partial(simulate, adjust=with_set_backs if set_back else None, shape=shape)
    if jobs == 1:
        yield from map(one, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(one, seeds, chunksize=CHUNK)


def run_many(outcomes: Iterable[Outcome], *, as_json: bool) -> int:
    """Tell what came of them; the number of violations."""
    started_s = time.perf_counter()
    totals: Counter[str] = Counter()
    shapes: Counter[str] = Counter()
    violations: list[dict[str, object]] = []
    virtual_s = 0.0
    for outcome in outcomes:
        totals.update(seeds=1, steps=outcome.steps, commits=outcome.commits, faults=outcome.faults)
        shapes[outcome.shape] += 1
        virtual_s += outcome.virtual_s
        totals.update(noticed=bool(outcome.noticed), set_back=outcome.removed > 0)
        if outcome.violation:
            violations.append({"seed": outcome.seed, "shape": outcome.shape, "violation": outcome.violation})
            print(f"seed {outcome.seed} ({outcome.shape}): {outcome.violation}", file=sys.stderr)
    seconds = time.perf_counter() - started_s
    rate = totals["seeds"] / seconds
    if as_json:
        figures = {**totals, "virtual_s": virtual_s, "seconds": seconds, "seeds_per_s": rate, "shapes": shapes}
        print(json.dumps({**figures, "violations": violations}))
    else:
        print(f"{totals['seeds']:,} seeds in {seconds:,.1f} s: {rate:.1f} seeds/s, {len(violations)} violations")
        print(
            f"{totals['commits']:,} commits, {totals['faults']:,} faults beside those of the network, "
            f"{totals['steps']:,} steps, {virtual_s / 3600:,.1f} h of virtual time"
        )
        if totals["set_back"]:
            noticed = f"noticed in {totals['noticed']:,}; in the others nothing of it had been read"
            print(f"{totals['set_back']:,} of the runs lost the end of a ledger: {noticed}")
        print(", ".join(f"{count:,} {shape}" for shape, count in sorted(shapes.items())))
    return len(violations)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first of them")
    parser.add_argument("--jobs", type=int, default=1, help="processes that simulate side by side")
    parser.add_argument("--set-back", action="store_true", help="ledgers are set back as well")
    parser.add_argument("--shape", choices=BESIDE, help="pipelines of this shape only, which no seed has otherwise")
    parser.add_argument("--seed", type=int, help="this one only")
    parser.add_argument("--trace", action="store_true", help="with --seed: tell everything that happens")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    shape = BESIDE[options.shape] if options.shape else None
    if options.seed is not None:
        adjust = with_set_backs if options.set_back else None
        outcome = simulate(options.seed, tracing=options.trace, adjust=adjust, shape=shape)
        print("\n".join(outcome.trace) or outcome.violation or "every invariant held")
        return bool(outcome.violation)
    seeds = range(options.first, options.first + options.seeds)
    outcomes = outcomes_of(seeds, options.jobs, set_back=options.set_back, shape=shape)
    return run_many(outcomes, as_json=options.json) > 0


if __name__ == "__main__":
    sys.exit(main())
