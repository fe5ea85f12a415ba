"""What a check of a machine finds, and what the checks are asked for. Pure.

Above it: the command, and the modules with the checks. Below it: nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any


class State(StrEnum):
    """How it is with one thing."""

    OK = "ok"
    WARNING = "warning"
    """It works, and something about it may be a nuisance."""
    MISSING = "missing"
    """It is needed and does not work."""
    OPTIONAL = "optional"
    """It is not there, and only some pipelines need it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the answer."""

    name: str
    """Of what was looked at."""
    state: State
    found: str
    """What is there."""
    needed_for: str
    remedy: str = ""
    """What to do; empty where nothing is to be done."""

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {**asdict(self), "state": self.state.value}


@dataclass(frozen=True, slots=True)
class Needs:
    """What has to be there. Of no pipeline in particular: what every one needs; the rest is optional."""

    pipeline: bool
    """One pipeline was named: what it does not need is not looked at."""
    directory: Path
    """Where its data would lie."""
    technology: str = "jetstream"
    storage_bytes: int = 0
    """What its buffers reserve."""
    ports: tuple[tuple[str, str, int], ...] = ()
    """Vertex, host and port of what it listens on."""
    spark: bool = False
    """It has a reduce whose windows a Spark of this machine computes."""
    go: bool = False
    """One of its functions lies beside a go.mod."""
    sandbox: bool = False
    extras: frozenset[str] = frozenset()
    """As pip takes them, such as `millstream[kafka]`."""

    def wants(self, needed: bool) -> bool:
        """Whether to look at something that not every pipeline needs."""
        return needed or not self.pipeline

    def lacking(self, needed: bool) -> State:
        """What its absence is called."""
        return State.MISSING if needed else State.OPTIONAL
