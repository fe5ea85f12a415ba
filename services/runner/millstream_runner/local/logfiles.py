"""Log files of a local run: one of JSON lines per process, bounded by rotation.

Above it: the runner, which writes them, and `millstream logs`, which reads them. A log never stops a run: lines that
cannot be written (a full disk) are counted and dropped.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from millstream.files import append_private, make_private_directories
from millstream.json_parser import parse_json
from millstream.printable import in_line, indented
from millstream.telemetry.logging import NOTICE, entry_of

LOG_BYTES_MAX = 16 * 1024 * 1024
"""Size of one log file. One older file is kept next to it, so a process has at most twice this."""
WORKER_PREFIX = "worker."
"""Prefix of the name of a worker with several replicas, and of its log; no replica can have such a name."""
RUNNER = "runner"
"""Name of the runner's own process, and of its log."""
_REPLICAS_SHOWN_MAX = 4
"""Replicas of a worker in a line for people."""


class LogFile:
    """The log of one process, written only by the runner. Used as a context manager."""

    def __init__(self, path: Path, *, bytes_max: int = LOG_BYTES_MAX) -> None:
        self.path = path
        self.lines_lost = 0
        """Lines that could not be written."""
        self._bytes_max = bytes_max
        self._file: IO[bytes] | None = None
        self._size = 0

    def __enter__(self) -> LogFile:
        with suppress(OSError):
            self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, line: bytes) -> None:
        """Append one line, given without its line feed."""
        try:
            file = self._file or self._open()
            if self._size + len(line) >= self._bytes_max:
                self.close()
                self.path.replace(older(self.path))
                file = self._open()
            file.write(line + b"\n")
            self._size += len(line) + 1
        except OSError:
            self.lines_lost += 1

    def _open(self) -> IO[bytes]:
        make_private_directories(self.path.parent)
        # Unbuffered: a line is in the file when `write` returns, and a full disk is noticed here, not later.
        self._file = append_private(self.path)
        self._size = os.fstat(self._file.fileno()).st_size
        return self._file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def older(path: Path) -> Path:
    """Where a log file is moved when a new one is begun."""
    return path.with_name(path.name + ".1")


def parse_line(line: bytes, source: str) -> dict[str, Any]:
    """A log line as an object; other text (a crash report, a print, the logs of other libraries) becomes its message.

    `process` is the replica that logged it, or else `source`.
    """
    try:
        entry = parse_json(line)
    except ValueError:
        entry = None
    if not isinstance(entry, dict) or "message" not in entry:
        entry = {"message": line.decode(errors="replace")}
    if "vertex" in entry and "replica" in entry:
        source = f"{entry['vertex']}-{entry['replica']}"
    entry.setdefault("process", source)
    return entry


def level_of(entry: Mapping[str, Any]) -> str:
    """The line's level in capitals; a line without one is information."""
    return str(entry.get("level", "INFO")).upper()


def process_label(name: str, replicas: Sequence[str]) -> str:
    """A process for people, who think in vertices: with the replicas that it runs, if its name does not say them."""
    if len(replicas) < 2:
        return name
    more = len(replicas) - _REPLICAS_SHOWN_MAX
    shown = ", ".join(replicas[:_REPLICAS_SHOWN_MAX])
    return f"{name} ({shown} and {more} more)" if more > 0 else f"{name} ({shown})"


def short_entry(entry: Mapping[str, Any]) -> str:
    """One line for a person who is watching: level and code of an error, process, message."""
    code = f"[{entry['code']}]" if entry.get("code") else ""
    level = "" if entry.get(NOTICE) and level_of(entry) == "INFO" else f"{level_of(entry).lower()}{code}: "
    text = in_line(f"{level}{entry.get('process', '')}: ") + indented(str(entry.get("message", "")))
    if entry.get("exception") and level_of(entry) in ("ERROR", "CRITICAL"):
        vertex = str(entry.get("vertex") or entry.get("process", "")).partition(" ")[0]
        text += f"\n    (the whole traceback: `millstream logs {vertex}`)"
    return text


def format_entry(entry: Mapping[str, Any]) -> str:
    """One line for people: time, level, process, message, then the other fields."""
    time = entry.get("time") or entry.get("timestamp") or ""
    if isinstance(time, int | float):
        time = datetime.fromtimestamp(time, UTC).isoformat(timespec="milliseconds")
    message = indented(str(entry.get("message", "")))
    known = {"time", "timestamp", "level", "process", "message", "exception", "pipeline", "vertex", "replica", NOTICE}
    rest = " ".join(
        f"{in_line(key)}={in_line(value if isinstance(value, str) else json.dumps(value, default=str))}"
        for key, value in entry.items()
        if key not in known and value not in ("", None)
    )
    text = in_line(f"{time!s:<24} {level_of(entry):<7} {entry.get('process', '')!s:<14} ") + message
    if rest:
        text += f"  [{rest}]"
    if entry.get("exception"):
        text += "\n" + indented(f"    {entry['exception']}")
    return text


class _Handler(logging.Handler):
    """The log of the runner itself, next to those of the other processes; warnings go to the screen, too."""

    def __init__(self, log: LogFile, message: Callable[[str], None]) -> None:
        super().__init__()
        self._log = log
        self._message = message

    def emit(self, record: logging.LogRecord) -> None:
        line = entry_of(record)
        self._log.write(json.dumps(line, default=str).encode())
        if record.levelno >= logging.WARNING:
            self._message(short_entry({**line, "process": RUNNER}))


@contextmanager
def runner_log(directory: Path, message: Callable[[str], None]) -> Iterator[None]:
    """While the context lasts, log to `<directory>/runner.jsonl`, and warnings to `message`."""
    root = logging.getLogger()
    level = root.level
    with LogFile(directory / f"{RUNNER}.jsonl") as log:
        handler = _Handler(log, message)
        root.addHandler(handler)
        root.setLevel(logging.INFO)
        try:
            yield
        finally:
            root.removeHandler(handler)
            root.setLevel(level)
