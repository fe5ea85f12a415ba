"""The workers of users' functions get the umask of the run back."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from millstream_reduce.spark import umask


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


def test_that_of_this_process_is_read_and_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(umask.VARIABLE, f"{umask.current():o}")
    os.umask(0o077)
    umask.restore()
    assert umask.current() == 0o027
    assert umask.VARIABLE not in os.environ


def test_without_the_variable_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(umask.VARIABLE, raising=False)
    umask.restore()
    assert umask.current() == 0o027
