"""Runs the unit and contract suites with the lowest versions that the project says it works with.

    python tools/lowest.py                 all of them
    python tools/lowest.py -k ledger       whatever pytest takes

The environment is in `.venv-lowest`; packages are resolved again each time, and installed where they have changed. What
only the tests need (pytest, ruff and the like) is as in the lock.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
ENVIRONMENT = REPOSITORY / ".venv-lowest"
LOCK = REPOSITORY / "requirements" / "dev.txt"
OURS = ("pyproject.toml", "services/udf_sdk/pyproject.toml")
EXTRAS = ("arrow", "nkeys", "redis", "kafka", "reduce", "demo")
_STUBS = re.compile(r"^types-|-stubs$|^mypy")
"""Fit the versions of the lock, and nothing is type-checked here."""
SUITES = ("tests/unit", "tests/contract")
OF_THE_LOCKS = "tests/unit/deploy/test_supply_chain.py"
"""Compares what is installed with the locks."""
OF_THE_GENERATOR = "tests/unit/test_style.py::test_the_wire_modules_are_what_the_proto_files_generate"
"""Needs the generator of the type stubs, which is not installed here."""


def _uv(*arguments: str) -> None:
    subprocess.run([str(Path(sys.executable).parent / "uv"), *arguments], cwd=REPOSITORY, check=True)


def _declared() -> list[str]:
    """What the two distributions and their extras say they need, at its lowest, one requirement a line."""
    extras = [part for extra in EXTRAS for part in ("--extra", extra)]
    resolved = subprocess.run(
        [
            str(Path(sys.executable).parent / "uv"),
            *("pip", "compile", "--quiet", "--resolution", "lowest-direct", "--python-version", "3.11"),
            *("--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"),
            *("--no-emit-package", "millstream-udf", *extras, *OURS),
        ],
        cwd=REPOSITORY,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return resolved.stdout.split("\n")


def _of_tests(declared: Sequence[str]) -> list[str]:
    """What the lock has beside that, without hashes."""
    named = {line.partition("==")[0].strip() for line in declared}
    pinned = [line.rstrip(" \\") for line in LOCK.read_text(encoding="utf-8").splitlines() if not line.startswith(" ")]
    found = ((line, line.partition("==")[0].strip()) for line in pinned if "==" in line)
    return [line for line, name in found if name not in named and not _STUBS.search(name)]


def main(arguments: Sequence[str]) -> int:
    declared = [line for line in _declared() if line.strip()]
    wanted = REPOSITORY / ".venv-lowest.txt"
    # A test builds wheels, and an environment that uv makes has no pip.
    wanted.write_text("\n".join([*declared, *_of_tests(declared), "pip"]) + "\n", encoding="utf-8")
    _uv("venv", "--quiet", "--allow-existing", "--python", sys.executable, str(ENVIRONMENT))
    python = str(ENVIRONMENT / "bin" / "python")
    _uv("pip", "install", "--quiet", "--python", python, "--requirement", str(wanted))
    editable = ("--editable", "services/udf_sdk", "--editable", ".")
    _uv("pip", "install", "--quiet", "--python", python, "--no-deps", "--no-build-isolation", *editable)
    environment = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    left_out = (f"--ignore={OF_THE_LOCKS}", f"--deselect={OF_THE_GENERATOR}")
    command = [python, "-m", "pytest", *left_out, *SUITES, *arguments]
    return subprocess.run(command, cwd=REPOSITORY, env=environment, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
