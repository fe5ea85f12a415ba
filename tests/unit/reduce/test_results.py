"""Result files: whose results a commit in parts is finished with."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from millstream_reduce.log.files import Files
from millstream_reduce.log.segments import LogIdentity
from millstream_reduce.results import ResultFiles
from tests.unit.reduce.log.faulty_files import PowerLossFiles


def opened(directory: Path, epoch: int, system: Files | None = None) -> ResultFiles:
    """The result files as the owner of that epoch sees them."""
    files = ResultFiles(directory, system or Files(), LogIdentity("p", "sum", 0, epoch, "ledger"))
    files.load()
    return files


@pytest.mark.guarantee("I1", "I3")
def test_results_of_an_owner_that_was_replaced_do_not_take_the_place_of_its_successors(tmp_path: Path) -> None:
    paused, successor = opened(tmp_path, 1), opened(tmp_path, 2)
    successor.write(7, b"of which a part is committed")
    paused.write(7, b"the same, in another order")
    assert opened(tmp_path, 3).read(7) == b"of which a part is committed"


def test_results_of_all_owners_are_removed_once_they_are_committed(tmp_path: Path) -> None:
    opened(tmp_path, 1).write(7, b"first")
    opened(tmp_path, 2).write(7, b"second")
    opened(tmp_path, 2).write(8, b"still needed")
    third = opened(tmp_path, 3)
    third.remove(7)
    assert third.oldest == 8
    assert third.read(7) is None
    assert third.read(8) == b"still needed"


@pytest.mark.guarantee("I3")
@pytest.mark.parametrize("seed", range(10))
def test_results_that_are_kept_survive_the_loss_of_power(tmp_path: Path, seed: int) -> None:
    disk = PowerLossFiles()
    results = b"of which a part is committed" * 100
    (tmp_path / "log").mkdir()
    opened(tmp_path / "log", 1, disk).write(7, results)
    disk.lose_power(tmp_path / "after", random.Random(seed))
    assert opened(tmp_path / "after", 2).read(7) == results
