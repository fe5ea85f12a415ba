"""A function that waits 20 ms a record, 500 records in flight: does the pipeline keep it busy?

    python benchmarks/slow_udf.py [--seconds S] [--delay-ms MS] [--in-flight N] [--json]

A generator without a limit feeds a map whose function sleeps, as it would for another service's answer. The function
alone could do `in flight / delay` records a second; the pipeline must reach 90 % of that with its memory bounded. Exit
code 1 when it does not. Beside it stands what an event loop that does nothing but wait reaches on this machine in the
same minute: a timer that fires late, because others had the processor, counts against both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import uvloop
from observed_run import MIB, Sample, machine, mib, open_run, raw_limit

from millstream import codes
from millstream.errors import MillstreamError

RECORD_BYTES = 100
SHARE_MIN = 0.9
"""Of the theoretical rate."""
RSS_BYTES_MAX = 300 * MIB
"""No process may take more: a lane's 64 MiB in flight, read ahead and in copies, and the interpreter."""
WARM_UP_S = 5.0

PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {{name: slow}}
spec:
  vertices:
    - name: in
      source: {{generator: {{rpu: 0, msgSize: {size}}}}}
    - name: map
      udf: {{python: "slow.py:process", concurrency: {in_flight}}}
      # The other limits are the defaults; a buffer of two minutes' records is full soon.
      limits: {{bufferMaxLength: {buffer}}}
    - name: out
      sink: {{blackhole: {{}}}}
  edges:
    - {{from: in, to: map}}
    - {{from: map, to: out}}
"""
FUNCTION = """\
import asyncio


async def process(value: bytes) -> bytes:
    await asyncio.sleep({delay_s})
    return value
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run showed."""

    records_per_s: float
    limit_records_per_s: float
    rss_bytes_max: Mapping[str, int]

    @property
    def share(self) -> float:
        return self.records_per_s / self.limit_records_per_s

    @property
    def sound(self) -> bool:
        return self.share >= SHARE_MIN and max(self.rss_bytes_max.values()) <= RSS_BYTES_MAX


async def measure(directory: Path, seconds: float, delay_s: float, in_flight: int) -> Outcome:
    """Run it for `seconds` after a warm-up, and stop it. Nothing waits for the buffers to drain: they hold minutes."""
    limit = in_flight / delay_s
    pipeline = PIPELINE.format(size=RECORD_BYTES, in_flight=in_flight, buffer=round(limit) * 4)
    files = {"pipeline.yaml": pipeline, "slow.py": FUNCTION.format(delay_s=delay_s)}
    rss_max: dict[str, int] = {}

    def look(sample: Sample) -> None:
        for name, size in sample.rss_bytes.items():
            rss_max[name] = max(size, rss_max.get(name, 0))

    async with open_run(directory, files) as run:
        await run.until(lambda: run.records("map") > 0, "a record mapped")
        await run.watch(WARM_UP_S, look)
        began_s = run.now_s()
        await run.watch(seconds, look)
        rate = run.steady_records_per_s("map", began_s, run.now_s())
        ended = await run.stop()
        if not ended.balanced:
            raise MillstreamError(codes.EXPERIMENT_FAILED, f"the account does not balance\n{ended.output}")
    return Outcome(rate, limit, rss_max)


async def loop_alone(delay_s: float, in_flight: int, seconds: float = 5.0) -> float:
    """Waits per second of an event loop of which so many are in flight and which has nothing else to do."""
    waits = 0
    loop = asyncio.get_running_loop()
    began_s = loop.time()

    async def wait_again_and_again() -> None:
        nonlocal waits
        while loop.time() - began_s < seconds:
            await asyncio.sleep(delay_s)
            waits += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(wait_again_and_again())
    return waits / (loop.time() - began_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--delay-ms", type=float, default=20.0)
    parser.add_argument("--in-flight", type=int, default=500)
    parser.add_argument("--json", action="store_true", help="one object on the last line")
    options = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory(prefix="millstream-slow-") as directory:
        path = Path(directory)
        try:
            outcome = uvloop.run(measure(path, options.seconds, options.delay_ms / 1000, options.in_flight))
        except (MillstreamError, ExceptionGroup) as error:
            print(error, file=sys.stderr)
            return 1
        alone = uvloop.run(loop_alone(options.delay_ms / 1000, options.in_flight))
        raw = uvloop.run(raw_limit(path, RECORD_BYTES))
    limit = outcome.limit_records_per_s
    print(f"{options.in_flight} in flight at {options.delay_ms:g} ms: at most {limit:,.0f} records/s")
    print(f"the pipeline: {outcome.records_per_s:,.0f} records/s, {outcome.share:.1%} of it (wanted {SHARE_MIN:.0%})")
    print(f"an event loop that only waits: {alone:,.0f} a second, {alone / limit:.1%}")
    print(f"broker alone: {raw:,.0f} records/s of {RECORD_BYTES} bytes")
    for name, size in sorted(outcome.rss_bytes_max.items()):
        print(f"  {name:20} {mib(size):>12} at most")
    if options.json:
        print(
            json.dumps(
                {
                    "records_per_s": round(outcome.records_per_s),
                    "theoretical_records_per_s": round(limit),
                    "share": round(outcome.share, 4),
                    "loop_alone_per_s": round(alone),
                    "raw_limit_records_per_s": round(raw),
                    "rss_mib_max": {name: round(size / MIB, 1) for name, size in outcome.rss_bytes_max.items()},
                }
            )
        )
    return 0 if outcome.sound else 1


if __name__ == "__main__":
    sys.exit(main())
