"""Result files: whose results a commit in parts is finished with."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream_reduce.log.files import SystemFiles
from millstream_reduce.log.segments import LogIdentity
from millstream_reduce.results import ResultFiles


def opened(directory: Path, epoch: int) -> ResultFiles:
    """The result files as the owner of that epoch sees them."""
    files = ResultFiles(directory, SystemFiles(), LogIdentity("p", "sum", 0, epoch, "ledger"))
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
