"""Sources give way, in a process of their own: niceness cannot be taken back."""

from __future__ import annotations

import subprocess
import sys

import pytest

NICENESS = """\
import os, subprocess, threading

from millstream.priority import give_way

begun, over = threading.Event(), threading.Event()
def wait():
    begun.set()
    over.wait()
thread = threading.Thread(target=wait)
thread.start()
begun.wait()
child = subprocess.Popen(["sleep", "600"])
of = [os.getpid(), thread.native_id, child.pid]
before = [os.getpriority(os.PRIO_PROCESS, one) for one in of]
give_way(3)
print(*(os.getpriority(os.PRIO_PROCESS, one) - was for one, was in zip(of, before)))
child.kill()
child.wait()
over.set()
"""


@pytest.mark.process
def test_a_process_gives_way_with_its_threads_and_its_children() -> None:
    told = subprocess.run([sys.executable, "-c", NICENESS], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.strip() == "3 3 3"
