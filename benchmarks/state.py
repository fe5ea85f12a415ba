"""What remembering costs a pipeline: its rate and its latency with state, as a share of those without.

    python benchmarks/state.py [--rounds 2] [--records 3000000] [--keys 100000] [--seconds 30]
    python benchmarks/state.py --only rate

`millstream bench` in turns: without keys, with keys, and with keys and a function that gets and puts a value of 100
bytes for the key of each record. Rates are at full speed, latencies at 1,000 records a second. The figures of the
rounds are printed with their medians, and the ratios of these. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from typing import Any

KINDS = ("plain", "keyed", "state")
"""Without keys, with keys, and with what is remembered for them."""


def bench(action: str, kind: str, keys: int, *options: str) -> dict[str, Any]:
    """What `millstream bench` measures."""
    command = [sys.executable, "-m", "millstream_runner", "bench", action, "-o", "json", *options]
    if kind != "plain":
        command += ["--keys", str(keys)]
    if kind == "state":
        command.append("--state")
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.exit(ended.stderr)
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def rates(options: argparse.Namespace) -> dict[str, Any]:
    """Records per second of each kind."""
    found: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for _ in range(options.rounds):
        for kind in KINDS:
            records = options.records if kind == "state" else 2 * options.records
            measured = bench("map", kind, options.keys, "--records", str(records), *options.more)
            found[kind].append(measured["records_per_s"])
            shares = ", ".join(f"{name} {use['cpu_share']:.0%}" for name, use in measured["processes"].items())
            print(f"rate     {kind:6} {measured['records_per_s']:>10,} records/s; {shares}", flush=True)
    medians = {kind: statistics.median(each) for kind, each in found.items()}
    print(f"rate     with state {medians['state'] / medians['plain']:.0%} of that without keys, ", end="")
    print(f"{medians['state'] / medians['keyed']:.0%} of that with keys", flush=True)
    return {"rate": found}


def latencies(options: argparse.Namespace) -> dict[str, Any]:
    """p50 and p99 in milliseconds of each kind."""
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS[1:]}
    for _ in range(options.rounds):
        for kind, each in found.items():
            measured = bench("latency", kind, options.keys, "--seconds", str(options.seconds), *options.more)
            each.append(measured["latency_ms"])
            print(f"latency  {kind:6} p50 {each[-1]['p50']} ms, p99 {each[-1]['p99']} ms", flush=True)
    ratios = [
        f"{name} {statistics.median(one[name] for one in found['state']):.2f} ms,"
        f" {_ratio(found, name):.2f} times that without"
        for name in ("p50", "p99")
    ]
    print(f"latency  with state {'; '.join(ratios)}", flush=True)
    return {"latency_ms": found}


def _ratio(found: dict[str, list[dict[str, float]]], name: str) -> float:
    medians = {kind: statistics.median(one[name] for one in each) for kind, each in found.items()}
    return medians["state"] / medians["keyed"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--records", type=int, default=3_000_000, help="with state; twice as many without")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--only", choices=("rate", "latency"))
    parser.add_argument("more", nargs="*", help="options of `millstream bench`, after --")
    options = parser.parse_args()
    print(f"load before: {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors", flush=True)
    found: dict[str, Any] = {"benchmark": "state"}
    if options.only != "latency":
        found |= rates(options)
    if options.only != "rate":
        found |= latencies(options)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
