"""What a pipeline takes of the processors while it has little or nothing to do, and how late its records are.

    python benchmarks/low_rates.py                         # 1,000 records/s through three vertices; 14 idle ones
    python benchmarks/low_rates.py --only rate --rate 100 --seconds 60
    python benchmarks/low_rates.py --only rate --buffers   # with a buffer between the source and the map, too
    python benchmarks/low_rates.py --only rate --rate 100000 --chain 4   # four maps in a chain instead of one map
    python benchmarks/compare.py --base REV --times 3 -- benchmarks/low_rates.py --only rate

Starts `millstream run`, lets it come to rest, and reads what the system says of each process at the beginning and at
the end of a stretch: processor seconds for a second of time, in percent of one processor, which hardly depend on what
else the machine has to do. Latencies are those of the sink's histogram, from the time that a record was due to its
delivery; they do depend on the machine. The histogram counts frames by their oldest record. The latency of records is
computed from it: the records of a frame were due at equal intervals, and frames have the same number of them. The last
line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from millstream.errors import RetryLaterError
from millstream.ports import free_ports
from millstream_runner.bench.latency import LatencyCounts, scrape_latency

_START_LIMIT_S = 300.0
_WARM_UP_S = 10.0
"""From the moment that all is started."""
_HEAD = "apiVersion: millstream.io/v1alpha1\nkind: Pipeline\nmetadata: {name: low}\nspec:\n  vertices:\n"
_FUNCTION = "def process(value):\n    return value\n"
_BRANCHES = 6
_SAMPLES = 500
"""Frames of which the latency of records is computed."""


def three_vertices(rate: int, chain: int, *, buffers: bool) -> str:
    """Generator, a Python function that gives back what it gets, or several of them in a chain, and blackhole.
    `buffers`: the source is not part of the chain."""
    maps = [f"map{number}" for number in range(chain)]
    return _HEAD + "".join((
        f"    - {{name: in, source: {{generator: {{rpu: {rate}, msgSize: 100}}}}}}\n",
        *(f'    - {{name: {name}, udf: {{python: "identity.py:process"}}}}\n' for name in maps),
        "    - {name: out, sink: {blackhole: {}}}\n",
        f"  edges:\n    - {{from: in, to: {maps[0]}, chain: {json.dumps(not buffers)}}}\n",
        f"    - {{from: {maps[-1]}, to: out}}\n",
        *(f"    - {{from: {one}, to: {other}, chain: true}}\n" for one, other in pairwise(maps)),
    ))  # fmt: skip


def idle_vertices() -> str:
    """A source without requests, a Python function, and six branches of a built-in map and a sink: 14 vertices."""
    vertices = ["{name: in, source: {http: {port: 0}}}", '{name: map, udf: {python: "identity.py:process"}}']
    edges = ["{from: in, to: map}"]
    for number in range(_BRANCHES):
        vertices.append(f"{{name: cat{number}, udf: {{builtin: {{name: cat}}}}}}")
        vertices.append(f"{{name: out{number}, sink: {{blackhole: {{}}}}}}")
        edges += [f"{{from: map, to: cat{number}}}", f"{{from: cat{number}, to: out{number}}}"]
    return _HEAD + "\n".join(
        [*(f"    - {item}" for item in vertices), "  edges:", *(f"    - {item}" for item in edges), ""]
    )


@asynccontextmanager
async def running(text: str, metrics_port: int, workers: int | None) -> AsyncIterator[tuple[int, Path]]:
    """A run of a pipeline: its runner and its data directory."""
    with tempfile.TemporaryDirectory(prefix="millstream-low-") as place:
        directory = Path(place)
        (directory / "pipeline.yaml").write_text(text)
        (directory / "identity.py").write_text(_FUNCTION)
        options = ["--metrics-port-base", str(metrics_port), *(["--workers", str(workers)] if workers else [])]
        run = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "millstream_runner", "run", "pipeline.yaml", "--quiet", *options, cwd=directory
        )
        try:
            yield run.pid, directory / ".millstream" / "low"
        finally:
            with suppress(ProcessLookupError):
                run.send_signal(signal.SIGINT)
            await run.wait()


async def until_started(data: Path) -> None:
    """Returns when every vertex runs."""
    async with asyncio.timeout(_START_LIMIT_S):
        while True:  # another process makes it true
            with suppress(FileNotFoundError, KeyError, ValueError):
                status = json.loads((data / "status.json").read_text())
                if status["state"] == "running" and all(text == "running" for text in status["states"].values()):
                    return
            await asyncio.sleep(0.1)


def taken(runner: int, data: Path) -> dict[str, float]:
    """Processor seconds of the processes of a run since their start, by name; functions apart from their worker."""
    runtime = json.loads((data / "runtime.json").read_text())
    names = {process["identity"]["pid"]: process["name"] for process in runtime["processes"]} | {runner: "runner"}
    seconds: dict[str, float] = {}
    for process in [psutil.Process(runner), *psutil.Process(runner).children(recursive=True)]:
        with suppress(psutil.Error):
            times = process.cpu_times()
            name = names.get(process.pid, "functions")
            seconds[name] = seconds.get(name, 0.0) + times.user + times.system
    return seconds


async def measure(text: str, seconds: float, workers: int | None, sink: str | None, rate: int = 1) -> Any:
    """Percent of a processor for each process, and latencies at `sink` in milliseconds, at `rate` records a second."""
    port = free_ports(16)
    async with running(text, port, workers) as (runner, data):
        await until_started(data)
        await asyncio.sleep(_WARM_UP_S)
        observed_by = _port_of(data, sink) if sink is not None else None
        before = await scrape_latency(observed_by) if observed_by is not None else None
        begun, begun_s = taken(runner, data), asyncio.get_running_loop().time()
        await asyncio.sleep(seconds)
        ended, passed_s = taken(runner, data), asyncio.get_running_loop().time() - begun_s
        shares = {name: 100 * (ended[name] - begun.get(name, 0.0)) / passed_s for name in sorted(ended)}
        found: dict[str, Any] = {"percent": {**shares, "all": sum(shares.values())}}
        if observed_by is not None and before is not None:
            with suppress(RetryLaterError):
                counts = (await scrape_latency(observed_by)).since(before)
                found["latency_ms"] = {
                    f"p{100 * share:.0f}": (counts.quantile_s(share) or 0.0) * 1000 for share in (0.5, 0.99)
                }
                found["frames_per_s"] = counts.total / passed_s
                spread_s = max(0.0, passed_s / max(1, counts.total) - 1 / rate)
                found["record_latency_ms"] = {
                    f"p{100 * share:.0f}": record_quantile_s(counts, share, spread_s) * 1000 for share in (0.5, 0.99)
                }
        return found


def record_quantile_s(counts: LatencyCounts, share: float, spread_s: float) -> float:
    """The latency that this share of the records did not exceed, where the oldest record of a frame was due `spread_s`
    before its newest."""
    frames = [counts.quantile_s((number + 0.5) / _SAMPLES) or 0.0 for number in range(_SAMPLES)]
    records = sorted(max(0.0, oldest_s - spread_s * step / 10) for oldest_s in frames for step in range(11))
    return records[min(len(records) - 1, int(share * len(records)))]


def _port_of(data: Path, replica: str) -> int:
    """Of the metrics of the worker that runs a replica."""
    processes = json.loads((data / "runtime.json").read_text())["processes"]
    return next(int(one["metrics_port"]) for one in processes if replica in one["replicas"])


def lines(title: str, found: Mapping[str, Any]) -> list[str]:
    shares = ", ".join(f"{name} {share:.2f}" for name, share in found["percent"].items())
    found_lines = [f"{title}: percent of a processor: {shares}"]
    for key, what in (("latency_ms", "frames, by their oldest record"), ("record_latency_ms", "records")):
        if key in found:
            late = ", ".join(f"{name} {value:.1f} ms" for name, value in found[key].items())
            found_lines.append(f"  latency of {what}: {late}")
    if "frames_per_s" in found:
        found_lines.append(f"  {found['frames_per_s']:.0f} frames/s")
    return found_lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["rate", "idle"])
    parser.add_argument("--rate", type=int, default=1000, help="records a second (default: 1000)")
    parser.add_argument("--chain", type=int, default=1, help="maps, joined in a chain (default: 1)")
    parser.add_argument("--buffers", action="store_true", help="a buffer between the source and the first map")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long each is looked at (default: 30)")
    parser.add_argument("--workers", type=int, help="default: what `millstream run` takes by itself")
    options = parser.parse_args()
    print(f"load before: {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors", flush=True)
    found = {}
    if options.only != "idle":
        text = three_vertices(options.rate, options.chain, buffers=options.buffers)
        found["rate"] = asyncio.run(measure(text, options.seconds, options.workers, "out-0", options.rate))
        print("\n".join(lines(f"{options.rate} records/s", found["rate"])), flush=True)
    if options.only != "rate":
        found["idle"] = asyncio.run(measure(idle_vertices(), options.seconds, options.workers, None))
        print("\n".join(lines("14 idle vertices", found["idle"])), flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
