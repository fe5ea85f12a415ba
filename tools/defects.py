"""Plants known defects in a copy of the code, one at a time, and sees whether the test that guards against each fails.

    python tools/defects.py                      all of tests/defects
    python tools/defects.py --only mark          those with `mark` in their name
    python tools/defects.py --sample 12          so many fast ones: those in changed files first, then any
    python tools/defects.py --json               the same, to be read by programs

Exit code 0 when every test passes without its defect and fails with it. A defect is a patch of the product's code whose
first two lines say what it breaks and who must notice:

    Breaks I1: a position is committed before the records behind it are on disk
    Caught by: tests/unit/reduce/test_queue.py::test_a_name

What counts as noticing is a failure of that test: not an error of its set-up, not a file that cannot be imported, not a
test that is never done, and not an error in the defect itself, such as a name that does not exist.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from xml.etree import ElementTree

REPOSITORY = Path(__file__).resolve().parent.parent
FOLDER = REPOSITORY / "tests" / "defects"
PRODUCT = ("millstream/", "services/")
COPIED = ("millstream", "services", "tests", "tools", "pyproject.toml")
SOURCES = (
    ".",
    "services/udf_sdk",
    "services/reader",
    "services/writer",
    "services/reduce",
    "services/vertex",
    "services/worker",
    "services/runner",
)
PACKAGES = (
    "millstream",
    "millstream_udf",
    "millstream_reader",
    "millstream_writer",
    "millstream_reduce",
    "millstream_vertex",
    "millstream_worker",
    "millstream_runner",
)
AT_ONCE = 2
SLOW = "tests/simulation/"
TEST_TIMEOUT_S = 240
RUN_TIMEOUT_S = 240

_FIRST_LINE = re.compile(r"Breaks (I\d+(?:, I\d+)*): (.+)")
_SECOND_LINE = re.compile(r"Caught by: (\S+)")
_NOT_A_FINDING = re.compile(
    r"(AttributeError|ImportError|ModuleNotFoundError|NameError|TypeError|UnboundLocalError|Failed: Timeout)\b"
)


@dataclass(frozen=True, slots=True)
class Hunk:
    """Lines of the code, and those that replace them."""

    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Defect:
    """One defect."""

    name: str
    invariants: tuple[str, ...]
    breaks: str
    test: str
    """Node id of the test that must fail."""
    changes: Mapping[str, Sequence[Hunk]]
    """By file, relative to the repository."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one defect."""

    name: str
    invariants: tuple[str, ...]
    breaks: str
    test: str
    caught: bool
    reason: str
    """How the test failed, or why it does not count."""
    seconds: float


