"""A sink whose target stops answering for a minute under full rate: what becomes of the records, the disk, the rate?

    python benchmarks/backpressure.py [--blocked S] [--warm-up S] [--buffer RECORDS] [--json]

Generator without a limit, a Python function, an HTTP sink. Its target is stopped (SIGSTOP: the connection stays,
answers do not come) and goes on later. Wanted, or the exit code is 1:
  * while it stands, the source stops, and the disk takes no more than the buffers may hold, and does not grow;
  * within 5 s after it goes on, source and sink both run at 90 % of their rate before, over two seconds;
  * at the end the account balances, and the target has every number that was made, each once and in order.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
from observed_run import MIB, ObservedRun, Sample, machine, mib, open_run, raw_limit

from millstream import codes
from millstream.errors import MillstreamError

RECORD_BYTES = 100
RECORD_DISK_BYTES = RECORD_BYTES + 28
"""With the columns beside its value."""
RATE_SHARE_MIN = 0.9
RECOVERY_MAX_S = 5.0
RATE_WINDOW_S = 2.0
STEP_S = 0.1
DISK_SLACK_BYTES = 2 * 64 * MIB
"""Beside what buffers may hold: what each vertex has in flight over its soft bound, and what is trimmed later."""
GROWTH_BYTES_MAX = 4 * MIB
"""Of the disk, over the second half of the block: logs and watermarks."""

PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {{name: backpressure}}
spec:
  limits: {{bufferMaxLength: {buffer}}}
  vertices:
    - name: in
      source: {{generator: {{rpu: 0, msgSize: {size}}}}}
    - name: map
      udf: {{python: "identity.py:process"}}
    - name: out
      sink:
        http: {{url: "http://127.0.0.1:{port}/", batch: {{maxRecords: 4096}}, timeout: 5s}}
        # However long a target is away, it is tried again this soon.
        retryStrategy: {{backoff: {{cap: 1s}}}}
  edges:
    - {{from: in, to: map}}
    - {{from: map, to: out}}
"""
FUNCTION = "def process(value: bytes) -> bytes:\n    return value\n"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run showed."""

    rates_before: dict[str, float]
    """Records per second of source and sink."""
    seconds_to_full_rate: dict[str, float | None]
    """From the moment the target goes on; None when it was not seen."""
    source_stopped_s: float
    """From the moment the target stands to the source's last record; the whole time when it never stopped."""
    disk_before: int
    disk_max: int
    disk_growth: int
    """Over the second half of the block."""
    records: int
    """Numbers made."""
    target: dict[str, int]
    balanced: bool


def faults_of(outcome: Outcome, blocked_s: float, disk_allowed: int) -> list[str]:
    """What is not as it should be. Pure."""
    found = []
    if not outcome.balanced:
        found.append("the account does not balance")
    if outcome.target["numbers"] != outcome.records or outcome.target["faults"]:
        found.append(f"{outcome.records:,} numbers were made, and the target has {outcome.target}")
    if outcome.source_stopped_s > blocked_s / 2:
        found.append("the source did not stop")
    if outcome.disk_max > disk_allowed:
        found.append(f"the disk took {mib(outcome.disk_max)}, and at most {mib(disk_allowed)} were allowed")
    if outcome.disk_growth > GROWTH_BYTES_MAX:
        found.append(f"the disk still grew by {mib(outcome.disk_growth)} while the source stood")
    for vertex, seconds in outcome.seconds_to_full_rate.items():
        if seconds is None or seconds > RECOVERY_MAX_S:
            found.append(f"vertex {vertex} was not at full rate within {RECOVERY_MAX_S:.0f} s")
    return found


