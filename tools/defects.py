"""Plants known defects in a copy of the code, one at a time, and sees whether the test that guards against each fails.

    python tools/defects.py                      all of tests/defects
    python tools/defects.py --only mark          those with `mark` in their name
    python tools/defects.py --sample 12          so many fast ones: those in changed files first, then any
    python tools/defects.py --json               the same, to be read by programs

Exit code 0 when every test passes without its defect and fails with it. A defect says what it breaks, which test must
notice, and what becomes of which code:

    [late-off-by-one]
    invariants = ["I2"]
    breaks = "a record as old as the watermark counts as late"
    test = "tests/unit/reader/test_buffer.py::test_late_is_what_is_older_than_the_watermark"
    in = "Frame.late_records"
    old = "time_us < watermark_us"
    new = "time_us <= watermark_us"

`in` is the qualified name of a function, class or constant, in whichever file; `module = "millstream_reader"` tells
several of that name apart. `tools/planting.py` has the rest: `before` and `after`, and what `...` stands for. A defect
of several changes has a table `[[late-off-by-one.changes]]` for each.

What counts as noticing is a failure of that test: not an error of its set-up, not a file that cannot be imported, not a
test that is never done, and not an error in the defect itself, such as a name that does not exist.
"""

from __future__ import annotations

import argparse
import ast
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
import tomllib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from xml.etree import ElementTree

REPOSITORY = Path(__file__).resolve().parent.parent
# As a script, this file knows only its own folder.
if __name__ == "__main__":
    sys.path.insert(0, str(REPOSITORY))

from tools.planting import Change, Code  # noqa: E402 (found by the path)

FOLDER = REPOSITORY / "tests" / "defects"
PRODUCT = ("millstream", "services", "connectors")
COPIED = ("millstream", "services", "connectors", "tests", "tools", "pyproject.toml")
SOURCES = (
    ".",
    "services/udf_sdk",
    "services/reader",
    "services/writer",
    "connectors",
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
    "millstream_connectors",
    "millstream_testing",
    "millstream_reduce",
    "millstream_vertex",
    "millstream_worker",
    "millstream_runner",
)
AT_ONCE = 2
FAST = ("tests/unit/", "tests/contract/ledger/")
"""Tests that a sample may run, unless they have one of these marks."""
SLOW_MARKS = frozenset({"process", "slow", "sweep"})
TEST_TIMEOUT_S = 600
RUN_TIMEOUT_S = 900
"""Of a run with one test; of more, so much for each. Both are limits against tests that hang."""

_NOT_A_FINDING = re.compile(
    r"(AttributeError|ImportError|ModuleNotFoundError|NameError|TypeError|UnboundLocalError|Failed: Timeout)\b"
)


@dataclass(frozen=True, slots=True)
class Defect:
    """One defect."""

    name: str
    invariants: tuple[str, ...]
    breaks: str
    test: str
    """Node id of the test that must fail."""
    changes: tuple[Change, ...]


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
    found: dict[str, Defect] = {}
    for path in sorted(FOLDER.glob("*.toml")):
        for name, entry in tomllib.loads(path.read_text(encoding="utf-8")).items():
            if name in found:
                raise ValueError(f"{path.name}: another defect is called {name}")
            found[name] = parsed(name, entry)
    return [found[name] for name in sorted(found)]


def parsed(name: str, entry: Mapping[str, Any]) -> Defect:
    """An entry of a file. Raises `ValueError`."""
    rest = dict(entry)
    try:
        invariants, breaks, test = (rest.pop(key) for key in ("invariants", "breaks", "test"))
        tables = rest.pop("changes", [{}])
        changes = tuple(_change({**rest, **table}) for table in tables)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{name}: a key is missing or unknown: {error}") from None
    for change in changes:
        change.check()
    return Defect(name, tuple(invariants), breaks, test, changes)


def _change(table: dict[str, str]) -> Change:
    return Change(table.pop("in"), **table)


def sample(known: Sequence[Defect], count: int, code: Code, changed: frozenset[str] = frozenset()) -> list[Defect]:
    """So many of those whose tests are fast: first those in files that have changed, then others, the same ones for
    the same code."""
    paths = {defect.name: code.paths(defect.changes) for defect in known if is_fast(defect.test)}
    known = [defect for defect in known if defect.name in paths]
    of_product = sorted(frozenset[str]().union(*paths.values()))
    order = random.Random(zlib.crc32("".join(code.sources[path] for path in of_product).encode())).sample(
        known, len(known)
    )
    # A stable sort: those in changed files keep their order, and the others theirs.
    order.sort(key=lambda defect: changed.isdisjoint((*paths[defect.name], defect.test.partition("::")[0])))
    return sorted(order[:count], key=lambda defect: defect.name)


def is_fast(test: str) -> bool:
    """Whether a test is quick on any machine, as far as its folder and its marks tell."""
    path, _, name = test.partition("[")[0].partition("::")
    return path.startswith(FAST) and SLOW_MARKS.isdisjoint(_marks(path)[name])


@cache
def _marks(path: str) -> Mapping[str, frozenset[str]]:
    """What the decorators of each test of a file contain, and those of its class and its module."""
    found = {}

    def look(body: Sequence[ast.stmt], prefix: str, inherited: frozenset[str]) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                marks = inherited.union(*map(_attributes, node.decorator_list))
                found[prefix + node.name] = marks
                if isinstance(node, ast.ClassDef):
                    look(node.body, f"{prefix}{node.name}::", marks)

    tree = ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))
    assigned = (node for node in tree.body if isinstance(node, ast.Assign))
    of_module = (_attributes(node.value) for node in assigned if ast.unparse(node.targets[0]) == "pytestmark")
    look(tree.body, "", frozenset[str]().union(*of_module))
    return found


def _attributes(node: ast.AST) -> frozenset[str]:
    return frozenset(one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute))


def changed_files() -> frozenset[str]:
    """Files that differ from the upstream branch, or from the commit before where there is none or nothing differs.
    None outside of a checkout with a history."""

    def git(*arguments: str) -> list[str]:
        done = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)
        return done.stdout.splitlines() if done.returncode == 0 else []

    base = git("merge-base", "HEAD", "@{upstream}") or ["HEAD~1"]
    return frozenset(git("diff", "--name-only", base[0]) or git("diff", "--name-only", "HEAD~1"))


def _copy_if_there(source: str, target: str) -> None:
    """Copies a file, unless it is one that another test had there for a moment."""
    with suppress(FileNotFoundError):
        shutil.copy2(source, target)


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
                unneeded = shutil.ignore_patterns("__pycache__", "node_modules")
                shutil.copytree(source, target, ignore=unneeded, copy_function=_copy_if_there)
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

    @cached_property
    def _code(self) -> Code:
        return Code(self.root, PRODUCT)

    @contextmanager
    def with_defect(self, defect: Defect) -> Iterator[None]:
        """Have the defect in the copy."""
        after = self._code.planted(defect.changes)
        before = {path: self._code.sources[path] for path in after}
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
        options += ["--hypothesis-profile", "unshrunk"]
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
        chosen = sample(chosen, options.sample, Code(REPOSITORY, PRODUCT), changed_files())
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
