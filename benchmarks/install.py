"""What an installation from the built wheels takes: download, disk, processor time, and the time to a first result.

    python benchmarks/install.py [--dist DIR] [--extra reduce] [--json]

Builds both wheels as `make dist` does (or takes those in `--dist`), installs them with pip into a new environment,
makes a pipeline with `millstream init` and runs it. Packages come from wherever pip takes them, its cache included, so
the seconds are those of this machine and network; bytes and processor time are not. Everything is removed again.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools import dist

_MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Step:
    """One command."""

    what: str
    seconds: float
    cpu_s: float
    """Of it and the processes it started."""


def timed(what: str, *command: str, cwd: Path | None = None) -> Step:
    """Run a command that has to succeed."""
    begun_s, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{what}: {' '.join(command)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Step(what, round(time.monotonic() - begun_s, 1), round(used_s, 1))


def size_bytes(directory: Path) -> int:
    """Of all files, each counted once."""
    found = {}
    for folder, _, names in os.walk(directory):
        for name in names:
            status = os.lstat(os.path.join(folder, name))
            found[status.st_ino] = status.st_size
    return sum(found.values())


def measure(wheels: Path, extras: str, place: Path) -> tuple[list[Step], dict[str, int]]:
    """Install from the wheels in a directory. Steps, and sizes in bytes."""
    environment = place / "venv"
    steps = [timed("python -m venv", sys.executable, "-m", "venv", str(environment))]
    empty = size_bytes(environment)
    pip = str(environment / "bin" / "pip")
    (ours,) = wheels.glob("millstream-*.whl")
    (sdk,) = wheels.glob("millstream_udf-*.whl")
    wanted = f"{ours}[{extras}]" if extras else str(ours)
    quiet = ("--quiet", "--disable-pip-version-check")
    steps.append(timed("pip install", pip, "install", *quiet, str(sdk), wanted))
    installed = size_bytes(environment) - empty
    millstream = str(environment / "bin" / "millstream")
    steps.append(timed("millstream init", millstream, "init", "hello", cwd=place))
    steps.append(timed("millstream run", millstream, "run", "pipeline.yaml", cwd=place / "hello"))
    return steps, {"wheels": ours.stat().st_size + sdk.stat().st_size, "installed": installed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", type=Path, metavar="DIR", help="wheels that were built before")
    parser.add_argument("--extra", action="append", default=[], metavar="NAME", help="may be given several times")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="millstream-install-") as name:
        place = Path(name)
        steps: list[Step] = []
        wheels: Path | None = arguments.dist
        if wheels is None:
            wheels = place / "dist"
            begun_s = time.monotonic()
            dist.build(wheels)
            steps.append(Step("make dist", round(time.monotonic() - begun_s, 1), 0.0))
        found, sizes = measure(wheels, ",".join(arguments.extra), place)
        steps += found
    if arguments.json:
        print(json.dumps({"extras": arguments.extra, "steps": [asdict(step) for step in steps], "bytes": sizes}))
        return
    for step in steps:
        used = f"{step.cpu_s:6.1f} s of processor time" if step.cpu_s else ""
        print(f"{step.what:<16} {step.seconds:6.1f} s  {used}".rstrip())
    print(
        f"both wheels {sizes['wheels'] / _MB:.1f} MB; installed with what they need {sizes['installed'] / _MB:.0f} MB"
    )


if __name__ == "__main__":
    main()
