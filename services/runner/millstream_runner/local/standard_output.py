"""The standard output of a run, as the target of its log sinks.

    lines of a worker ─► queue ─► thread ─► standard output ─► written: the sink may commit
                                                           └─► an error: the run ends

Above it: the workers' channels. Below it: descriptor 1, and the screen, which may be on the same terminal. It writes
what it gets as a whole, so the lines of two workers do not mix. A thread waits for a slow reader, so the runner still
hears Ctrl-C.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue

from millstream import codes
from millstream.descriptors import ESCAPED, PIPE_CLOSED, cause_text, write_lines
from millstream.errors import InfrastructureError
from millstream_runner.local.replica import Failure
from millstream_runner.local.screen import Screen


class StandardOutput:
    """What log sinks print."""

    def __init__(self, screen: Screen, on_failure: Callable[[], None]) -> None:
        """`on_failure` is called when something could not be written: nothing more will be."""
        self._screen = screen
        self._on_failure = on_failure
        self._jobs: SimpleQueue[tuple[bytes, asyncio.Future[None]]] = SimpleQueue()
        """Lines to write, and what is done when they are written."""
        self._thread: threading.Thread | None = None
        self.error: OSError | None = None
        """Why it cannot be written."""

    @property
    def failure(self) -> Failure | None:
        """The same as the reason why a run ends."""
        if self.error is None:
            return None
        # The reader of a pipe has ended on purpose, which programs do not comment on.
        is_closed = isinstance(self.error, BrokenPipeError)
        return Failure(
            "standard output",
            PIPE_CLOSED if is_closed else InfrastructureError.exit_code,
            "cannot be written",
            cause_text(self.error),
            code=None if is_closed else codes.OUTPUT_CLOSED,
            shown=is_closed,
        )

    async def print(self, lines: bytes) -> None:
        """Write complete lines. Raises `OSError` if they could not be written, now or before."""
        if self.error is not None:
            raise self.error
        if self._thread is None:
            sys.stdout.flush()
            # A daemon: a reader that does not read must not keep the runner from ending.
            self._thread = threading.Thread(target=self._write, name="standard output", daemon=True)
            self._thread.start()
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._screen.printing():
            self._jobs.put((lines, written))
            try:
                await written
            except OSError as error:
                if self.error is None:
                    self.error = error
                    self._on_failure()
                raise

    def _write(self) -> None:
        descriptor, encoding = sys.stdout.fileno(), sys.stdout.encoding.lower().replace("_", "-")
        failed: OSError | None = None
        while True:
            lines, written = self._jobs.get()
            if failed is None:
                if encoding not in ("utf-8", "utf8"):
                    # Records are UTF-8, as JSON has to be; a terminal in another encoding gets what it can show.
                    lines = lines.decode(errors="replace").encode(encoding, ESCAPED)
                try:
                    write_lines(descriptor, lines)
                except OSError as error:
                    failed = error
            try:
                written.get_loop().call_soon_threadsafe(_settle, written, failed)
            except RuntimeError:
                # The loop is closed: the run was stopped at once.
                return


def _settle(done: asyncio.Future[None], error: OSError | None) -> None:
    if done.done():
        # Its process has ended meanwhile.
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
