"""`millstream logs`: what the processes of a run have logged, in the order of time."""

from __future__ import annotations

import argparse
import asyncio
import heapq
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from millstream.errors import UserError
from millstream.local.directory import find_directory
from millstream.local.logfiles import LineSplitter, format_entry, older, parse_line

_FOLLOW_INTERVAL_S = 0.2
_READ_BYTES = 1024 * 1024


def run(arguments: argparse.Namespace) -> int:
    directory = find_directory(arguments.data_dir, arguments.pipeline)
    names = _processes(directory.logs, arguments.vertex)
    streams = [_entries(directory.logs, name) for name in names]
    for entry in heapq.merge(*streams, key=_time_of):
        print(format_entry(entry))
    if arguments.follow:
        asyncio.run(_follow(directory.logs, arguments.vertex, names))
    return 0


def _processes(logs: Path, vertex: str | None) -> list[str]:
    """Names of the processes that have a log: all, or those of one vertex."""
    known = sorted(path.stem for path in logs.glob("*.jsonl"))
    if vertex is None:
        return known
    chosen = [name for name in known if name == vertex or name.rpartition("-")[0] == vertex]
    if not chosen:
        raise UserError(f"there is no log of {vertex!r} in {logs}; there are logs of: {', '.join(known) or 'nothing'}")
    return chosen


def _entries(logs: Path, name: str) -> Iterator[dict[str, Any]]:
    """One process's lines, the older file first; a line without a time keeps the time of the one before."""
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


async def _follow(logs: Path, vertex: str | None, names: list[str]) -> None:
    """Print what is added, for ever; rotation and new processes included."""
    tails = {name: _Tail(logs / f"{name}.jsonl", at_end=True) for name in names}
    while True:
        for name in _processes(logs, vertex):
            tail = tails.get(name)
            if tail is None:
                tail = tails[name] = _Tail(logs / f"{name}.jsonl", at_end=False)
            for line in tail.read():
                print(format_entry(parse_line(line, name)), flush=True)
        await asyncio.sleep(_FOLLOW_INTERVAL_S)


class _Tail:
    """Reads what is added to one log file."""

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
            # Rotated: what was added to the old file since the last look comes first.
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
