"""Runs random pipelines whose vertices have two inputs each, with disturbances, and compares every sink with an oracle.

    python benchmarks/two_inputs.py [--pipelines 200] [--from 0] [--reduces 0.3] [--json]

Pipeline n is made from seed n: joins of two vertices, two edges of one vertex, late edges beside data edges, into maps,
reduces and sinks (JSON lines, CSV, Parquet, HTTP, a user's). They run on a real broker, with real functions and one
Spark driver for all. Twice in each run all vertices die, or are taken over, or the broker or the functions are killed.
`tests/mesh/two_inputs.py` says how they are judged. Exit code 1 when a sink differs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.mesh.two_inputs import Experiment
from tests.spark_driver import open_spark_driver


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipelines", type=int, default=200)
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--reduces", type=float, default=0.3, help="share of pipelines with a reduce")
    parser.add_argument("--json", action="store_true", help="one object on the last line")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    totals: Counter[str] = Counter()
    failed: list[int] = []
    begun_s = time.monotonic()
    with ExitStack() as stack:
        spark = None
        for seed in range(options.first, options.first + options.pipelines):
            windows = random.Random(f"windows {seed}").random() < options.reduces
            if windows and spark is None:
                spark = stack.enter_context(open_spark_driver())
            with tempfile.TemporaryDirectory(prefix="two-inputs-") as directory:
                experiment = Experiment(seed, Path(directory), windows=windows)
                try:
                    wrong = asyncio.run(experiment.run(spark.address if windows and spark else None))
                except Exception:  # noqa: BLE001  # whatever it is, the other seeds are worth running
                    wrong = [traceback.format_exc()]
            totals.update(pipelines=1, late=experiment.late, edges=len(experiment.shape.edges), reduces=windows)
            totals.update(experiment.disturbed)
            if wrong:
                failed.append(seed)
            verdict = "; ".join(wrong) or "as it has to be"
            print(f"seed {seed} ({', '.join(experiment.disturbed)}): {verdict}", file=sys.stderr, flush=True)
    seconds = time.monotonic() - begun_s
    print(f"{options.pipelines} pipelines in {seconds:,.0f} s, {len(failed)} failed {failed}: {dict(totals)}")
    if options.json:
        print(json.dumps({"benchmark": "two_inputs", "seconds": seconds, "failed": failed, **totals}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
