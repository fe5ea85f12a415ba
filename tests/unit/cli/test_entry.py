"""The first moments of `millstream`: Ctrl-C while modules are imported, and a system that lets it open few files."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys

import pytest

from millstream import codes
from millstream_runner.local.prerequisites import FILES_ADVISED, FILES_MIN, check_open_files
from tests.support.errors import raises

INTERRUPTED_WHILE_IMPORTING = """
import signal, sys

class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == "millstream_runner.cli.main":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from millstream_runner.entry import main
sys.exit(main())
"""


@pytest.mark.process
def test_ctrl_c_while_modules_are_imported_prints_no_traceback() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_WHILE_IMPORTING, "version"], capture_output=True, timeout=60, check=False
    )
    assert ran.returncode == -signal.SIGINT
    assert (ran.stdout, ran.stderr) == (b"", b"")


@pytest.mark.process
def test_the_entry_runs_commands() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "millstream_runner", "--version"], capture_output=True, timeout=60, check=False
    )
    assert ran.returncode == 0
    assert ran.stdout


@pytest.mark.parametrize(
    ("limits", "remedy"),
    [((24, 24), "a hard limit of 1024"), ((24, 4096), "`ulimit -n 1024`"), ((24, resource.RLIM_INFINITY), "`ulimit")],
)
def test_too_few_open_files_are_refused_with_the_remedy(
    limits: tuple[int, int], remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    with raises(codes.PROCESS_NOT_STARTED, match=f"at most 24 files here.*{remedy}"):
        check_open_files()


@pytest.mark.parametrize("soft", [FILES_MIN, FILES_ADVISED, resource.RLIM_INFINITY])
def test_enough_open_files_are_enough(soft: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, resource.RLIM_INFINITY))
    check_open_files()
