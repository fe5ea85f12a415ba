"""The programs of `examples/udf-go`, built once for all processes that run tests.

Go's cache does not know what another process compiles at the moment: where it is empty, six of them would compile gRPC
six times, and none would be done in time. So one builds, and the others wait for it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples" / "udf-go"
BUILD_S = 1200.0
"""How long a build may take, or what has to be waited for: with an empty cache, on a busy machine."""


def toolchain() -> str | None:
    """The `go` on the PATH."""
    return shutil.which("go")


@contextmanager
def compiling() -> Iterator[None]:
    """Nobody else compiles meanwhile."""
    # The folder itself, so that no file is left.
    folder = os.open(EXAMPLES, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def run_go(arguments: Sequence[str], directory: Path) -> subprocess.CompletedProcess[str]:
    """`go` with these arguments, in a module."""
    go = toolchain()
    assert go is not None
    with compiling():
        return subprocess.run(
            [go, *arguments], cwd=directory, capture_output=True, text=True, timeout=BUILD_S, check=False
        )


def built_in(directory: Path) -> Path:
    """A directory with every program, which this process or another one has built: `conformance`, `book` and others."""
    programs, done = directory / "go-programs", directory / "go-programs.done"
    with (directory / "go-programs.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            programs.mkdir(exist_ok=True)
            ran = run_go(["build", "-o", f"{programs}/", "./..."], EXAMPLES)
            assert ran.returncode == 0, f"the functions in Go are not built:\n{ran.stderr}"
            done.touch()
    return programs
