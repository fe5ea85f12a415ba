"""Runs a command of this checkout and of another commit in turns, and compares wall time and processor time.

    python benchmarks/compare.py --base REV -- millstream bench map --records 2000000 -o json
    python benchmarks/compare.py --base REV --times 7 -- benchmarks/udf.py

The command is `millstream` with its arguments, or the arguments of Python. The other commit is checked out into a
temporary directory and runs with this environment's packages. What a JSON object
on the last line of the output says is compared number by number as well. A ratio above 1 means that this checkout
has more of it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
import venv
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
Figures = dict[str, float]


@contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """A directory with the files of a commit, removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="compare-") as name:
        directory = Path(name) / "base"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", directory, revision], cwd=ROOT, check=True)
        try:
            yield directory
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", directory], cwd=ROOT, check=True)


def add_compiled(directory: Path) -> None:
    """Compiles the columns of a checkout, as its own package does."""
    package = directory / "services/udf_sdk"
    if not (package / "millstream_udf/_columns.c").is_file():
        return
    with tempfile.TemporaryDirectory(prefix="compare-") as made:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
        environment = {**os.environ, "MILLSTREAM_COMPILED": "yes"}
        subprocess.run([*command, "--wheel-dir", made, package], env=environment, check=True)
        with zipfile.ZipFile(next(Path(made).glob("*.whl"))) as wheel:
            for name in wheel.namelist():
                if name.endswith(".so"):
                    wheel.extract(name, package)


def interpreter(directory: Path) -> Path:
    """A Python that imports the packages of `directory`, and everything else from the environment that runs this.
    Both sides get one, so that both start alike."""
    home = directory / ".compare"
    venv.create(home, symlinks=True)
    site = next((home / "lib").glob("python*/site-packages"))
    sources = [directory, *sorted(path for path in (directory / "services").iterdir() if path.is_dir())]
    sources += [path for path in (directory / "connectors",) if path.is_dir()]
    (site / "compare.pth").write_text("\n".join(map(str, [*sources, sysconfig.get_path("purelib")])) + "\n")
    # Programs of packages, such as the broker's, are looked for beside Python.
    for program in Path(sysconfig.get_path("scripts")).iterdir():
        if not (home / "bin" / program.name).exists():
            (home / "bin" / program.name).symlink_to(program)
    return home / "bin" / "python"


def python_arguments(directory: Path, command: Sequence[str]) -> list[str]:
    """`millstream` is what the checkout itself says it is: the module has had several names."""
    if command[0] != "millstream":
        return list(command)
    project = tomllib.loads((directory / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, function = project["scripts"]["millstream"].partition(":")
    return ["-c", f"import sys; from {module} import {function}; sys.exit({function}())", *command[1:]]


def run(python: Path, directory: Path, command: Sequence[str]) -> Figures:
    """What one run of the command took. Raises `SystemExit` with its output when it fails."""
    arguments = python_arguments(directory, command)
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    ended = subprocess.run(
        [python, *arguments], cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    seconds, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended.returncode:
        raise SystemExit(f"exit code {ended.returncode} in {directory}\n{ended.stdout[-2000:]}\n{ended.stderr[-2000:]}")
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall s": seconds, "processor s": processor, **_figures_in(ended.stdout)}


def _figures_in(output: str) -> Figures:
    """Numbers of the JSON object on the last line, by their path."""
    last = output.strip().splitlines()[-1:]
    try:
        return dict(_numbers(json.loads(last[0]))) if last else {}
    except ValueError:
        return {}


def _numbers(value: object, path: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _numbers(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, float(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True, help="the commit to compare with")
    parser.add_argument("--times", type=int, default=5, help="pairs of runs (default: 5)")
    parser.add_argument("command", nargs="+", help="`millstream` with arguments, or the arguments of Python")
    options = parser.parse_args()
    print(f"load before: {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors", flush=True)
    with checkout(options.base) as base, checkout("HEAD") as here:
        for directory in (base, here):
            add_compiled(directory)
        sides = {"base": (interpreter(base), base), "here": (interpreter(here), here)}
        taken: dict[str, list[Figures]] = {side: [] for side in sides}
        for number in range(options.times):
            # In turns, and the other one first each time: what grows in the course of a run counts for both.
            for side in sorted(sides, reverse=bool(number % 2)):
                taken[side].append(run(*sides[side], options.command))
                figures = taken[side][-1]
                print(f"  {side}: {figures['wall s']:.1f} s, {figures['processor s']:.1f} processor s", flush=True)
    print(f"{'median of ' + str(options.times):<48} {'base':>14} {'here':>14} {'ratio':>7}")
    for name in taken["here"][0]:
        if all(name in figures for side in taken.values() for figures in side):
            was, now = (statistics.median(figures[name] for figures in taken[side]) for side in ("base", "here"))
            ratio = f"{now / was:7.3f}" if was else "      -"
            print(f"{name:<48} {was:>14,.3f} {now:>14,.3f} {ratio}")


if __name__ == "__main__":
    main()
