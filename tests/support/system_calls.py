"""Makes system calls of another process fail, with strace: programs in Go call the system themselves."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.children import started

_FETCHED = Path(__file__).parents[2] / ".cache" / "servers" / "strace"
_LIBRARIES = ":".join(str(_FETCHED / part / "x86_64-linux-gnu") for part in ("usr/lib", "lib"))
_ENVIRONMENT = {**os.environ, "LD_LIBRARY_PATH": _LIBRARIES}


def _strace() -> str | None:
    fetched = _FETCHED / "usr" / "bin" / "strace"
    return str(fetched) if fetched.exists() else shutil.which("strace")


def why_missing() -> str:
    """Why no system calls can be made to fail here; empty when they can."""
    strace = _strace()
    if strace is None:
        return "`make servers` fetches strace, which makes system calls fail, and has not"
    # A child of this process, so the same rules hold as for a server of the test.
    with subprocess.Popen(["sleep", "60"]) as sleeping:
        command = [strace, "-o", os.devnull, "-p", str(sleeping.pid), "-e", "trace=none"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=_ENVIRONMENT) as tried:
            assert tried.stderr is not None
            line = tried.stderr.readline()
            tried.terminate()
        sleeping.kill()
    return "" if "attached" in line else f"this system permits no ptrace: {line.strip()}"


def need_failing_calls() -> None:
    """Skips the test if no system calls can be made to fail."""
    if why := why_missing():
        pytest.skip(why)


@asynccontextmanager
async def failing(pid: int, fault: str, *, files: tuple[Path, ...] = ()) -> AsyncIterator[None]:
    """In the block, system calls of a process fail. `fault`: as strace wants it, such as `fsync:error=EIO:when=1`; each
    thread counts for itself. `files`: only calls for these."""
    strace = _strace()
    assert strace is not None
    name, _, _ = fault.partition(":")
    only = [word for file in files for word in ("-P", str(file))]
    command = [strace, "-f", "-o", os.devnull, "-e", f"trace={name}", "-e", f"inject={fault}", *only, "-p", str(pid)]
    async with started(*command, env=_ENVIRONMENT, stderr=asyncio.subprocess.PIPE) as tracing:
        assert tracing.stderr is not None
        line = await tracing.stderr.readline()
        while line and b"attached" not in line:
            # With -P, it first names the files.
            line = await tracing.stderr.readline()
        assert line, "strace has ended"
        yield
