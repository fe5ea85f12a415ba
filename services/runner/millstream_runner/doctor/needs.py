"""What a pipeline needs of a machine, from its file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from millstream.spec.buffers import EXTRAS
from millstream.spec.loading import LoadedPipeline
from millstream.spec.models import Program
from millstream.spec.needs import needed_by
from millstream_runner.doctor.checks import Needs
from millstream_runner.local.directory import root_of
from millstream_runner.local.prerequisites import listeners, reserved_bytes


def needs_of(loaded: LoadedPipeline, data_dir: Path | None) -> Needs:
    """Everything that the checks need to know."""
    graph = loaded.graph
    spark = loaded.pipeline.spec.spark
    programs = [item.program for vertex in graph.vertices for item in vertex.programs]
    return Needs(
        pipeline=True,
        directory=root_of(loaded.pipeline.name, data_dir),
        technology=loaded.pipeline.spec.buffer_technology,
        storage_bytes=sum(reserved_bytes(loaded.plan).values()),
        ports=tuple((vertex, host, port) for vertex, _, host, port in listeners(graph) if port),
        spark=any(vertex.definition.has_windows for vertex in graph.vertices) and (spark is None or not spark.remote),
        go=any(_is_go(program, loaded.base_dir) for program in programs),
        sandbox=any(program.sandbox is not None for program in programs),
        extras=frozenset(_extras(loaded, programs)),
    )


def _extras(loaded: LoadedPipeline, programs: Sequence[Program]) -> Iterator[str]:
    if any(_uses_arrow(program, loaded.base_dir) for program in programs):
        yield "millstream[arrow]"
    if extra := EXTRAS.get(loaded.pipeline.spec.buffer_technology):
        yield extra
    yield from (one.package for one in loaded.pipeline.spec.needs())
    for vertex in loaded.graph.vertices:
        yield from (one.package for one in needed_by(vertex.settings))
        for placed in vertex.ends:
            yield from (one.package for one in needed_by(placed.end))


def _is_go(program: Program, base_dir: Path) -> bool:
    """Whether its command is in a Go module."""
    if program.command is None:
        return False
    folder = (base_dir / (program.working_dir or ".") / program.command[0]).parent
    return any((place / "go.mod").is_file() for place in (folder, *folder.parents) if place.is_relative_to(base_dir))


def _uses_arrow(program: Program, base_dir: Path) -> bool:
    """Whether its file says so. Nothing is imported, so an installed module is assumed not to need Arrow."""
    file = (program.python or "").rpartition(":")[0]
    path = base_dir / (program.working_dir or ".") / file
    return file.endswith(".py") and path.is_file() and b"arrow=True" in path.read_bytes()
