"""Packages: each source and sink works with those of its extra alone, and imports none on the event loop."""

from __future__ import annotations

import asyncio
import inspect
import json
import subprocess
import sys
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from millstream import codes
from millstream.importing import importing, started
from millstream.missing_packages import missing_package, naming_missing_packages
from millstream.ports import free_ports
from tests.support.errors import raises

REPOSITORY = Path(__file__).parents[2]
SLOWEST = ("delta", "iceberg", "file")
"""Kinds with the slowest imports and the most packages; the others are opened in `make test-all`."""


@pytest.mark.process
@pytest.mark.parametrize("kinds", [SLOWEST, pytest.param((), marks=pytest.mark.sweep, id="all")])
def test_a_connector_needs_its_extra_alone_and_imports_nothing_on_the_loop(
    tmp_path: Path, kinds: tuple[str, ...]
) -> None:
    command = [sys.executable, "-m", "tests.unit.opened_alone", str(tmp_path), str(free_ports()), *kinds]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) >= 12
    assert {name: said for name, said in found.items() if said["missing"]} == {}
    assert {name: said["on_loop"] for name, said in found.items() if said["on_loop"]} == {}


async def test_imports_leave_the_loop_to_others() -> None:
    loop = asyncio.get_running_loop()

    def call() -> bool:
        # Returns only when the loop has run something meanwhile.
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()
        return True

    assert await importing(call)


async def test_a_coroutine_that_comes_after_a_cancellation_is_closed() -> None:
    may_return, returned = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    made: list[Coroutine[Any, Any, None]] = []

    async def opened() -> None:
        raise AssertionError("the caller was cancelled")

    def call() -> Coroutine[Any, Any, None]:
        may_return.wait()
        made.append(opened())
        loop.call_soon_threadsafe(returned.set)
        return made[0]

    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(started(call))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        may_return.set()
        await returned.wait()
        while inspect.getcoroutinestate(made[0]) != inspect.CORO_CLOSED:  # noqa: ASYNC110  # the loop closes it after the thread has returned
            await asyncio.sleep(0)
    assert waiting.cancelled()


def test_a_missing_package_is_an_error_of_the_installation() -> None:
    said = "the delta sink needs the package no_such_package, .*`pip install no_such"
    with raises(codes.EXTRA_NEEDED, match=said), naming_missing_packages("the delta sink"):
        import no_such_package.part  # type: ignore[import-not-found]  # noqa: F401
    known = missing_package(ModuleNotFoundError("", name="numpy.core"), "this vertex")
    assert "`pip install 'millstream[reduce]'`" in str(known)
    # A module of our own is a defect.
    with pytest.raises(ModuleNotFoundError), naming_missing_packages("the delta sink"):
        import millstream.no_such_module  # type: ignore[import-not-found]  # noqa: F401
