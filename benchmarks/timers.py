"""One million timers that are due at once: for how long do they hold commits back, and how many fire in a second?

    python benchmarks/timers.py [--timers N] [--json]

A lane in this process, with its ledger in memory and its function in a process of its own, gets N records, each of
which sets a timer of a key of its own, all for the same moment. Then the watermark passes it. Printed are the longest
time between two commits while they fire, and the rate; also in processor time of this process, because other work on
the machine counts against the former. Exit code 1 when commits were held back for more than 100 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import uvloop

from millstream.clock import SystemClock
from millstream.frame import frame_of_records
from millstream.garbage import freeze_what_stays
from millstream.record import Record
from millstream.spec.protocols import FunctionKind
from millstream.udf.function import open_local_function
from millstream.udf.protocol import StreamName
from millstream.udf.sidecar import SidecarSpec, python_command
from tests.support.ledgers import SettableClock
from tests.unit.vertex.keyed.keyed_stream import KeyedStream
from tests.unit.vertex.keyed.test_timer_lane import owned
from tests.unit.vertex.lane_rig import open_rig

HELD_BACK_MAX_S = 0.1
DUE_US = 1_000_000
FRAME_RECORDS = 4096


FUNCTION = """\
import millstream_udf as udf


@udf.map
class Setting:
    def process(self, record: udf.Record) -> None:
        udf.timer("due", at=1_000_000)

    def on_timer(self, timer: udf.Timer) -> bytes:
        return b"fired"
"""


@asynccontextmanager
async def open_stream() -> AsyncIterator[KeyedStream]:
    """A stream to the function."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "setting.py"
        path.write_text(FUNCTION)
        spec = SidecarSpec(python_command(f"{path}:Setting"), "udf", "p", "map")
        async with (
            open_local_function(spec, log=lambda _, line: print(line, file=sys.stderr)) as function,
            function.open_map(FunctionKind.MAP, StreamName("p", "map", "in-map.0", 0)) as stream,
        ):
            yield cast("KeyedStream", stream)


async def measure(timers: int) -> dict[str, Any]:
    """Set so many timers, let them fire, and return what was measured."""
    async with (
        open_rig(hard_frames_max=1 << 40) as rig,
        open_stream() as stream,
        owned(rig, stream, cast("SettableClock", SystemClock()), size_max=1 << 40) as lane,
        asyncio.TaskGroup() as tasks,
    ):
        commits: list[tuple[float, float, int]] = []
        committed = lane._committed

        async def noted(units: Any) -> None:
            commits.append((time.monotonic(), time.process_time(), sum(unit.account.timers for unit in units)))
            await committed(units)

        lane._committed = noted  # type: ignore[method-assign]  # only to see when
        running = tasks.create_task(lane.run())
        for first in range(0, timers, FRAME_RECORDS):
            numbers = range(first, min(timers, first + FRAME_RECORDS))
            frame = frame_of_records([Record(b"", 1, (f"key-{number}",)) for number in numbers], ingest_time_us=0)
            await rig.feed(frame, watermark_us=1)
        while lane.core.committer.mark.account.inputs < timers:  # noqa: ASYNC110 - a mark has no event
            await asyncio.sleep(0.05)
        commits.clear()
        began = time.monotonic(), time.process_time()
        await rig.tell(DUE_US)
        while lane.core.committer.mark.account.timers < timers:  # noqa: ASYNC110 - a mark has no event
            await asyncio.sleep(0.05)
        running.cancel()
    times = [began, *(commit[:2] for commit in commits if commit[2])]
    return {
        "timers": timers,
        "held_back_max_s": round(max(after[0] - before[0] for before, after in pairwise(times)), 4),
        "held_back_processor_max_s": round(max(after[1] - before[1] for before, after in pairwise(times)), 4),
        "timers_per_s": round(timers / (times[-1][0] - began[0])),
        "timers_per_processor_s": round(timers / (times[-1][1] - began[1])),
        "commits": len(times) - 1,
        "rss_max_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timers", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    # As a worker does.
    freeze_what_stays()
    found = uvloop.run(measure(options.timers))
    if options.json:
        print(json.dumps(found))
    else:
        held_back_ms, of_processor_ms = found["held_back_max_s"] * 1e3, found["held_back_processor_max_s"] * 1e3
        print(
            f"{found['timers']:,} timers due at once: commits held back for at most {held_back_ms:.0f} ms "
            f"({of_processor_ms:.0f} of processor time), {found['timers_per_s']:,} fired per second "
            f"({found['timers_per_processor_s']:,} of processor time) in {found['commits']:,} commits; "
            f"{found['rss_max_mib']:,} MiB of memory"
        )
    return int(found["held_back_max_s"] > HELD_BACK_MAX_S)


if __name__ == "__main__":
    sys.exit(main())
