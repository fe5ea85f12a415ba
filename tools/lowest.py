"""Runs the unit and contract suites with the lowest versions that the project says it works with.

    python tools/lowest.py                 all of them
    python tools/lowest.py -k ledger       whatever pytest takes

The environment is in `.venv-lowest`, with all extras; packages are resolved again each time, and installed where they
have changed. What only the tests need (pytest, ruff and the like) is as in the lock, and what nothing names is new.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

REPOSITORY = Path(__file__).resolve().parent.parent
ENVIRONMENT = REPOSITORY / ".venv-lowest"
LOCK = REPOSITORY / "requirements" / "dev.txt"
OURS = ("pyproject.toml", "services/udf_sdk/pyproject.toml")
_STUBS = re.compile(r"^types-|-stubs$|^mypy")
"""Fit the versions of the lock, and nothing is type-checked here."""
SUITES = ("tests/unit", "tests/contract")
OF_THE_LOCKS = "tests/unit/deploy/test_supply_chain.py"
"""Compares what is installed with the locks."""
OF_THE_GENERATOR = "tests/unit/test_style.py::test_the_wire_modules_are_what_the_proto_files_generate"
"""Needs the generator of the type stubs, which is not installed here."""

QUIET = ("-W", "ignore:Package google.api_core depends on grpcio:FutureWarning")
"""The newest google-api-core warns of a grpcio below 1.83, and tests treat warnings as errors."""


def _uv(*arguments: str) -> None:
    subprocess.run([str(Path(sys.executable).parent / "uv"), *arguments], cwd=REPOSITORY, check=True)


def _of_tests() -> list[str]:
    """What only tests need: the groups of developers, with the versions of the lock."""
    ours = {canonicalize_name(declared.name) for _, declared in _declared()}
    locked = _pinned(LOCK)
    wanted = []
    for group in _project(OURS[0])["dependency-groups"].values():
        for one in (Requirement(item) for item in group if isinstance(item, str)):
            name = canonicalize_name(one.name)
            if not _STUBS.search(name):
                wanted.append(str(one) if name in ours else f"{name}=={locked[name]}")
    return wanted


def _higher(wanted: Path) -> Iterator[str]:
    """What is declared with a lower version than is installed, because something else needs more."""
    installed = _pinned(wanted)
    for name, declared in _declared():
        version = installed.get(canonicalize_name(declared.name))
        lowest = [Version(one.version) for one in declared.specifier if one.operator == ">="]
        if version is not None and lowest and version > lowest[0]:
            yield f"{name}: {declared} is tested with {version}"


def _declared() -> Iterator[tuple[str, Requirement]]:
    """What the two distributions and their extras need, each with the file that says so."""
    for name in OURS:
        project = _project(name)["project"]
        for items in (project["dependencies"], *project["optional-dependencies"].values()):
            yield from ((name, Requirement(item)) for item in items)


def _project(name: str) -> dict[str, Any]:
    return tomllib.loads((REPOSITORY / name).read_text(encoding="utf-8"))


def _pinned(file: Path) -> dict[str, Version]:
    """The versions that a file of requirements names."""
    lines = [line.rstrip(" \\") for line in file.read_text(encoding="utf-8").splitlines() if "==" in line]
    pins = [Requirement(line) for line in lines]
    return {canonicalize_name(pin.name): Version(next(iter(pin.specifier)).version) for pin in pins}


def _resolve(tests: Path, wanted: Path) -> None:
    """What the two distributions and all of their extras say they need, at its lowest, beside what tests need."""
    _uv(
        "pip",
        "compile",
        "--quiet",
        "--resolution",
        "lowest-direct",
        "--python-version",
        "3.11",
        "--all-extras",
        # Otherwise the versions of the last time stay.
        "--upgrade",
        "--no-header",
        "--no-annotate",
        "--no-emit-index-url",
        "--no-emit-find-links",
        "--no-emit-package",
        "millstream-udf",
        "--output-file",
        str(wanted),
        *OURS,
        str(tests),
    )


def main(arguments: Sequence[str]) -> int:
    tests, wanted = REPOSITORY / ".venv-lowest.in", REPOSITORY / ".venv-lowest.txt"
    tests.write_text("\n".join(_of_tests()) + "\n", encoding="utf-8")
    _resolve(tests, wanted)
    print(*dict.fromkeys(_higher(wanted)), sep="\n", flush=True)
    _uv("venv", "--quiet", "--allow-existing", "--python", sys.executable, str(ENVIRONMENT))
    python = str(ENVIRONMENT / "bin" / "python")
    # A test builds wheels, and an environment that uv makes has no pip.
    _uv("pip", "install", "--quiet", "--python", python, "--requirement", str(wanted), "pip")
    editable = ("--editable", "services/udf_sdk", "--editable", ".")
    _uv("pip", "install", "--quiet", "--python", python, "--no-deps", "--no-build-isolation", *editable)
    environment = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    left_out = (f"--ignore={OF_THE_LOCKS}", f"--deselect={OF_THE_GENERATOR}")
    command = [python, "-m", "pytest", "--numprocesses=2", "--dist=loadfile", *left_out, *QUIET, *SUITES, *arguments]
    return subprocess.run(command, cwd=REPOSITORY, env=environment, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
