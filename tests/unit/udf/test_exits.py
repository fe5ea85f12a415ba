"""Which ends of a process are its own doing."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from millstream.udf.exits import LOOK_INTERVAL_S, OomKills, counters, ending_of, oom_kills_of


@pytest.mark.parametrize("code", [1, 3, 255, -signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGXCPU])
def test_an_exit_and_a_crash_are_its_own_doing(code: int) -> None:
    assert ending_of(code, out_of_memory=False, tail="").counts(broke=False)


@pytest.mark.parametrize("code", [-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP, 137, 143, -99])
def test_a_signal_from_outside_never_counts(code: int) -> None:
    assert not ending_of(code, out_of_memory=False, tail="").counts(broke=True)


def test_a_kill_for_lack_of_memory_is_its_own_doing() -> None:
    ending = ending_of(-signal.SIGKILL, out_of_memory=True, tail="")
    assert ending.counts(broke=False)
    assert "memory" in ending.why
    assert not ending_of(-signal.SIGTERM, out_of_memory=True, tail="").counts(broke=True)


def test_an_exit_without_an_error_counts_only_if_it_broke_its_streams() -> None:
    """A signal may have asked the function to end: then it answers its calls, ends its streams and exits with 0."""
    ending = ending_of(0, out_of_memory=False, tail="")
    assert ending.counts(broke=True)
    assert not ending.counts(broke=False)


@pytest.mark.parametrize(
    "text",
    ["low 0\nhigh 0\nmax 7\noom 1\noom_kill {}\noom_group_kill 0\n", "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"],
    ids=["version 2", "version 1"],
)
def test_the_kernels_count_explains_a_kill_that_comes_with_it(tmp_path: Path, text: str) -> None:
    counter = tmp_path / "counter"
    counter.write_text(text.format(3))
    kills = OomKills(counter)
    assert kills.known
    # Kills before it was started say nothing.
    assert not kills.have_risen(0.0)
    counter.write_text(text.format(4))
    assert kills.have_risen(10.0)
    assert not kills.have_risen(10.0 + 3 * LOOK_INTERVAL_S)
    counter.write_text(text.format(5))
    # It was seen before the end of the process was.
    kills.look(20.0)
    assert kills.have_risen(20.0 + LOOK_INTERVAL_S)


@pytest.mark.parametrize("text", [None, "", "oom_kill\n", "oom_kill many\n", "max 3\n"])
def test_without_a_count_a_kill_comes_from_outside(tmp_path: Path, text: str | None) -> None:
    counter = tmp_path / "counter"
    if text is not None:
        counter.write_text(text)
    kills = OomKills(counter)
    assert not kills.known
    counter.write_text("oom_kill 9\n")
    assert not kills.have_risen(0.0)
    assert not OomKills(None).known


def test_the_count_of_a_process_is_that_of_its_cgroup(tmp_path: Path) -> None:
    for groups, expected in (
        ("0::/user.slice/run.scope\n", "user.slice/run.scope/memory.events"),
        ("5:cpu,cpuacct:/a\n4:memory:/b:c\n", "memory/b:c/memory.oom_control"),
    ):
        (tmp_path / "cgroup").write_text(groups)
        found = list(counters(tmp_path / "cgroup", Path("/mounted")))
        assert Path("/mounted") / expected in found
        assert len({path.parent for path in found}) == 1
    assert not oom_kills_of(2**22 + 1).known
