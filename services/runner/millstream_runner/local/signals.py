"""Signals that a person or a service manager sends to the runner.

Above it: the run. Below it: the event loop.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ASKED_TO_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def handled(handler: Callable[[], None]) -> Iterator[None]:
    """Make SIGINT, SIGTERM and SIGHUP call `handler`. Afterwards they have no effect while the loop exists, so that a
    run that has ended can finish."""
    loop = asyncio.get_running_loop()
    for number in ASKED_TO_STOP:
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in ASKED_TO_STOP:
            loop.add_signal_handler(number, lambda: None)


def ignore() -> None:
    """The same without a loop, for a process that only has to print its result."""
    for number in ASKED_TO_STOP:
        signal.signal(number, signal.SIG_IGN)