def defects() -> list[Defect]:
    """All that are kept, by name. Raises `ValueError` for one that cannot be read."""
    return [parsed(path.stem, path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.patch"))]


def parsed(name: str, text: str) -> Defect:
    """A patch as git writes it, behind its two lines. Raises `ValueError`."""
    lines = text.splitlines()
    first = _FIRST_LINE.fullmatch(lines[0]) if lines else None
    second = _SECOND_LINE.fullmatch(lines[1]) if len(lines) > 1 else None
    if first is None or second is None:
        raise ValueError(f"{name}: the first lines are not `Breaks I1: …` and `Caught by: …`")
    changes: dict[str, list[Hunk]] = {}
    hunks: list[Hunk] = []
    old, new = [], []  # type: list[str], list[str]

    def end_hunk() -> None:
        if old or new:
            hunks.append(Hunk("".join(old), "".join(new)))
        old.clear()
        new.clear()

    for line in lines[2:]:
        if line.startswith("+++ "):
            hunks = changes.setdefault(line.removeprefix("+++ b/"), [])
        elif line.startswith(("--- ", "@@")):
            end_hunk()
        elif line[:1] in (" ", "-", "+", ""):
            if line[:1] != "+":
                old.append(line[1:] + "\n")
            if line[:1] != "-":
                new.append(line[1:] + "\n")
        else:
            raise ValueError(f"{name}: {line!r} does not belong into a patch")
    end_hunk()
    if not changes or not all(changes.values()):
        raise ValueError(f"{name}: it changes nothing")
    return Defect(name, tuple(first[1].split(", ")), first[2], second[1], changes)


def sample(known: Sequence[Defect], count: int, changed: frozenset[str] = frozenset()) -> list[Defect]:
    """So many of those whose tests are fast: first those in files that have changed, then others, the same ones for
    the same code."""
    known = [defect for defect in known if not defect.test.startswith(SLOW)]
    paths = sorted({path for defect in known for path in defect.changes})
    code = zlib.crc32(b"".join((REPOSITORY / path).read_bytes() for path in paths))
    order = random.Random(code).sample(known, len(known))
    # A stable sort: those in changed files keep their order, and the others theirs.
    order.sort(key=lambda defect: changed.isdisjoint((*defect.changes, defect.test.partition("::")[0])))
    return sorted(order[:count], key=lambda defect: defect.name)


def changed_files() -> frozenset[str]:
    """Files that differ from the upstream branch, or from the commit before where there is none or nothing differs.
    None outside of a checkout with a history."""

    def git(*arguments: str) -> list[str]:
        done = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)
        return done.stdout.splitlines() if done.returncode == 0 else []

    base = git("merge-base", "HEAD", "@{upstream}") or ["HEAD~1"]
    return frozenset(git("diff", "--name-only", base[0]) or git("diff", "--name-only", "HEAD~1"))


def planted(defect: Defect, path: str, source: str) -> str:
    """The source of a file with the defect in it. Raises `ValueError` when its lines are not there, or not once."""
    for hunk in defect.changes[path]:
        found = source.count(hunk.old)
        if found != 1:
            raise ValueError(f"{defect.name}: {path} holds these lines {found} times, not once:\n{hunk.old}")
        source = source.replace(hunk.old, hunk.new)
    return source


class Copy:
    """A copy of the code in which tests are run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._report = root / "report.xml"
        self._environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
            # Modules change and change back within a second or so, which is as precise as bytecode knows its source.
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": os.pathsep.join(str(root / source) for source in SOURCES),
        }

    def make(self) -> None:
        """Copy what tests of the code need, and make sure that it is what gets imported."""
        for name in COPIED:
            source, target = REPOSITORY / name, self.root / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
            else:
                shutil.copy(source, target)
        code = f"import {', '.join(PACKAGES)}\nfor m in ({', '.join(PACKAGES)}): print(m.__file__)"
        run = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.root,
            env=self._environment,
            capture_output=True,
            text=True,
            check=True,
        )
        foreign = [path for path in run.stdout.split() if not Path(path).resolve().is_relative_to(self.root.resolve())]
        if foreign:
            raise RuntimeError(f"tests in the copy would import {', '.join(foreign)}")

    @contextmanager
    def with_defect(self, defect: Defect) -> Iterator[None]:
        """Have the defect in the copy."""
        before = {path: (self.root / path).read_text(encoding="utf-8") for path in defect.changes}
        after = {path: planted(defect, path, source) for path, source in before.items()}
        try:
            self._write(after)
            yield
        finally:
            self._write(before)

    def _write(self, sources: Mapping[str, str]) -> None:
        for name, source in sources.items():
            path = self.root / name
            path.write_text(source, encoding="utf-8")
            # Python tells a compiled module that is out of date by its length and its second only.
            for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
                compiled.unlink()

    def failures(self, tests: Sequence[str]) -> dict[str, str]:
        """Run tests: how each failed that did, by node id without parameters. Raises `RuntimeError` when they did not
        run."""
        self._report.unlink(missing_ok=True)
        options = ["-q", "-p", "no:cacheprovider", f"--timeout={TEST_TIMEOUT_S}", f"--junitxml={self._report}"]
        command = [sys.executable, "-m", "pytest", *options, "-o", "junit_family=xunit1", *tests]
        with subprocess.Popen(
            command,
            cwd=self.root,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=RUN_TIMEOUT_S * max(1, len(tests)))
            except BaseException:
                # With whatever the tests have started.
                os.killpg(process.pid, signal.SIGKILL)
                raise
        if process.returncode not in (0, 1) or not self._report.is_file():
            raise RuntimeError(f"exit code {process.returncode}: {_last_line(output)}")
        found: dict[str, str] = {}
        for case in ElementTree.parse(self._report).iter("testcase"):
            node_id = f"{case.get('file')}::{str(case.get('name')).partition('[')[0]}"
            if case.find("error") is not None:
                raise RuntimeError(f"{node_id} could not be set up or cleared away: {_last_line(output)}")
            failure = case.find("failure")
            if failure is not None:
                found.setdefault(node_id, str(failure.get("message")).partition("\n")[0])
        return found


def _last_line(output: str) -> str:
    return output.strip().rpartition("\n")[2]


def judged(defect: Defect, failures: Mapping[str, str], seconds: float) -> Outcome:
    """Whether what failed is the defect's test, and failed because of it."""
    message = failures.get(defect.test.partition("[")[0])
    counts = message is not None and not _NOT_A_FINDING.match(message)
    return _outcome(defect, counts, message if message is not None else "the test passes", seconds)


def _outcome(defect: Defect, caught: bool, reason: str, seconds: float) -> Outcome:
    return Outcome(defect.name, defect.invariants, defect.breaks, defect.test, caught, reason[:200], round(seconds, 1))


def run(chosen: Sequence[Defect], say: bool = False) -> list[Outcome]:
    """Plant each, `AT_ONCE` at a time. Raises `RuntimeError` when a test fails without any defect."""
    with tempfile.TemporaryDirectory(prefix="defects-", ignore_cleanup_errors=True) as directory:
        copies: SimpleQueue[Copy] = SimpleQueue()
        made = [Copy(Path(directory) / str(number)) for number in range(min(AT_ONCE, len(chosen)))]
        for copy in made:
            copy.root.mkdir()
            copy.make()
            copies.put(copy)
        failing = made[0].failures(sorted({defect.test for defect in chosen}))
        if failing:
            raise RuntimeError("without any defect, too, fail: " + "; ".join(map(": ".join, failing.items())))

        def one(defect: Defect) -> Outcome:
            copy = copies.get()
            started = time.monotonic()
            try:
                with copy.with_defect(defect):
                    outcome = judged(defect, copy.failures([defect.test]), time.monotonic() - started)
            except (RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
                outcome = _outcome(defect, False, str(error), time.monotonic() - started)
            finally:
                copies.put(copy)
            if say:
                print(
                    f"{'caught' if outcome.caught else 'MISSED':8}{outcome.seconds:5.1f} s  {_line(outcome)}",
                    flush=True,
                )
            return outcome

        with ThreadPoolExecutor(AT_ONCE) as threads:
            return list(threads.map(one, chosen))


def _line(outcome: Outcome) -> str:
    test = outcome.test.rpartition("::")[2]
    return f"{outcome.name:32} {', '.join(outcome.invariants):8} {test}" + (
        "" if outcome.caught else f"\n  {outcome.reason}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Plant known defects and see whether tests notice.")
    parser.add_argument("--only", metavar="NAME", default="", help="those with this in their name")
    parser.add_argument("--sample", type=int, metavar="COUNT", help="so many of them, those in changed files first")
    parser.add_argument("--json", action="store_true", help="print what became of each as JSON")
    options = parser.parse_args(arguments)
    chosen = [defect for defect in defects() if options.only in defect.name]
    if not chosen:
        parser.error(f"no defect has {options.only!r} in its name")
    if options.sample:
        chosen = sample(chosen, options.sample, changed_files())
    started = time.monotonic()
    outcomes = run(chosen, say=not options.json)
    caught = sum(outcome.caught for outcome in outcomes)
    if options.json:
        print(json.dumps([asdict(outcome) for outcome in outcomes], indent=2))
    else:
        print(f"{caught} of {len(outcomes)} caught, in {time.monotonic() - started:.0f} s")
    return 0 if caught == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
