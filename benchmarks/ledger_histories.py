"""Random histories of ledgers, each step judged by a model of plain lists (tests/support/ledger_history.py).

    python benchmarks/ledger_histories.py --seeds 100 --ledger redis

Commits, takeovers, owners that were replaced, lost answers, trims, readers that go on, kills of the server.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import tempfile
import time
from collections import Counter
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from tests.support.ledger_history import History
from tests.support.ledgers import Harness, open_jetstream_harness, open_memory_harness, open_redis_harness


async def one(ledger: str, seed: int, steps: int) -> Counter[str]:
    """What was done in that history. Raises what the ledger did wrong."""
    with tempfile.TemporaryDirectory(prefix="histories-") as directory:
        async with _opened(ledger, Path(directory)) as harness:
            history = History(harness, seed)
            try:
                await history.run(steps)
            except BaseException:
                print(f"seed {seed} went wrong after {len(history.steps)} steps: {history.steps[-12:]}", flush=True)
                raise
            return Counter(history.steps)


def _opened(ledger: str, directory: Path) -> AbstractAsyncContextManager[Harness]:
    if ledger == "memory":
        return open_memory_harness()
    return open_redis_harness(directory) if ledger == "redis" else open_jetstream_harness(directory)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ledger", choices=("memory", "jetstream", "redis"), default="redis")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    # The server is killed on purpose.
    logging.disable(logging.WARNING)
    done: Counter[str] = Counter()
    started_s = time.monotonic()
    for seed in range(options.first, options.first + options.seeds):
        done += asyncio.run(one(options.ledger, seed, options.steps))
    seconds = time.monotonic() - started_s
    text = ", ".join(f"{count:,} {name.strip('_').replace('_', ' ')}" for name, count in sorted(done.items()))
    print(f"{options.ledger}: {options.seeds} histories held in {seconds:.0f} s: {text}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
