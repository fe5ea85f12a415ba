"""Debuggers in the process of a function: waits for one, and defines `breakpoint()` without one.

Above it: the command line and the server. Below it: debugpy, if it is installed and requested. A function in a
pipeline has no terminal, so pdb would read the end of its input and end the call. Debuggers have no authentication, and
what is attached may run any code: only this user's processes may connect.
"""

from __future__ import annotations

import importlib
import logging
import os
import socket
import sys
import tempfile
import threading
import time
from typing import Any, NoReturn

from millstream_udf.same_user import is_supported, only_accept_own_connections

PORT_VARIABLE = "MILLSTREAM_DEBUG_PORT"
"""Environment variable with the local port on which to wait for a debugger; unset for none."""
HOST = "127.0.0.1"
_NOTICE = {"millstream_notice": True}
"""Field of a log line that is shown to the user who watches the run."""
_PORT_FREE_S = 10.0
"""By then, the process that waited at the port before, and which this one replaces, has released it."""

_log = logging.getLogger("millstream_udf.debugging")


def wait_for_debugger() -> None:
    """Wait until a debugger is attached, if one is requested. Ends the process with code 2 if that is impossible."""
    port = os.environ.get(PORT_VARIABLE)
    if not port:
        return
    if not is_supported():
        _end("a debugger could be attached by every user of this machine; to check who connects needs Linux")
    # At every start, it would warn that Python's own modules are frozen; these are not debugged.
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    try:
        debugger: Any = importlib.import_module("debugpy")
    except ImportError:
        _end(f"the debugger debugpy is not installed for {sys.executable}: `{sys.executable} -m pip install debugpy`")
    _listen(debugger, int(port))
    vertex = os.environ.get("MILLSTREAM_VERTEX", "the function")
    _log.info(
        "%s waits for a debugger at %s:%s (VS Code: F5; PyCharm: Attach to DAP); Ctrl-C ends the run",
        vertex,
        HOST,
        port,
        extra=_NOTICE,
    )
    debugger.wait_for_client()
    _log.info("a debugger is attached to %s", vertex, extra=_NOTICE)
    sys.breakpointhook = debugger.breakpoint


def _listen(debugger: Any, port: int) -> None:
    until_s = time.monotonic() + _PORT_FREE_S
    while True:
        try:
            _listen_for_this_user(debugger, port)
        except RuntimeError as error:
            if time.monotonic() > until_s:
                _end(f"cannot wait for a debugger at {HOST}:{port}: {error}")
            threading.Event().wait(0.2)
        else:
            return


def _listen_for_this_user(debugger: Any, port: int) -> None:
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "debug_adapter")
    path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    accept = socket.socket.accept
    with tempfile.TemporaryDirectory(prefix="millstream-debug-") as directory:
        guarded, accepted = os.path.join(directory, "guarded"), os.path.join(directory, "accepted")
        # The adapter is a process of its own, which listens; and it reports its ports to this one at a port.
        environment = {**os.environ, "PYTHONPATH": path}
        environment |= {"MILLSTREAM_DEBUG_GUARDED": guarded, "MILLSTREAM_DEBUG_ACCEPTED": accepted}
        only_accept_own_connections(lambda: os.close(os.open(accepted, os.O_WRONLY | os.O_CREAT, 0o600)))
        try:
            debugger.configure(pythonEnv=environment)
            debugger.listen((HOST, port))
        except ValueError as error:
            _end(f"this version of debugpy is not supported ({error}): `{sys.executable} -m pip install -U debugpy`")
        finally:
            socket.socket.accept = accept  # type: ignore[method-assign]
        if not os.path.exists(guarded):
            _end("the debugger would accept connections of other users: this version of debugpy is not supported")


def _end(why: str) -> NoReturn:
    print(f"millstream_udf: {why}", file=sys.stderr)
    sys.exit(2)


def explain_breakpoints() -> None:
    """Make `breakpoint()`, and `pdb.set_trace()` if pdb is imported, log what to do instead, and continue."""
    if os.environ.get(PORT_VARIABLE) or os.environ.get("PYTHONBREAKPOINT"):
        return
    said: set[tuple[str, int]] = set()

    def pass_over(*_: Any, **__: Any) -> None:
        frame = sys._getframe(1)
        place = (frame.f_code.co_filename, frame.f_lineno)
        if place not in said:
            said.add(place)
            _log.warning(
                "the breakpoint at %s:%s was skipped: %s",
                os.path.relpath(frame.f_code.co_filename),
                frame.f_lineno,
                advice(),
            )

    sys.breakpointhook = pass_over
    if (pdb := sys.modules.get("pdb")) is not None:
        vars(pdb)["set_trace"] = pass_over


def advice() -> str:
    """What to do instead of pdb."""
    vertex = os.environ.get("MILLSTREAM_VERTEX", "NAME")
    return (
        f"a function in a pipeline has no terminal. `millstream run ... --debug-function {vertex}` waits for a "
        "debugger; in a test of the function, pdb works as usual"
    )
