"""`millstream test`: runs the tests of the functions, then the cases of the pipelines."""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO

from millstream import codes
from millstream.errors import InfrastructureError, MillstreamError, UserError
from millstream_runner.cases.case import SUFFIX, Case, read_case
from millstream_runner.cases.comparing import differences
from millstream_runner.cases.running import load_case_pipeline, run_case
from millstream_runner.cli.arguments import PIPELINE_FILE

FAILED = 1
"""Exit code when a test has failed."""
_NO_TESTS = 5
"""Exit code for "no tests" of pytest and, from Python 3.12 on, of unittest."""
_LEFT_OUT = frozenset({"out", "node_modules", "millstream-sdk", "__pycache__"})
"""Directories that have no tests of the user, apart from hidden ones and virtual environments."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The outcome of the function tests in one language, or of one case."""

    name: str
    passed: bool
    seconds: float
    differences: tuple[str, ...] = ()
    """The failure of a case, in lines for people."""


def run(arguments: argparse.Namespace) -> int:
    what: Path = arguments.what or Path()
    if not what.exists():
        raise UserError(
            codes.NO_SUCH_TESTS, f"{what} does not exist; specify a directory, a pipeline file or a case file"
        )
    prints = sys.stderr if arguments.json else sys.stdout
    functions = list(_functions(what, prints)) if not what.name.endswith(SUFFIX) else []
    cases = [_run_case(path, what, prints) for path in _cases(what)]
    outcomes = [*functions, *cases]
    if not outcomes:
        raise UserError(
            codes.NO_SUCH_TESTS,
            f"{what} has neither function tests (test_*.py) nor cases (*{SUFFIX}); `millstream init` creates both",
        )
    failed = sum(not outcome.passed for outcome in outcomes)
    if failed:
        print(f"{failed} of {len(outcomes)} failed", file=sys.stderr)
    if arguments.json:
        parts = {"functions": functions, "cases": cases}
        print(json.dumps({"passed": not failed} | {name: list(map(asdict, part)) for name, part in parts.items()}))
    return FAILED if failed else 0


def _functions(what: Path, prints: TextIO) -> Iterator[_Outcome]:
    folder = what if what.is_dir() else what.parent
    for command in _function_tests(folder):
        begun_s = time.monotonic()
        passed = _run_function_tests(command, folder, prints)
        if passed is not None:
            yield _Outcome(_name_of(command), passed, round(time.monotonic() - begun_s, 3))


def _function_tests(folder: Path) -> Iterator[list[str]]:
    """The commands that run the tests of the functions, whatever their language."""
    files = [
        path
        for path in _walk(folder)
        if path.suffix == ".py" and (path.name.startswith("test_") or path.name.endswith("_test.py"))
    ]
    if files:
        if find_spec("pytest") is not None:
            yield [sys.executable, "-m", "pytest", "-q", "."]
        elif needing := [str(path) for path in files if _needs_pytest(path)]:
            raise UserError(
                codes.EXTRA_NEEDED,
                f"{', '.join(needing[:3])}: these tests are written for pytest, which is not installed here: "
                "`pip install pytest pytest-asyncio`",
            )
        else:
            # Each directory separately, because they need not be packages.
            for directory in sorted({path.parent for path in files}):
                where = os.path.relpath(directory, folder)
                yield [sys.executable, "-m", "unittest", "discover", "-s", where, "-t", where]
    if (folder / "go.mod").is_file():
        if (go := shutil.which("go")) is None:
            print("the Go tests were skipped: there is no `go` on the PATH", file=sys.stderr)
        else:
            yield [go, "test", "./..."]


