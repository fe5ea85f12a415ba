"""Sources give way, in a process of their own: niceness cannot be taken back."""

from __future__ import annotations

import subprocess
import sys

NICENESS_OF_A_NEW_PROCESS = """\
import os
from millstream.priority import give_way
before = os.nice(0)
give_way(3)
print(os.nice(0) - before)
"""


def test_a_process_that_gives_way_is_nicer_than_it_was() -> None:
    told = subprocess.run(
        [sys.executable, "-c", NICENESS_OF_A_NEW_PROCESS], capture_output=True, text=True, check=True, timeout=60
    )
    assert told.stdout.strip() == "3"
