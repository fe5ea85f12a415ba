"""Durable steps: everything that outlives the process or is seen outside it passes through `step`.

    with step("log.entries.sync", vertex):
        os.fdatasync(descriptor)

Above it: code that writes, syncs, renames, commits, publishes, purges or acknowledges. Below it: nothing. It does not
depend on what the steps do. `tools/durable_steps.py` reads the list of steps from the code, and docs/crash-points.md
shows it.

Each step has two points, `log.entries.sync:before` and `log.entries.sync:after`; the second is not reached when the
step fails. Usually there is no listener and a step costs a tenth of a microsecond. With MILLSTREAM_CRASH_AT set to a
point,

    MILLSTREAM_CRASH_AT=log.entries.sync:after          the first time
    MILLSTREAM_CRASH_AT=log.entries.sync:after#3        the third time
    MILLSTREAM_CRASH_AT=log.entries.sync:after#3@sum    the third time, counting the steps of vertex `sum` only

the process that reaches it kills itself there, as `kill -9` would. Tests use this to check the recovery.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Lock

from millstream import codes
from millstream.errors import UserError

CRASH_AT = "MILLSTREAM_CRASH_AT"
"""The environment variable that names the point."""
_FORM = re.compile(r"(?P<point>[a-z_]+(\.[a-z_]+)+:(before|after))(#(?P<time>[1-9][0-9]*))?(@(?P<vertex>.+))?")

Listener = Callable[[str, str], None]
"""Gets the point and the vertex ("" if the step does not belong to one vertex), in the thread that has reached it."""


@contextmanager
def _heard(listener: Listener, name: str, vertex: str) -> Iterator[None]:
    """A step that calls the listener."""
    listener(f"{name}:before", vertex)
    yield
    listener(f"{name}:after", vertex)


_UNHEARD = nullcontext()
"""A step without a listener."""
_listeners: list[Listener] = []
"""At most one listener."""


def step(name: str, vertex: str = "") -> AbstractContextManager[None]:
    """One durable step. `name` is a literal that occurs in only one place: a point says where the process is."""
    return _heard(_listeners[0], name, vertex) if _listeners else _UNHEARD


def listen(listener: Listener | None) -> None:
    """Registers the listener for all points of this process; None removes it."""
    _listeners[:] = [] if listener is None else [listener]


def crash_at(text: str, signal_number: signal.Signals = signal.SIGKILL) -> Listener:
    """A listener that kills its own process, or sends it another signal, at the point that `text` names. `text` has the
    form of the environment variable.

    Raises `UserError` if it does not.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise UserError(codes.OPTION_VALUE, f"{CRASH_AT}={text}: expected a point such as log.entries.sync:after#3@sum")
    wanted, vertex, time = match["point"], match["vertex"], int(match["time"] or 1)
    lock = Lock()
    reached = 0

    def listener(point: str, owner: str) -> None:
        nonlocal reached
        if point != wanted or vertex not in (None, owner):
            return
        with lock:
            reached += 1
            if reached == time:
                os.kill(os.getpid(), signal_number)

    return listener


if CRASH_AT in os.environ:
    listen(crash_at(os.environ[CRASH_AT]))
