"""A stranger: another user with an account on the machine that runs a pipeline."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

NOBODY = 65534
"""The user and group that own nothing, on every Linux."""

_TIMEOUT_S = 90.0

# What a program needs is imported while it still may read this checkout, which may be where only root can read.
_BECOME = """
import asyncio, glob, http.client, json, os, pathlib, signal, socket, ssl, stat, struct, sys, time, urllib.request
import encodings.idna, nats
os.setgroups([]); os.setgid({user}); os.setuid({user})
os.chdir("/")
"""


@dataclass(frozen=True)
class Stranger:
    """Runs programs as a user who owns nothing, in no group, with an empty environment."""

    user: int

    def run(
        self, program: str, *arguments: str | Path, timeout_s: float = _TIMEOUT_S
    ) -> subprocess.CompletedProcess[str]:
        """Run Python statements to their end as this user.

        Args:
            program: The statements; the modules of the standard library that talk to servers and files, and `nats`,
                are there already.
            arguments: Its `sys.argv[1:]`.
            timeout_s: When it is killed, with `subprocess.TimeoutExpired`.

        Returns:
            How it ended, and what it printed.
        """
        text = _BECOME.format(user=self.user) + program
        return subprocess.run(
            [sys.executable, "-c", text, *map(str, arguments)],
            env={"PATH": os.defpath},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def reads(self, path: Path) -> str | None:
        """What this user reads in a file, or None where that is refused."""
        done = self.run("print(open(sys.argv[1], errors='replace').read(), end='')", path)
        if done.returncode == 0:
            return done.stdout
        assert "PermissionError" in done.stderr, done.stderr
        return None


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A directory that every user of the machine may look into, as a home directory often is; removed after the test.

    What a test puts there is hidden from a stranger only by the modes that it was made with.
    """
    with tempfile.TemporaryDirectory(prefix="millstream-security-") as folder:
        path = Path(folder)
        path.chmod(0o755)
        yield path


@pytest.fixture
def stranger() -> Stranger:
    """Another user of this machine; needs root, because no other user can become another one."""
    if os.getuid() != 0:
        pytest.skip("only root can act as another user: run the tests of tests/security as root")
    return Stranger(NOBODY)
