"""Fuzzes every decoder of bytes from outside, guided by coverage (atheris).

    python benchmarks/fuzz.py --executions 1000000                 every target, one after the other
    python benchmarks/fuzz.py --targets frame map-answer --jobs 2
    python benchmarks/fuzz.py --keep 40                            writes the smallest inputs of each into tests/fuzzing

Each target runs in a process of its own, which ends at the first finding; a finding goes to tests/fuzzing/found, where
the suite tries it from then on. Without atheris `--blind` makes inputs by chance only.
"""

from __future__ import annotations

import argparse
import base64
import importlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FUZZING = ROOT / "tests" / "fuzzing"
RSS_MIB_MAX = 2048
INPUT_S_MAX = 120
"""By the clock, so that a machine that is busy or paused is not a finding."""
KEPT_BYTES_MAX = 1024


def guided(name: str, arguments: Sequence[str]) -> None:
    """Inside the process of one target. Does not return."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(
        include=[
            "millstream",
            "millstream_udf",
            "millstream_reader",
            "millstream_vertex",
            "millstream_reduce",
            "millstream_worker",
            "json",
        ]
    ):
        from tests.fuzzing import targets

    atheris.Setup([sys.argv[0], *arguments], targets.TARGETS[name].run)
    atheris.Fuzz()


def blind(name: str, executions: int, seed: int) -> None:
    """The same with inputs by chance."""
    from tests.fuzzing.mutation import corpus, inputs
    from tests.fuzzing.targets import TARGETS

    target = TARGETS[name]
    seeds = [*target.seeds(), *corpus(name)]
    for data in inputs(seeds, executions, seed):
        try:
            target.run(data)
        except Exception:
            (Path.cwd() / "crash-blind").write_bytes(data)
            raise


def _fuzz(name: str, options: argparse.Namespace) -> str:
    """One target in its process; a line about it."""
    from tests.fuzzing.mutation import corpus
    from tests.fuzzing.targets import TARGETS
    from tests.fuzzing.using import BYTES_MAX

    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        seeds = Path(scratch) / "seeds"
        kept = options.corpus / name if options.corpus else Path(scratch) / "kept"
        for directory in (seeds, kept):
            directory.mkdir(parents=True, exist_ok=True)
        for number, data in enumerate((*TARGETS[name].seeds(), *corpus(name))):
            (seeds / str(number)).write_bytes(data)
        command = [sys.executable, __file__, "--inside", name, "--executions", str(options.executions)]
        command += ["--seed", str(options.seed), *(["--blind"] if options.blind else [])]
        libfuzzer = (
            f"-runs={options.executions}",
            f"-seed={options.seed}",
            f"-max_len={BYTES_MAX}",
            f"-rss_limit_mb={RSS_MIB_MAX}",
            f"-timeout={INPUT_S_MAX}",
            "-print_final_stats=1",
        )
        started = time.monotonic()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        ended = subprocess.run(
            [*command, "--", *libfuzzer, str(kept), str(seeds)],
            cwd=scratch,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        seconds = time.monotonic() - started
        found = [*Path(scratch).glob("crash-*"), *Path(scratch).glob("timeout-*"), *Path(scratch).glob("oom-*")]
        for path in found:
            _add(FUZZING / "found" / f"{name}.txt", [path.read_bytes()])
        if options.keep:
            inputs = sorted((path.read_bytes() for path in kept.iterdir()), key=len)
            _add(
                FUZZING / "corpus" / f"{name}.txt",
                [data for data in inputs if len(data) <= KEPT_BYTES_MAX][:: max(1, len(inputs) // options.keep)],
            )
        done = re.search(r"number_of_executed_units: (\d+)", ended.stderr)
        executed = int(done[1]) if done else options.executions
        text = f"{name}: {executed:,} executions in {seconds:.0f} s ({executed / seconds:,.0f}/s)"
        if ended.returncode or found:
            text += f": FOUND (exit code {ended.returncode}), kept in tests/fuzzing/found\n"
            trace = ended.stderr[ended.stderr.find(" === Uncaught") :] if "Uncaught" in ended.stderr else ended.stderr
            text += trace[-3000:]
        return text


def _add(path: Path, inputs: Sequence[bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    known = path.read_text(encoding="ascii").splitlines() if path.exists() else []
    lines = dict.fromkeys([*known, *(base64.b64encode(data).decode() for data in inputs)])
    path.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executions", type=int, default=1_000_000, help="of each target")
    parser.add_argument("--targets", nargs="+", help="these only")
    parser.add_argument("--jobs", type=int, default=1, help="targets at a time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--blind", action="store_true", help="without atheris: inputs by chance")
    parser.add_argument("--corpus", type=Path, help="directory that keeps what was found to reach something new")
    parser.add_argument("--keep", type=int, default=0, help="write so many of these inputs into tests/fuzzing/corpus")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("libfuzzer", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if options.inside:
        if options.blind:
            blind(options.inside, options.executions, options.seed)
        else:
            guided(options.inside, options.libfuzzer)
        return 0
    from tests.fuzzing.targets import TARGETS

    found = False
    with ThreadPoolExecutor(options.jobs) as pool:
        for line in pool.map(lambda name: _fuzz(name, options), options.targets or TARGETS):
            print(line, flush=True)
            found = found or "FOUND" in line
    return int(found)


if __name__ == "__main__":
    raise SystemExit(main())
