"""Memory that control groups leave, from files as the system writes them, and what a process takes."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from millstream.limits import MIB
from millstream.resources import limits, taken_by, usable_memory

V2 = "0::/kubepods.slice/pod.slice\n"
V1 = "4:memory:/docker/c\n2:cpu,cpuacct:/docker/c\n0::/\n"


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        (V2, {"kubepods.slice/memory.max": "max", "kubepods.slice/pod.slice/memory.max": "1000"}, [1000]),
        (V2, {"kubepods.slice/memory.max": "2000", "kubepods.slice/pod.slice/memory.max": "1000"}, [1000, 2000]),
        (V2, {"memory.max": "3000"}, [3000]),
        (V1, {"memory/docker/c/memory.limit_in_bytes": "4000"}, [4000]),
        (V2, {"memory.max": "0"}, []),
        (V2, {}, []),
        ("", {"memory.max": "3000"}, []),
    ],
)
def test_limits_of_control_groups(groups: str, files: dict[str, str], expected: list[int], tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text(groups)
    for name, text in files.items():
        path = tmp_path / "mounted" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    assert list(limits(tmp_path / "cgroup", tmp_path / "mounted")) == expected


def test_what_there_is_and_what_a_process_takes() -> None:
    assert 0 < usable_memory() <= psutil.virtual_memory().total
    before = taken_by(os.getpid())
    ballast = bytearray(b"x") * (64 * MIB)
    after = taken_by(os.getpid())
    assert before is not None
    assert after is not None
    assert before + 60 * MIB < after < before + 80 * MIB
    del ballast
    assert taken_by(2**22 + 1) is None