@asynccontextmanager
async def open_target(directory: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """A target's process, and its port."""
    port_file = directory / "port"
    script = Path(__file__).with_name("http_target.py")
    process = await asyncio.create_subprocess_exec(sys.executable, str(script), str(port_file))
    try:
        async with asyncio.timeout(30):
            while not port_file.exists():
                if process.returncode is not None:
                    raise MillstreamError(codes.EXPERIMENT_FAILED, "the target did not start")
                await asyncio.sleep(0.02)
        yield process, int(port_file.read_text())
    finally:
        # Killed also while it stands.
        if process.returncode is None:
            process.kill()
        await process.wait()


def seconds_to(run: ObservedRun, vertex: str, rate: float, from_s: float, to_s: float) -> float | None:
    """When a vertex first ran at `rate` over the window, in seconds after `from_s`."""
    steps = int((to_s - from_s - RATE_WINDOW_S) / STEP_S)
    for step in range(steps + 1):
        begin_s = from_s + step * STEP_S
        if run.records_per_s(vertex, begin_s, begin_s + RATE_WINDOW_S) >= rate:
            return round(step * STEP_S, 1)
    return None


async def measure(directory: Path, blocked_s: float, warm_up_s: float, buffer: int) -> Outcome:
    """One run."""
    during: list[Sample] = []
    async with open_target(directory) as (target, port):
        pipeline = PIPELINE.format(size=RECORD_BYTES, port=port, buffer=buffer)
        async with open_run(directory, {"pipeline.yaml": pipeline, "identity.py": FUNCTION}) as run:
            await run.until(lambda: run.records("out") > 0, "a record at the sink")
            # The buffers get as full as they will be; only then the rate is one of all vertices together.
            await run.watch(warm_up_s, lambda sample: None)
            began_s = run.now_s()
            await run.watch(warm_up_s, lambda sample: None)
            stopped_s = run.now_s()
            before = {vertex: run.records_per_s(vertex, began_s, stopped_s) for vertex in ("in", "out")}
            disk_before = run.sample().disk_bytes
            target.send_signal(signal.SIGSTOP)
            await run.watch(blocked_s, during.append, min(1.0, blocked_s / 10))
            on_s = run.now_s()
            last_s = run.last_count_s("in")
            target.send_signal(signal.SIGCONT)
            await run.watch(RECOVERY_MAX_S + 2 * RATE_WINDOW_S, lambda sample: None)
            now_s = run.now_s()
            reached = {
                vertex: seconds_to(run, vertex, RATE_SHARE_MIN * rate, on_s, now_s) for vertex, rate in before.items()
            }
            ended = await run.stop()
        numbers = await ask(port)
    half = during[len(during) // 2 :]
    return Outcome(
        rates_before=before,
        seconds_to_full_rate=reached,
        source_stopped_s=max(0.0, last_s - stopped_s),
        disk_before=disk_before,
        disk_max=max(sample.disk_bytes for sample in during),
        disk_growth=half[-1].disk_bytes - half[0].disk_bytes,
        records=ended.records.get("in", 0),
        target=numbers,
        balanced=ended.balanced,
    )


async def ask(port: int) -> dict[str, int]:
    """What the target has."""
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/") as answer:
        numbers: dict[str, int] = await answer.json()
        return numbers


def lines_of(outcome: Outcome, blocked_s: float, raw: float, faults: Sequence[str]) -> list[str]:
    """For people."""
    rates = outcome.rates_before
    after = {
        vertex: "not seen" if seconds is None else f"{seconds:.1f} s"
        for vertex, seconds in outcome.seconds_to_full_rate.items()
    }
    blocked = (
        f"blocked: {blocked_s:g} s; the source stopped after {outcome.source_stopped_s:.1f} s; disk "
        f"{mib(outcome.disk_before)} before, {mib(outcome.disk_max)} at most, "
        f"{outcome.disk_growth / MIB:+.1f} MiB over the second half"
    )
    in_all = (
        f"in all:  {outcome.records:,} numbers made, {outcome.target['numbers']:,} in the target once and in order, "
        f"{outcome.target['again']} requests again, account {'balanced' if outcome.balanced else 'NOT BALANCED'}"
    )
    return [
        f"before:  source {rates['in']:,.0f}, sink {rates['out']:,.0f} records/s; the broker alone: {raw:,.0f}",
        blocked,
        f"after:   {RATE_SHARE_MIN:.0%} of the rate again after: source {after['in']}, sink {after['out']}",
        in_all,
        *(f"FAILED:  {fault}" for fault in faults),
    ]


def as_json(outcome: Outcome, raw: float, faults: Sequence[str]) -> dict[str, Any]:
    return {
        "records_per_s_before": {vertex: round(rate) for vertex, rate in outcome.rates_before.items()},
        "seconds_to_full_rate": outcome.seconds_to_full_rate,
        "source_stopped_s": round(outcome.source_stopped_s, 2),
        "disk_mib_max": round(outcome.disk_max / MIB, 1),
        "records": outcome.records,
        "target": outcome.target,
        "balanced": outcome.balanced,
        "raw_limit_records_per_s": round(raw),
        "faults": list(faults),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocked", type=float, default=60.0, help="seconds (60)")
    parser.add_argument("--warm-up", type=float, default=15.0, help="seconds until the rate before is measured (15)")
    parser.add_argument("--buffer", type=int, default=1_000_000, help="records in each buffer (1,000,000)")
    parser.add_argument("--json", action="store_true", help="one object on the last line")
    options = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory(prefix="millstream-backpressure-") as directory:
        path = Path(directory)
        try:
            outcome = uvloop.run(measure(path, options.blocked, options.warm_up, options.buffer))
        except (MillstreamError, ExceptionGroup) as error:
            print(error, file=sys.stderr)
            return 1
        raw = uvloop.run(raw_limit(path, RECORD_BYTES))
    faults = faults_of(outcome, options.blocked, 2 * options.buffer * RECORD_DISK_BYTES + DISK_SLACK_BYTES)
    print("\n".join(lines_of(outcome, options.blocked, raw, faults)))
    if options.json:
        print(json.dumps(as_json(outcome, raw, faults)))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
