"""The log of the runner: warnings go to the screen, everything to a log file next to those of the other processes.

Above it: the runner. Below it: the standard library's logging and the screen.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from millstream.telemetry.logging import fields_of
from millstream_runner.local.logfiles import LogFile, short_entry

NAME = "runner"
"""Name of the process, in logs."""


class _Handler(logging.Handler):
    def __init__(self, log: LogFile, message: Callable[[str], None]) -> None:
        super().__init__()
        self._log = log
        self._message = message

    def emit(self, record: logging.LogRecord) -> None:
        level, text = record.levelname.lower(), record.getMessage()
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
        line = {"time": time, "level": level, "message": text, "logger": record.name, **fields_of(record)}
        self._log.write(json.dumps(line, default=str).encode())
        if record.levelno >= logging.WARNING:
            self._message(short_entry({**line, "process": NAME}))


@contextmanager
def runner_log(directory: Path, message: Callable[[str], None]) -> Iterator[None]:
    """While the context lasts, log to `<directory>/runner.jsonl`, and warnings to `message`."""
    root = logging.getLogger()
    level = root.level
    with LogFile(directory / f"{NAME}.jsonl") as log:
        handler = _Handler(log, message)
        root.addHandler(handler)
        root.setLevel(logging.INFO)
        try:
            yield
        finally:
            root.removeHandler(handler)
            root.setLevel(level)
