"""The findings of the checks of a machine, and what the checks have to look for: what a pipeline needs, from its file.

Above it: the command, and the modules with the checks. Below it: the loaded pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from millstream.spec.buffers import DEFAULT, EXTRAS
from millstream.spec.loading import LoadedPipeline
from millstream.spec.models import Program
from millstream.spec.needs import needed_by
from millstream_runner.local.directory import root_of
from millstream_runner.local.prerequisites import listeners, reserved_bytes


class CheckState(StrEnum):
    """The state of one thing."""

    OK = "ok"
    WARNING = "warning"
    """It works, but something about it may be a problem."""
    MISSING = "missing"
    """It is needed and does not work."""
    OPTIONAL = "optional"
    """It is missing, and only some pipelines need it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the answer."""

    name: str
    """What was checked."""
    state: CheckState
    found: str
    """What was found."""
    needed_for: str
    remedy: str = ""
    """What to do; empty if nothing has to be done."""

    def as_json(self) -> dict[str, Any]:
        """The finding for programs."""
        return {**asdict(self), "state": self.state.value}


def judged(name: str, found: str, needed_for: str, remedy: str, otherwise: CheckState = CheckState.MISSING) -> Finding:
    """What was found is in order unless there is a remedy; with one, its state is `otherwise`."""
    return Finding(name, otherwise if remedy else CheckState.OK, found, needed_for, remedy)


@dataclass(frozen=True, slots=True)
class Needs:
    """What has to exist. Without a pipeline: what every pipeline needs; the rest is optional."""

    pipeline: bool
    """Whether a pipeline was given: then only what it needs is checked."""
    directory: Path
    """Where its data would be stored."""
    technology: str = DEFAULT
    storage_bytes: int = 0
    """Storage that its buffers reserve."""
    ports: tuple[tuple[str, str, int], ...] = ()
    """Vertex, host and port of its listeners."""
    spark: bool = False
    """Whether it has a reduce whose windows a Spark on this machine computes."""
    go: bool = False
    """Whether one of its functions is in a Go module."""
    sandbox: bool = False
    extras: frozenset[str] = frozenset()
    """Extras as pip takes them, such as `millstream[kafka]`."""

    def wants(self, needed: bool) -> bool:
        """Whether to check something that not every pipeline needs."""
        return needed or not self.pipeline

    def lacking(self, needed: bool) -> CheckState:
        """The state of something that is missing."""
        return CheckState.MISSING if needed else CheckState.OPTIONAL


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
