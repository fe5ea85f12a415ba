"""Processors that control groups leave, from files as the system writes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from millstream import resources as module
from millstream.resources import processors, quotas

V2 = "0::/kubepods.slice/pod.slice/c.scope\n"
V1 = "4:memory:/docker/c\n3:cpuset:/docker/c\n2:cpu,cpuacct:/docker/c\n0::/\n"


def found(tmp_path: Path, groups: str) -> list[float]:
    (tmp_path / "cgroup").write_text(groups)
    return list(quotas(tmp_path / "cgroup", tmp_path / "mounted"))


def write(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / "mounted" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def test_each_group_around_it_may_have_a_quota(tmp_path: Path) -> None:
    write(tmp_path, "kubepods.slice/cpu.max", "max 100000")
    write(tmp_path, "kubepods.slice/pod.slice/cpu.max", "400000 100000")
    write(tmp_path, "kubepods.slice/pod.slice/c.scope/cpu.max", "250000 100000")
    assert found(tmp_path, V2) == [2.5, 4.0]


def test_a_container_may_see_its_own_group_as_the_root(tmp_path: Path) -> None:
    write(tmp_path, "cpu.max", "150000 100000")
    assert found(tmp_path, V2) == [1.5]


def test_the_first_version_has_them_in_two_files(tmp_path: Path) -> None:
    write(tmp_path, "cpu/docker/c/cpu.cfs_quota_us", "50000")
    write(tmp_path, "cpu/docker/c/cpu.cfs_period_us", "100000")
    write(tmp_path, "cpu/docker/cpu.cfs_quota_us", "-1")
    write(tmp_path, "cpu/docker/cpu.cfs_period_us", "100000")
    assert found(tmp_path, V1) == [0.5]


@pytest.mark.parametrize("text", ["", "max", "max 100000", "100000 0", "many 100000", "\0"])
def test_what_says_nothing_limits_nothing(text: str, tmp_path: Path) -> None:
    write(tmp_path, "cpu.max", text)
    assert found(tmp_path, V2) == []
    assert list(quotas(tmp_path / "absent", tmp_path)) == []


def test_a_quota_counts_as_whole_processors_and_at_least_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    monkeypatch.setattr(module, "GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(module, "MOUNTED", tmp_path / "mounted")
    assert processors() == 64
    (tmp_path / "cgroup").write_text(V2)
    for text, expected in (("250000 100000", 3), ("10000 100000", 1), ("max 100000", 64)):
        write(tmp_path, "cpu.max", text)
        assert processors() == expected
