"""A file system of its own that is soon full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest


@contextmanager
def open_small_disk(path: Path, size_bytes: int) -> Iterator[Path]:
    """Mounted at `path`, which is made. Where nothing can be mounted the test is skipped, and in CI it fails."""
    path.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path)]
    done = subprocess.run(mounting, capture_output=True, text=True, check=False, timeout=10)
    if done.returncode != 0:
        give_up(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield path
    finally:
        # A process that is ending may still have a file open there.
        subprocess.run(["umount", "--lazy", str(path)], check=True, timeout=10)


def give_up(reason: str) -> NoReturn:
    """End a test that needs a disk of its own where none can be mounted."""
    if os.environ.get("CI"):
        pytest.fail(f"{reason}. The checks need a machine on which it can.")
    pytest.skip(reason)
