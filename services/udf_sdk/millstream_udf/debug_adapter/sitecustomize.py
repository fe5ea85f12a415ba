"""Runs at the start of debugpy's adapter, which listens for editors, before the adapter itself.

Python imports a module of this name at its start; `millstream_udf.debugging` puts this directory into the adapter's
search path. Debuggers have no authentication, so the adapter accepts connections of this user alone. If that cannot be
set up, the process ends before it listens.
"""

from __future__ import annotations

import os
import runpy
import socket
import threading
import time
import traceback

_TIMEOUT_S = 30.0
"""debugpy's own, for the report."""


def _stay_until_accepted(accepted: str) -> None:
    """Keeps the first connection, over which the adapter reports its ports to the function, open until the function has
    accepted it: afterwards, the function could no longer see whose it is."""
    connect = socket.socket.connect

    def connect_and_stay(self: socket.socket, address: object) -> None:
        socket.socket.connect = connect  # type: ignore[method-assign]
        connect(self, address)  # type: ignore[arg-type]
        until_s, pause = time.monotonic() + _TIMEOUT_S, threading.Event()
        while not os.path.exists(accepted) and time.monotonic() < until_s:
            pause.wait(0.01)

    socket.socket.connect = connect_and_stay  # type: ignore[method-assign, assignment]


try:
    # By its path: the package may not be importable here, and its other modules are not needed.
    _package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    runpy.run_path(os.path.join(_package, "same_user.py"))["only_accept_own_connections"]()
    _stay_until_accepted(os.environ["MILLSTREAM_DEBUG_ACCEPTED"])
    os.close(os.open(os.environ["MILLSTREAM_DEBUG_GUARDED"], os.O_WRONLY | os.O_CREAT, 0o600))
except BaseException:  # noqa: BLE001  # Python would report it and continue
    traceback.print_exc()
    os._exit(2)
