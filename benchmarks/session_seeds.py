"""Lives many lanes of sessions against their definition, each from a seed: `tests/unit/reduce/merged_first.py`.

    python benchmarks/session_seeds.py --seeds 500 [--from 0]

Exit code 1 when a lane differs from the definition.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import traceback
from collections import Counter
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.unit.reduce.merged_first import live


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--from", type=int, default=0, dest="first")
    arguments = parser.parse_args()
    totals: Counter[str] = Counter()
    failed = []
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        with tempfile.TemporaryDirectory(prefix="session-seed-") as directory:
            try:
                totals.update(asdict(asyncio.run(live(seed, Path(directory)))))
            except Exception:  # noqa: BLE001  # whatever it is, the other seeds are worth living
                failed.append(seed)
                print(f"seed {seed}:\n{traceback.format_exc()}", file=sys.stderr)
    print(f"{arguments.seeds} seeds, {len(failed)} failed {failed}: {dict(totals)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
