"""What a pipeline that is killed at durable steps consists of, and how its outputs are read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet

from millstream_reduce.log.inspection import find_logs, inspect_log
from tests.mesh.conftest import PipelineFiles
from tests.recovery.crash_receiver import RECEIVED

PORT = "PORT"
"""In a pipeline's text: the port in the file of that name, in its directory."""
TARGET = "TARGET"
"""In a pipeline's text: the URL of the receiver of what it sends."""
CAT = "{builtin: {name: cat}}"
SANDBOXED = "{python: 'functions.py:identity', sandbox: strict}"
TAKEN = "taken"
"""Where files are that were taken away from the directories of their sinks."""
_POLL_S = 0.01


class Outputs:
    """What the file sinks of a pipeline have made visible."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def rows(self, sink: str) -> list[dict[str, Any]]:
        files = self._files(sink, "*.jsonl")
        return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]

    def values(self, sink: str) -> list[dict[str, Any]]:
        """Of a Parquet sink: each record's value."""
        files = self._files(sink, "*.parquet")
        tables = [pyarrow.parquet.read_table(file) for file in files]
        return [json.loads(value or "") for table in tables for value in table.column("value").to_pylist()]

    def _files(self, sink: str, pattern: str) -> list[Path]:
        return sorted([*(self.directory / sink).glob(pattern), *(self.directory / TAKEN / sink).glob(pattern)])

    def received(self) -> list[dict[str, Any]]:
        """By the HTTP target."""
        files = sorted((self.directory / RECEIVED).glob("*"))
        assert not [file for file in files if file.name.endswith(".again")]
        return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]

    def left_over(self) -> list[str]:
        """What is not needed when every process has ended: unfinished files, former owners', segments outside of their
        log. And what a log should not have: faults, of which each is named."""
        sinks = self.directory.glob("*/.millstream/*/*/*")
        unfinished = [path for path in sinks if path.is_file() and path.suffix != ".note"]
        removed = list(self.directory.glob("*/.millstream/removed-*"))
        owners = [
            path
            for lane in (self.directory / "windows").glob("*/*")
            for path in sorted((lane / "owners").iterdir(), key=lambda owner: int(owner.name))[:-1]
        ]
        names = (".*.new", "*.result")
        segments = [path for name in names for path in (self.directory / "windows").glob(f"*/*/{name}")]
        faults = []
        for path in find_logs(self.directory / "windows"):
            log = inspect_log(path, verify=True)
            segments += [log.directory / segment.file for segment in log.segments if segment.state == "left over"]
            faults += log.faults
        return [str(path.relative_to(self.directory)) for path in (*unfinished, *removed, *owners, *segments)] + faults


@dataclass(frozen=True, slots=True)
class CrashPipeline:
    """One pipeline to be killed."""

    vertices: str
    edges: Sequence[str]
    check: Callable[[Outputs], None]
    """Raises `AssertionError` unless the outputs are what they must be."""
    open_records: int = 0
    """Records that windows hold at the end."""
    prepare: Callable[[Path], None] | None = None
    """Writes the input that is there before the first run."""
    feed: Callable[[Outputs], Any] | None = None
    """Coroutine function: feeds what is missing yet, and returns when all outputs are there; then the pipeline is asked
    to stop. None for a pipeline that ends by itself."""
    between: Callable[[Path], None] | None = None
    """What else is lost with every kill."""
    packed: str = ""
    """A vertex whose commits are all packs."""
    apart: str = ""
    """A vertex that stores frames apart in all its commits."""

    def write(self, directory: Path, name: str, target: str, *, sandboxed: bool = False) -> Path:
        """The pipeline's file and input; `name` is the pipeline's, `target` where it sends what it sends by HTTP.
        `sandboxed`: a map is a function in a strict sandbox, not a built-in."""
        if self.prepare is not None:
            self.prepare(directory)
        vertices = self.vertices.replace(TARGET, target)
        if PORT in vertices:
            vertices = vertices.replace(PORT, (directory / PORT).read_text())
        if sandboxed:
            vertices = vertices.replace(CAT, SANDBOXED)
        path = PipelineFiles(directory).write(vertices, self.edges)
        path.write_text(path.read_text().replace("metadata: {name: p}", f"metadata: {{name: {name}}}"))
        return path


async def until(reached: Callable[[], bool]) -> None:
    while not reached():  # noqa: ASYNC110  # a file that appears is not an event
        await asyncio.sleep(_POLL_S)


def file_sink(name: str, records: int, file_format: str = "jsonl") -> str:
    rolling = f"{{maxRecords: {records}, maxAge: 50ms}}"
    return f"- name: {name}\n  sink: {{file: {{path: {name}, format: {file_format}, rolling: {rolling}}}}}\n"
