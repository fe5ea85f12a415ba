"""How fast the delta sink appends to a table, beside deltalake's own write.

    python benchmarks/delta.py [--records N] [--rounds N] [--json]

The table is in a local directory. In each round, in turns: the sink, through the delivery, from JSON values in frames
of 4,096, with the fsync that deltalake does not do; deltalake, which appends what Arrow has parsed from the same JSON,
in commits of the same number of records; and deltalake appending tables that are in memory already. Processor seconds
are those of the process with its threads. The ratio is of the best rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from objects import delivered, parsed, timed
from sinks import COLUMNS, FRAME_RECORDS, make_frame

from millstream.spec.models import FallbackSink

FRAMES_PER_COMMIT = 64


def ours(path: Path, frames: int) -> None:
    """All of it through the sink."""
    records = FRAMES_PER_COMMIT * FRAME_RECORDS
    settings = {"path": str(path), "columns": COLUMNS, "maxRecords": records, "maxBytes": "1GiB", "commitEvery": "1h"}
    asyncio.run(delivered(FallbackSink.model_validate({"delta": settings}), frames))


def theirs(path: Path, frames: int, *, parse: bool) -> None:
    """The same commits by deltalake."""
    values = make_frame().values()
    table = parsed(values)
    for first in range(0, frames, FRAMES_PER_COMMIT):
        count = min(FRAMES_PER_COMMIT, frames - first)
        write_deltalake(
            path, pa.concat_tables([parsed(values) if parse else table for _ in range(count)]), mode="append"
        )


def measure(frames: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Records per second, and per second of the processor, each of its best round."""
    best: dict[str, tuple[float, float]] = {}
    calls: dict[str, Callable[[Path], None]] = {
        "sink": lambda path: ours(path, frames),
        "deltalake from JSON": lambda path: theirs(path, frames, parse=True),
        "deltalake from tables": lambda path: theirs(path, frames, parse=False),
    }
    for _ in range(rounds):
        for name, call in calls.items():
            with tempfile.TemporaryDirectory() as directory:
                path = Path(directory) / "table"
                seconds, cpu = timed(lambda call=call, path=path: call(path))  # type: ignore[misc]
                records = frames * FRAME_RECORDS
                found = DeltaTable(path).to_pyarrow_dataset().count_rows()
                assert found == records, f"{name}: {found} of {records} rows"
            before = best.get(name, (0.0, 0.0))
            best[name] = max(before[0], records / seconds), max(before[1], records / cpu)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    best = measure(max(1, options.records // FRAME_RECORDS), options.rounds)
    limit, limit_cpu = best["deltalake from JSON"]
    for name, (rate, rate_cpu) in best.items():
        print(
            f"{name:21} {rate:>12,.0f} records/s ({rate / limit:.2f} of deltalake from JSON), "
            f"{rate_cpu:,.0f} a CPU second ({rate_cpu / limit_cpu:.2f})"
        )
    if options.json:
        print(json.dumps({"delta": best}))


if __name__ == "__main__":
    main()
