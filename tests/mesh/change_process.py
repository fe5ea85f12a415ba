"""A process that changes pipelines and dies at a durable step of it. Run by `changing`.

Reads one JSON change a line on standard input, forks a process for it, and answers how that ended and the points that
it reached. Everything is imported before the first fork: a change costs milliseconds to start.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from millstream.buffers.jetstream.access_file import load_access
from millstream.durable import crash_at, listen
from millstream_runner.local.directory import DataDirectory
from tests.mesh.changing import change


def _change(request: dict[str, Any], answer: int) -> None:
    """Never returns."""
    reached: Counter[str] = Counter()

    def count(point: str, vertex: str) -> None:
        reached[point] += 1

    listen(crash_at(request["crash_at"]) if request["crash_at"] else count)
    access = load_access(Path(request["nats_access"]), request["nats"])
    asyncio.run(change(DataDirectory(Path(request["directory"])), Path(request["pipeline"]), access))
    os.write(answer, json.dumps(reached).encode())
    os._exit(0)


def main() -> None:
    for line in sys.stdin:
        read, write = os.pipe()
        process = os.fork()
        if process == 0:
            os.close(read)
            try:
                _change(json.loads(line), write)
            finally:
                os._exit(1)
        os.close(write)
        with os.fdopen(read, "rb") as told:
            reached = json.loads(told.read() or b"{}")
        _, status = os.waitpid(process, 0)
        sys.stdout.write(json.dumps({"ended": os.waitstatus_to_exitcode(status), "reached": reached}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
