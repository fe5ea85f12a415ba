"""`millstream logs`: what the processes of a run have logged, ordered by time."""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from millstream import codes
from millstream.errors import UserError
from millstream.lines import LineSplitter
from millstream.nearest import did_you_mean
from millstream_runner.cli.place import directory_of, is_pipeline_file
from millstream_runner.local.directory import DataDirectory
from millstream_runner.local.formatting import seconds_of
from millstream_runner.local.logfiles import WORKER_PREFIX, format_entry, level_of, older, parse_line

_FOLLOW_INTERVAL_S = 0.2
_READ_BYTES = 1024 * 1024
_LEVELS = ("debug", "info", "warning", "error")
_LEVEL_OF = {
    "DEBUG": "debug",
    "INFO": "info",
    "WARN": "warning",
    "WARNING": "warning",
    "ERROR": "error",
    "CRITICAL": "error",
    "FATAL": "error",
}
_Show = Callable[[dict[str, Any]], str]


def run(arguments: argparse.Namespace) -> int:
    if arguments.vertex is None and arguments.of is not None and not is_pipeline_file(arguments.of):
        arguments.of, arguments.vertex = None, str(arguments.of)
    directory = directory_of(arguments)
    vertex = _logged_as(directory, arguments.vertex) if arguments.vertex is not None else None
    names = _processes(directory.logs, vertex)
    if arguments.tail is not None and arguments.tail < 0:
        raise UserError(codes.OPTION_VALUE, f"--tail {arguments.tail}: must be a number of lines")
    since = _since(arguments.since) if arguments.since is not None else ""
    levels = _LEVELS[_LEVELS.index(arguments.level) :]

    def is_wanted(entry: dict[str, Any]) -> bool:
        return _time_of(entry) >= since and _LEVEL_OF.get(level_of(entry), "info") in levels

    show: _Show = json.dumps if arguments.json else format_entry
    streams = [_entries(directory.logs, name) for name in names]
    wanted: Iterable[dict[str, Any]] = filter(is_wanted, heapq.merge(*streams, key=_time_of))
    for entry in wanted if arguments.tail is None else deque(wanted, maxlen=arguments.tail):
        print(show(entry))
    if arguments.follow:
        asyncio.run(_follow(partial(_processes, directory.logs, vertex), directory.logs, is_wanted, show))
    return 0


def _since(text: str) -> str:
    """The time that it means, in the format of the log."""
    ago_s = seconds_of(text)
    try:
        moment = datetime.fromisoformat(text) if ago_s is None else datetime.now(UTC) - timedelta(seconds=ago_s)
    except (ValueError, OverflowError) as error:
        raise UserError(
            codes.OPTION_VALUE,
            f"--since {text!r}: must be a duration (30s, 10m, 2h, 1d) or a time (2026-01-31T12:00:00Z)",
        ) from error
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def _logged_as(directory: DataDirectory, vertex: str) -> str:
    """The vertex that names the logs: the first of the chain, for a vertex that follows in one."""
    if _of_vertex(_known(directory.logs), vertex) or not directory.pipeline.exists():
        return vertex
    # Loading a pipeline takes a while, and most calls do not need it.
    from millstream.plan import resolved

    return resolved.load(directory.read_pipeline()).graph.head(vertex)


def _known(logs: Path) -> list[str]:
    return sorted(path.stem for path in logs.glob("*.jsonl"))


def _of_vertex(known: Sequence[str], vertex: str) -> list[str]:
    return [name for name in known if name == vertex or name.rpartition("-")[0] == vertex]


def _processes(logs: Path, vertex: str | None) -> list[str]:
    """The names of all logs, or of those that concern one vertex."""
    known = _known(logs)
    if vertex is None:
        return known
    chosen = _of_vertex(known, vertex)
    if not chosen:
        raise UserError(
            codes.NOT_IN_PIPELINE,
            f"there is no log of {vertex!r} in {logs}; there are logs of: {', '.join(known) or 'nothing'}"
            f"{did_you_mean(vertex, known)}",
        )
    # A worker's own messages may concern any of its replicas.
    return chosen + [name for name in known if name.startswith(WORKER_PREFIX) and name not in chosen]


def _entries(logs: Path, name: str) -> Iterator[dict[str, Any]]:
    """The lines of one process, the older file first. A line without a time has the time of the line before it."""
    path = logs / f"{name}.jsonl"
    last = ""
    for part in (older(path), path):
        if not part.exists():
            continue
        with part.open("rb") as file:
            for line in file:
                entry = parse_line(line.rstrip(b"\n"), name)
                last = _time_of(entry) or last
                entry.setdefault("time", last)
                yield entry


def _time_of(entry: dict[str, Any]) -> str:
    return str(entry.get("time", ""))


async def _follow(
    known: Callable[[], list[str]], logs: Path, is_wanted: Callable[[dict[str, Any]], bool], show: _Show
) -> None:
    """Print new lines until interrupted, across rotation and including new processes."""
    last: dict[str, str] = {}
    tails = {name: _Tail(logs / f"{name}.jsonl", at_end=True) for name in known()}
    while True:
        for name in known():
            tail = tails.get(name)
            if tail is None:
                tail = tails[name] = _Tail(logs / f"{name}.jsonl", at_end=False)
            for line in tail.read():
                entry = parse_line(line, name)
                last[name] = str(entry.setdefault("time", last.get(name, "")))
                if is_wanted(entry):
                    print(show(entry), flush=True)
        await asyncio.sleep(_FOLLOW_INTERVAL_S)


class _Tail:
    """Reads the new lines of one log file."""

    def __init__(self, path: Path, *, at_end: bool) -> None:
        self._path = path
        self._lines = LineSplitter()
        status = path.stat() if at_end else None
        self._inode = status.st_ino if status is not None else 0
        self._offset = status.st_size if status is not None else 0

    def read(self) -> Iterator[bytes]:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return
        if status.st_ino != self._inode:
            # The file was rotated: the rest of the old file comes first.
            if self._inode:
                yield from self._read_from(older(self._path))
            self._inode, self._offset = status.st_ino, 0
        yield from self._read_from(self._path)

    def _read_from(self, path: Path) -> Iterator[bytes]:
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return
        with file:
            file.seek(self._offset)
            while data := file.read(_READ_BYTES):
                self._offset += len(data)
                yield from self._lines.feed(data)
