"""Which fault occurs when: a plan generated from a seed. Pure.

Above it: the session. It knows kinds and roles, not processes. The same seed, kinds and roles give the same plan; at
which moment of a run a strike occurs depends on the machine.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from millstream.limits import HUNG_AFTER_S

_Card = TypeVar("_Card")


class FaultKind(Enum):
    """A kind of fault."""

    KILL = "kill"
    """SIGKILL. The experiment restarts a killed runner at once, as its user would; the runner restarts everything
    else."""
    PAUSE = "pause"
    """SIGSTOP, and SIGCONT later. A worker may meanwhile be replaced by a successor, and resumes as a stale process."""
    NETWORK = "network"
    """Between the vertices and their broker."""
    DISK = "disk"
    """No space on the disk of the data directory for a while."""


class Role(Enum):
    """The purpose of a process of a run."""

    RUNNER = "runner"
    BROKER = "broker"
    WORKER = "worker"
    """Runs replicas of vertices."""
    SIDECAR = "sidecar"
    SPARK = "spark"
    """The Spark driver of the pipeline."""
    JVM = "jvm"
    """The Java process of the driver."""
    PYTHON = "python"
    """Spark's Python workers."""


class NetworkFault(Enum):
    """A fault on the path between the vertices and their broker."""

    CUT = "cut"
    """Every connection breaks."""
    LOSE_COMMIT = "lose-commit"
    """A commit never arrives."""
    LOSE_ANSWER = "lose-answer"
    """A commit arrives, its answer does not."""
    LATE_COMMIT = "late-commit"
    """A commit arrives after its sender has lost its connection and done something about it."""
    REPEAT_ANSWER = "repeat-answer"
    """An answer comes twice."""
    STALL = "stall"
    """Nothing passes, for longer than the timeout of an answer."""


ROLES = (Role.RUNNER, Role.BROKER, Role.WORKER, Role.SIDECAR)
"""Roles in every run, as far as it has functions."""
ALWAYS_THERE = (Role.RUNNER, Role.BROKER, Role.WORKER)
"""Those of `ROLES` that any run has nearly all the time."""
SPARK_ROLES = (Role.SPARK, Role.JVM, Role.PYTHON)
"""Additional roles in runs with a reduce."""

_INTO_RECOVERY_SHARE = 0.2
"""The share of strikes that occur during the recovery from the previous one."""
_QUIET_S = (0.1, 1.5)
"""Time between the end of a recovery and the next strike."""
_DURING_RECOVERY_S = (0.02, 0.6)
"""Time between two strikes if the second one does not wait."""
_PAUSE_S = (1.0, 9.0)
"""At the long end, more than the 5 s after which a commit's answer counts as lost."""
_LONG_PAUSES = (True, False, False, False)
"""One in four pauses is long."""
LONG_PAUSE_S = (16.0, 18.0)
"""Longer than every timeout, including that of a silent connection (15 s); by then the runner has replaced the
process."""
assert LONG_PAUSE_S[0] > HUNG_AFTER_S + 2
_STALL_S = (1.0, 7.0)
_FULL_S = (1.0, 4.0)


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault of the plan."""

    number: int
    """From 1."""
    kind: FaultKind
    role: Role | None
    """The role of the process that is struck; None if it does not strike a process."""
    network: NetworkFault | None
    pick: float
    """Which of several processes with this role: 0 is the first, up to 1 the last."""
    wait_s: float
    """Time before it, once the previous one is over."""
    lasts_s: float
    """Duration of a pause, a stall or a full disk; 0 for an instantaneous fault."""
    successor: bool
    """For the pause of a vertex: another owner takes over its lanes meanwhile."""
    into_recovery: bool
    """It does not wait until the run has recovered from the previous strike."""

    @property
    def what(self) -> str:
        """The strike in words, for the table."""
        if self.network is not None:
            return f"network {self.network.value}"
        return self.kind.value if self.role is None else f"{self.kind.value} {self.role.value}"


def strikes(seed: int, kinds: Sequence[FaultKind], roles: Sequence[Role]) -> Iterator[Strike]:
    """The plan, without end. All kinds, roles and network faults are equally frequent among their own sort."""
    rng = random.Random(seed)
    kind_of, role_of, network_of = _dealt(rng, kinds), _dealt(rng, roles), _dealt(rng, tuple(NetworkFault))
    pausable_of = _dealt(rng, tuple(role for role in roles if role is not Role.RUNNER))
    is_long = _dealt(rng, _LONG_PAUSES)
    for number in itertools.count(1):
        kind = next(kind_of)
        role = next(role_of) if kind is FaultKind.KILL else None
        if kind is FaultKind.PAUSE:
            role = next(pausable_of)
        network = next(network_of) if kind is FaultKind.NETWORK else None
        # Only a kill is planned into a recovery, and there is no recovery before the first strike.
        hasty = rng.random() < _INTO_RECOVERY_SHARE and kind is FaultKind.KILL and number > 1
        yield Strike(
            number=number,
            kind=kind,
            role=role,
            network=network,
            pick=rng.random(),
            wait_s=rng.uniform(*(_DURING_RECOVERY_S if hasty else _QUIET_S)),
            lasts_s=_lasts_s(rng, kind, network, long=kind is FaultKind.PAUSE and next(is_long)),
            successor=kind is FaultKind.PAUSE and role is Role.WORKER and rng.random() < 0.5,
            into_recovery=hasty,
        )


def _lasts_s(rng: random.Random, kind: FaultKind, network: NetworkFault | None, *, long: bool) -> float:
    if kind is FaultKind.PAUSE:
        return rng.uniform(*(LONG_PAUSE_S if long else _PAUSE_S))
    if kind is FaultKind.DISK:
        return rng.uniform(*_FULL_S)
    return rng.uniform(*_STALL_S) if network is NetworkFault.STALL else 0.0


def _dealt(rng: random.Random, cards: Sequence[_Card]) -> Iterator[_Card]:
    """The cards, shuffled again after each round."""
    while cards:
        deck = list(cards)
        rng.shuffle(deck)
        yield from deck
