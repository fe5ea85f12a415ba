"""A lane of changes in a process that dies at a durable step.

Above it: tests of kills. Below it: the source, as a vertex opens it, in a process of its own. Its ledger is a file with
a line for each commit: the position, and the values that it committed.

python -m tests.recovery.killed_cdc SPEC LEDGER
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import sys
from pathlib import Path
from typing import Any

from millstream.durable import CRASH_AT
from tests.contract.sources.lanes import WAIT_S, open_lane
from tests.support.children import started
from tools.style import REPOSITORY

_RECORDS_A_READ = 7


async def kill_at(spec: dict[str, Any], ledger: Path, point: str) -> None:
    """Have a lane read until it dies at a point."""
    async with (
        asyncio.timeout(60),
        started(
            sys.executable,
            "-m",
            "tests.recovery.killed_cdc",
            json.dumps(spec),
            str(ledger),
            cwd=REPOSITORY,
            env={**os.environ, CRASH_AT: point},
        ) as process,
    ):
        assert await process.wait() == -signal.SIGKILL, point


def committed(ledger: Path) -> tuple[bytes, list[dict[str, Any]]]:
    """The last position, and every value up to it."""
    commits = [json.loads(line) for line in ledger.read_text().splitlines()] if ledger.exists() else []
    position = bytes.fromhex(commits[-1]["position"]) if commits else b""
    return position, [json.loads(value) for commit in commits for value in commit["values"]]


async def read_on(spec: dict[str, Any], ledger: Path, values: float = math.inf) -> None:
    """From where the ledger says, until it has so many values."""
    position, found = committed(ledger)
    count = len(found)
    async with asyncio.timeout(WAIT_S), open_lane(spec, position) as lane:
        while count < values:
            batch = await lane.read(_RECORDS_A_READ, 1 << 20, 0.05)
            new = batch.frame.values() if batch.frame is not None else ()
            commit = {"position": batch.position.hex(), "values": [value.decode() for value in new]}
            with ledger.open("a") as file:
                file.write(json.dumps(commit) + "\n")
            await lane.committed(batch.position)
            count += len(new)


if __name__ == "__main__":
    asyncio.run(read_on(json.loads(sys.argv[1]), Path(sys.argv[2])))
