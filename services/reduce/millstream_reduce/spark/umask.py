"""The umask of users' functions in Spark's Python workers.

Spark's own files, which hold records, are for this user alone: its JVM is started with such a umask, and its workers
inherit it. Files that a function creates are the user's, so the workers get the umask of the run back.
"""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "MILLSTREAM_UMASK"
"""Environment variable with the umask of the run, in octal."""
_USUAL = 0o022


def current() -> int:
    """The umask of this process. It cannot be read without setting it, except where Linux shows it."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return next((int(line.split()[1], 8) for line in lines if line.startswith("Umask:")), _USUAL)


def restore() -> None:
    """Set the umask that the environment names, if it names one."""
    if umask := os.environ.pop(VARIABLE, ""):
        os.umask(int(umask, 8))
