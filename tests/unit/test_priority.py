"""Sources give way, in a process of their own, and are not starved by who is busy."""

from __future__ import annotations

import subprocess
import sys

import pytest

GIVES_WAY = """\
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
niceness = [os.getpriority(os.PRIO_PROCESS, one) for one in of]
give_way()
print(*(os.sched_getscheduler(one) == os.SCHED_BATCH for one in of))
print([os.getpriority(os.PRIO_PROCESS, one) for one in of] == niceness)
child.kill()
child.wait()
over.set()
"""


@pytest.mark.process
def test_a_process_gives_way_with_its_threads_and_its_children() -> None:
    told = subprocess.run([sys.executable, "-c", GIVES_WAY], capture_output=True, text=True, check=True, timeout=60)
    # Its share of the processors is what it was: niceness would leave it a tenth beside any other busy process.
    assert told.stdout.split() == ["True", "True", "True", "True"]