def _needs_pytest(path: Path) -> bool:
    """Whether unittest would find no test in it, or not all: functions that are tests, or an import of pytest."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        # unittest says what is wrong.
        return False
    return any(
        (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"))
        or (isinstance(node, ast.Import) and any(name.name == "pytest" for name in node.names))
        or (isinstance(node, ast.ImportFrom) and node.module == "pytest")
        for node in tree.body
    )


def _name_of(command: Sequence[str]) -> str:
    return command[2] if command[0] == sys.executable else "go test"


def _run_function_tests(command: Sequence[str], folder: Path, prints: TextIO) -> bool | None:
    """Whether they passed; None if there were none. Their output is passed through."""
    print(f"functions ({_name_of(command)}):", file=prints, flush=True)
    search = os.pathsep.join(filter(None, (str(folder.absolute()), os.environ.get("PYTHONPATH", ""))))
    try:
        environment = {**os.environ, "PYTHONPATH": search}
        stdout = None if prints is sys.stdout else sys.stderr.fileno()
        code = subprocess.run(command, cwd=folder, env=environment, stdout=stdout, check=False).returncode
    except OSError as error:
        raise InfrastructureError(codes.PROCESS_NOT_STARTED, f"cannot start {command[0]}: {error.strerror}") from error
    return None if code == _NO_TESTS else code == 0


def _cases(what: Path) -> Iterator[Path]:
    if what.name.endswith(SUFFIX):
        yield what
        return
    for path in _walk(what if what.is_dir() else what.parent):
        if path.name.endswith(SUFFIX) and (what.is_dir() or _is_about(path, what)):
            yield path


def _is_about(path: Path, pipeline: Path) -> bool:
    """Whether a case belongs to that pipeline. An unreadable case reports its error when it is run."""
    try:
        return _pipeline_of(read_case(path)).resolve() == pipeline.resolve()
    except MillstreamError:
        return True


def _walk(folder: Path) -> Iterator[Path]:
    """The files below a directory that may belong to the user, sorted."""
    for directory, names, files in os.walk(folder):
        names[:] = sorted(
            name
            for name in names
            if not name.startswith(".")
            and name not in _LEFT_OUT
            and not (Path(directory) / name / "pyvenv.cfg").exists()
        )
        yield from (Path(directory) / name for name in sorted(files))


def _run_case(path: Path, what: Path, prints: TextIO) -> _Outcome:
    begun_s = time.monotonic()
    print(f"{path}: ", end="", file=prints, flush=True)
    try:
        lines = _failures(path, what)
    except MillstreamError as error:
        lines = [f"[{error.code}] {error}" if error.code.id not in str(error) else str(error)]
    seconds = time.monotonic() - begun_s
    print(f"{'FAILED' if lines else 'passed'} in {seconds:.1f} s", file=prints, flush=True)
    print("".join(f"  {line}\n" for text in lines for line in text.splitlines()), end="", file=sys.stderr)
    return _Outcome(str(path), not lines, round(seconds, 3), tuple(lines))


def _failures(path: Path, what: Path) -> list[str]:
    """The differences from the case's expectations; empty if it passed."""
    case = read_case(path)
    loaded = load_case_pipeline(case, what if what.is_file() and what != path else _pipeline_of(case))
    with tempfile.TemporaryDirectory(prefix="millstream-test-") as directory:
        came = run_case(case, loaded, Path(directory))
    if came.failure:
        return [came.failure]
    lines: list[str] = []
    for sink, records in came.outputs.items():
        # A sink that the case does not name expects no records: a stray record is a failure, too.
        expected = case.outputs.get(sink, [])
        if expected is not None and (found := differences(expected, records, in_order=case.in_order)):
            lines += [f"{sink}: {found[0]}", *found[1:]]
    return lines


def _pipeline_of(case: Case) -> Path:
    """The pipeline file that it names, or the nearest `pipeline.yaml` in its directory or above."""
    if case.pipeline is not None:
        return case.pipeline
    for directory in case.path.resolve().parents:
        if (directory / PIPELINE_FILE).is_file():
            return Path(os.path.relpath(directory / PIPELINE_FILE))
    raise UserError(
        codes.TEST_CASE, f"{case.path}: it has no `pipeline`, and there is no {PIPELINE_FILE} in its directory or above"
    )
