"""Where the demo's time goes: wall and processor seconds, processes and memory of it, and when each vertex ran.

    python benchmarks/demo_cost.py
    python benchmarks/compare.py --base REV --times 3 -- benchmarks/demo_cost.py

Runs the pipeline of `examples/flights` with `millstream run`, as `make demo` does, on the input that it prepares, in a
directory of its own. The results are not compared here: `make demo` does. What is said of a process is what the system
says of it, taken four times a second, so the last quarter of a second of each is missing; the total is not. Memory is
PSS: what several processes share counts once. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from millstream.ports import free_ports
from millstream_runner.chaos.processes import processes_of

ROOT = Path(__file__).resolve().parent.parent
FLIGHTS = ROOT / "examples" / "flights"
MIB = 1024 * 1024
_LOOK_S = 0.25
_MEMORY_LOOKS = 4
"""Looks for each one at the memory, which costs the processes that are looked at."""
_PORTS = 8
_HAND_OVERS = re.compile(r'^millstream_hand_over(s|_windows)_total{.*?\bvertex="([^"]+)".*} (\S+)$', re.MULTILINE)


@dataclass(slots=True)
class Seen:
    """What was seen of a run."""

    seconds: dict[int, tuple[str, float]] = field(default_factory=dict)
    """By process id: what it is, and its processor seconds so far."""
    pss: dict[str, int] = field(default_factory=dict)
    """The most of each process, bytes."""
    pss_all: int = 0
    """The most of all together."""
    pss_then: dict[str, int] = field(default_factory=dict)
    """What each process had at that moment."""
    highest_s: float = 0.0
    """That moment, seconds from the start."""
    processes: int = 0
    """The most at a time."""
    ran: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By vertex: when the first and the last records were done, seconds from the start."""
    counts: dict[str, int] = field(default_factory=dict)
    hand_overs: dict[str, dict[str, float]] = field(default_factory=dict)
    """By reduce: hand-overs and windows in them."""

    def look(self, runner: int, data: Path, port: int, at_s: float, *, memory: bool) -> None:
        """Take it all in."""
        found = processes_of(runner)
        every = [psutil.Process(runner), *psutil.Process(runner).children(recursive=True)]
        names = {one.process.pid: one.name for one in found}
        self.processes = max(self.processes, len(every))
        pss_all, now = 0, dict[str, int]()
        for process in every:
            with suppress(psutil.Error, OSError):
                times = process.cpu_times()
                name = names.get(process.pid, process.name())
                self.seconds[process.pid] = name, times.user + times.system
                if memory:
                    pss = _pss(process.pid)
                    pss_all += pss
                    now[name] = now.get(name, 0) + pss
                    self.pss[name] = max(pss, self.pss.get(name, 0))
        if memory and pss_all > self.pss_all:
            self.pss_all, self.pss_then, self.highest_s = pss_all, now, at_s
        with suppress(OSError, ValueError, KeyError):
            for one in json.loads((data / "status.json").read_text())["vertices"]:
                name, count = one["vertex"], one["records"]
                if count != self.counts.get(name, 0):
                    self.ran[name] = self.ran.get(name, (at_s, at_s))[0], at_s
                    self.counts[name] = count
        if memory:
            for number in range(_PORTS):
                with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port + number}/metrics") as answer:
                    for what, vertex, value in _HAND_OVERS.findall(answer.read().decode()):
                        self.hand_overs.setdefault(vertex, {})[what] = float(value)


def _pss(pid: int) -> int:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) * 1024


def run(directory: Path, workers: int | None) -> dict[str, Any]:
    """The figures of one run, whose outputs go into `directory`."""
    (directory / "data").symlink_to(FLIGHTS / "data")
    for name in ("pipeline.yaml", "steps.py"):
        (directory / name).write_bytes((FLIGHTS / name).read_bytes())
    port = free_ports(_PORTS)
    command = [sys.executable, "-m", "millstream_runner", "run", "--fresh", "--data-dir", "state", "pipeline.yaml"]
    command += ["--metrics-port-base", str(port), *(["--workers", str(workers)] if workers else [])]
    seen, looks = Seen(), 0
    before, begun_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with (directory / "output").open("wb") as output:
        started = subprocess.Popen(command, cwd=directory, stdout=output, stderr=subprocess.STDOUT)
        while started.poll() is None:
            with suppress(psutil.Error):
                at_s = time.monotonic() - begun_s
                seen.look(started.pid, directory / "state", port, at_s, memory=looks % _MEMORY_LOOKS == 0)
            looks += 1
            with suppress(subprocess.TimeoutExpired):
                started.wait(_LOOK_S)
    wall_s, after = time.monotonic() - begun_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    if started.returncode:
        sys.exit((directory / "output").read_text()[-4000:])
    of_process: dict[str, float] = {}
    for name, seconds in seen.seconds.values():
        of_process[name] = of_process.get(name, 0.0) + seconds
    return {
        "wall s": wall_s,
        "processor s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "processes": seen.processes,
        "pss MiB": seen.pss_all / MIB,
        "of process": dict(sorted(of_process.items())),
        "pss of process": {name: pss / MIB for name, pss in sorted(seen.pss.items())},
        "highest s": seen.highest_s,
        "pss of process then": {name: pss / MIB for name, pss in sorted(seen.pss_then.items())},
        "ran": seen.ran,
        "hand-overs": seen.hand_overs,
    }


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The same, for people."""
    yield (
        f"{found['wall s']:.1f} s, {found['processor s']:.1f} processor s, at most {found['processes']} processes and "
        f"{found['pss MiB']:,.0f} MiB, {found['highest s']:.1f} s after the start. Each process: its own most, and then"
    )
    for name, seconds in found["of process"].items():
        then = found["pss of process then"].get(name, 0.0)
        yield f"  {seconds:6.2f} processor s {found['pss of process'].get(name, 0.0):7.0f} MiB {then:7.0f} MiB  {name}"
    for name, (first, last) in sorted(found["ran"].items(), key=lambda one: one[1]):
        yield f"  {name:<12} from {first:5.1f} s to {last:5.1f} s"
    for name, counts in sorted(found["hand-overs"].items()):
        yield f"  {name:<12} {counts.get('s', 0):,.0f} hand-overs of {counts.get('_windows', 0):,.0f} windows"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, help="default: what `millstream run` takes by itself")
    parser.add_argument("--keep", type=Path, help="a directory to run in, which is kept")
    options = parser.parse_args()
    print(f"load before: {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors", flush=True)
    subprocess.run([sys.executable, "-c", "import demo; demo.prepare()"], cwd=FLIGHTS, check=True)
    if options.keep is not None:
        options.keep.mkdir(parents=True)
        found = run(options.keep, options.workers)
    else:
        with tempfile.TemporaryDirectory(prefix="millstream-demo-") as name:
            found = run(Path(name), options.workers)
    print("\n".join(lines(found)), flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
