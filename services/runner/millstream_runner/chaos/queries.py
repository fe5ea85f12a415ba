"""Queries what the vertex of the pipeline `state` remembers, again and again, while the run is disturbed:
`python -m millstream_runner.chaos.queries --help`.

Each query that has an answer adds a line to a file: its number of keys, and what was wrong with them. A key never has
fewer records than an earlier query saw, never disappears, and its total is always that of its first records. Ends with
SIGTERM.

Above it: the experiment, which starts it. Below it: the reading of states, as for `millstream state`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from millstream.buffers.registry import technology_of
from millstream.errors import DamageError, InfrastructureError, RetryLaterError
from millstream.files import append_private
from millstream.pauses import pause
from millstream.plan import resolved
from millstream.record import LaneId
from millstream_runner.chaos.oracle.remembered import Deal, Total
from millstream_runner.local.directory import DataDirectory, Runtime
from millstream_runner.local.processes import is_alive
from millstream_runner.local.stored_states import LaneState, stored_states
from millstream_runner.local.view import open_view

VERTEX = "remember"
_APART_S = 0.3
_SHARE = 2.0
"""After a query, so many times its duration without one: it keeps a processor busy."""
_TIMEOUT_S = 60.0
"""The broker of a query that takes longer is gone, or was replaced."""


class Seen:
    """What queries have seen so far."""

    def __init__(self, deal: Deal) -> None:
        self._deal = deal
        self._totals: defaultdict[LaneId, dict[str, Total]] = defaultdict(dict)

    def take(self, state: LaneState) -> tuple[int, list[str]]:
        """Compare the state of a lane with what was seen before. Returns its number of keys, and what is wrong."""
        seen, now = self._totals[state.lane], _totals(state)
        faults = [f"{state.lane}: key {key} is gone" for key in sorted(seen.keys() - now.keys())]
        for key, (count, total) in now.items():
            known = seen.setdefault(key, Total())
            if count < known.count:
                faults.append(f"{state.lane}: key {key} went back from {known.count} records to {count}")
                continue
            known.advance(self._deal, key, count)
            if total != known.total:
                faults.append(f"{state.lane}: key {key} has total {total} after {count} records, not {known.total}")
        return len(now), faults


def _totals(state: LaneState) -> dict[str, tuple[int, int]]:
    """Records and total of each key. A commit that removes one of them, or lacks one, leaves it 0."""
    counts: dict[bytes, int] = {}
    totals: dict[bytes, int] = {}
    names = [one.name for one in state.keyed.stored]
    for key, number, _, stored in state.keyed.all():
        if names[number] == "records":
            counts[key] = int.from_bytes(stored.value, "little", signed=True)
        elif names[number] == "total":
            totals[key] = json.loads(stored.value)
    return {key.decode(): (counts.get(key, 0), totals.get(key, 0)) for key in counts.keys() | totals.keys()}


async def _query(data: DataDirectory, runtime: Runtime, seen: Seen) -> dict[str, Any]:
    """The line of one query."""
    plan = resolved.load(data.read_pipeline()).plan
    keys, faults = 0, list[str]()
    async with open_view(plan, data.access(runtime, technology_of(plan.pipeline))) as view:
        try:
            async for state in stored_states(view, plan, VERTEX):
                count, found = seen.take(state)
                keys, faults = keys + count, faults + found
        except DamageError as error:
            faults.append(str(error))
    return {"keys": keys, "faults": faults}


async def _run(options: argparse.Namespace) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    data, seen = DataDirectory(options.dir / "state"), Seen(Deal(options.keys))
    with append_private(options.file) as file:
        while not stopping.is_set():
            begun_s, apart_s = time.monotonic(), _APART_S
            runtime = data.read_runtime()
            if runtime is not None and runtime.broker_url and is_alive(runtime.runner):
                # Whatever is killed meanwhile, the next query may have an answer.
                with suppress(InfrastructureError, RetryLaterError, OSError, TimeoutError):
                    async with asyncio.timeout(_TIMEOUT_S):
                        line = await _query(data, runtime, seen)
                    line["seconds"] = round(time.monotonic() - begun_s, 3)
                    file.write(json.dumps(line).encode() + b"\n")
                    apart_s = max(_APART_S, _SHARE * line["seconds"])
            await pause(apart_s, unless=stopping)


def main(arguments: Sequence[str] | None = None) -> int:
    """Query until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m millstream_runner.chaos.queries", description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, metavar="DIR", help="of the experiment")
    parser.add_argument("--keys", type=int, required=True, metavar="N", help="of the pipeline")
    parser.add_argument("--file", type=Path, required=True, help="where to write what queries saw")
    asyncio.run(_run(parser.parse_args(arguments)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
