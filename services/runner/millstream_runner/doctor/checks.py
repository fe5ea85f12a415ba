"""The findings of the checks of a machine, and what the checks have to look for. Pure.

Above it: the command, and the modules with the checks. Below it: the names in pipeline files.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from millstream.spec.buffers import DEFAULT


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
