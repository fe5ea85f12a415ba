"""The files that file sinks of earlier runs have left: looked for before a run starts over, and moved on request.

Above it: the runner. Below it: the directories of file sinks. It only moves files: finished ones, and the notes of
their run next to them, which belong to them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from millstream import codes
from millstream.clock import MICROSECONDS
from millstream.durable import step
from millstream.errors import InfrastructureError, UserError
from millstream.plurals import counted
from millstream.spec.graph import Graph
from millstream_connectors.file.settings import FileSink
from millstream_connectors.file.sink.directory import HIDDEN, is_free, runs_of
from millstream_connectors.file.sink.names import FinishedName


@dataclass(frozen=True, slots=True)
class FormerOutput:
    """What an earlier run of a vertex has left in the directory of a file sink."""

    directory: Path
    files: Sequence[Path]
    """The finished files, by name."""
    runs: Sequence[Path]
    """Where the runs that wrote them keep their notes."""


def former_outputs(graph: Graph, base_dir: Path) -> list[FormerOutput]:
    """The directories in which a run that starts over would be refused."""
    found: dict[Path, FormerOutput] = {}
    for vertex, path in file_sinks(graph):
        directory = Path(os.path.normpath(base_dir / path))
        try:
            names = sorted(entry.name for entry in directory.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise InfrastructureError(codes.CANNOT_READ, f"cannot list {directory}: {error.strerror}") from error
        parsed = [(name, FinishedName.parse(name)) for name in names]
        files = [directory / name for name, it in parsed if it is not None and it.lane.startswith(f"{vertex}.")]
        if files:
            found[directory] = FormerOutput(directory, files, runs_of(directory, vertex))
    return list(found.values())


def refuse_former_outputs(outputs: Sequence[FormerOutput], *, fresh: bool) -> None:
    """Raises `UserError`, with what to do, if there are any. Nothing has been changed at that point."""
    if not outputs:
        return
    listed = "; ".join(
        f"{output.directory} contains {counted(len(output.files), 'file')}, such as {output.files[0].name}"
        for output in outputs
    )
    more = "--fresh --move-outputs" if fresh else "--move-outputs"
    raise UserError(
        codes.OUTPUTS_OF_EARLIER_RUN,
        f"this run would start from the beginning, but its sinks have files of an earlier run: {listed}. A file "
        f"sink does not mix the files of two runs. Nothing was removed. Run again with {more} to move them to "
        f"{outputs[0].directory}.before-<time>, or move them yourself, together with {HIDDEN}",
    )


def move_outputs(outputs: Sequence[FormerOutput], now_us: int) -> list[tuple[Path, Path]]:
    """Move the files of each directory to a new one next to it; returns the old and new places.

    Raises `UserError`, before anything is moved, if a run is writing there.
    """
    for output in outputs:
        for run in output.runs:
            if not is_free(run):
                raise UserError(
                    codes.OUTPUT_IN_USE,
                    f"another run writes to {output.directory} now (as {run.name}); end that run first",
                )
    moved = []
    for output in outputs:
        target = _aside(output.directory, now_us)
        try:
            with step("outputs.directory"):
                (target / HIDDEN).mkdir(parents=True)
            # First what the files belong to: without it they are refused rather than taken for files of another run.
            for path in (*output.runs, *output.files):
                with step("outputs.move"):
                    path.rename(target / path.relative_to(output.directory))
        except OSError as error:
            raise InfrastructureError(
                codes.OUTPUTS_NOT_MOVED,
                f"cannot move the files of {output.directory} to {target}: {error.strerror}. Nothing was removed; "
                f"move the remaining files yourself, together with {HIDDEN}",
            ) from error
        moved.append((output.directory, target))
    return moved


def file_sinks(graph: Graph) -> Iterator[tuple[str, str]]:
    """Vertices with a file sink or fallback, and its path."""
    for vertex in graph.vertices:
        for placed in vertex.ends:
            if isinstance(placed.end.settings, FileSink):
                yield vertex.name, placed.end.settings.path


def _aside(directory: Path, now_us: int) -> Path:
    """A free path next to a directory."""
    name = f"{directory.name}.before-{datetime.fromtimestamp(now_us // MICROSECONDS, UTC):%Y%m%dT%H%M%SZ}"
    number = 1
    target = directory.with_name(name)
    while target.exists():
        number += 1
        target = directory.with_name(f"{name}-{number}")
    return target
