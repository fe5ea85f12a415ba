"""Keeps the unit tests an inner loop: a test that starts a process is marked so, and `make check` leaves it out."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

_STARTS = ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.exec")
_JVM_FIXTURE = "session"
"""A Spark session starts a JVM."""


class _Watch:
    """What the running test may do. An audit hook stays as long as the process does."""

    def __init__(self) -> None:
        self.forbidden = False

    def hook(self, event: str, _arguments: tuple[object, ...]) -> None:
        if self.forbidden and event in _STARTS:
            raise AssertionError(f"a unit test without `@pytest.mark.process` starts a process ({event})")


_watch = _Watch()
sys.addaudithook(_watch.hook)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _JVM_FIXTURE in getattr(item, "fixturenames", ()):
            item.add_marker("process")


@pytest.fixture(autouse=True)
def starts_no_process(request: pytest.FixtureRequest) -> Iterator[None]:
    _watch.forbidden = request.node.get_closest_marker("process") is None
    yield
    _watch.forbidden = False
