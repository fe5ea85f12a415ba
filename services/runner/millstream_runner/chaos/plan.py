"""Which fault comes when: a plan made from a seed. Pure.

Above it: the session. It knows kinds and roles, not processes. The same seed, kinds and roles give the same plan; which
moment of a run a strike meets is up to the machine.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from millstream.limits import HUNG_AFTER_S

_Card = TypeVar("_Card")


class FaultKind(Enum):
    """What is done."""

    KILL = "kill"
    """SIGKILL. A runner is started again at once, as its user would; everything else is the runner's to start."""
    PAUSE = "pause"
    """SIGSTOP, and SIGCONT later. A worker may meanwhile be replaced by a successor, and wakes up as a zombie."""
    NETWORK = "network"
    """Between the vertices and their broker."""
    DISK = "disk"
    """No room on the disk of the data directory, for a while."""


class Role(Enum):
    """What a process of a run is for."""

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
    """What happens on the way between the vertices and their broker."""

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
    """Nothing comes through, for longer than an answer is waited for."""


ROLES = (Role.RUNNER, Role.BROKER, Role.WORKER, Role.SIDECAR)
"""Of every run, as far as it has functions."""
ALWAYS_THERE = (Role.RUNNER, Role.BROKER, Role.WORKER)
"""Those of `ROLES` that any run can be expected to have nearly always."""
SPARK_ROLES = (Role.SPARK, Role.JVM, Role.PYTHON)
"""Of runs with a reduce, besides."""

_INTO_RECOVERY_SHARE = 0.2
"""Of the strikes that come while the one before is being recovered from."""
_QUIET_S = (0.1, 1.5)
"""Between the end of a recovery and the next strike."""
_DURING_RECOVERY_S = (0.02, 0.6)
"""Between two strikes, when the second one does not wait."""
_PAUSE_S = (1.0, 9.0)
"""Beyond the 5 s after which a commit's answer counts as lost, at the long end."""
_LONG_PAUSES = (True, False, False, False)
"""One in four pauses is long."""
LONG_PAUSE_S = (16.0, 18.0)
"""Beyond every timeout, also that of a silent connection (15 s); the runner has replaced the process by then."""
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
    """Of the process that is struck; None where none is."""
    network: NetworkFault | None
    pick: float
    """Which of several processes with this role: 0 the first, up to 1 the last."""
    wait_s: float
    """Before it, once what came before is over."""
    lasts_s: float
    """Of a pause, a stall, a full disk; 0 for what happens at once."""
    successor: bool
    """Of the pause of a vertex: another owner takes its lanes over meanwhile."""
    into_recovery: bool
    """It does not wait until the run is back from the strike before."""

    @property
    def what(self) -> str:
        """In words, for the table."""
        if self.network is not None:
            return f"network {self.network.value}"
        return self.kind.value if self.role is None else f"{self.kind.value} {self.role.value}"


def strikes(seed: int, kinds: Sequence[FaultKind], roles: Sequence[Role]) -> Iterator[Strike]:
    """The plan, without end. Every kind, role and network fault comes as often as another one of its sort."""
    rng = random.Random(seed)
    kind_of, role_of, network_of = _dealt(rng, kinds), _dealt(rng, roles), _dealt(rng, tuple(NetworkFault))
    pausable_of = _dealt(rng, tuple(role for role in roles if role is not Role.RUNNER))
    is_long = _dealt(rng, _LONG_PAUSES)
    number = 0
    while True:
        number += 1
        kind = next(kind_of)
        role = next(role_of) if kind is FaultKind.KILL else None
        if kind is FaultKind.PAUSE:
            role = next(pausable_of)
        network = next(network_of) if kind is FaultKind.NETWORK else None
        # Only a kill is planned into a recovery, and the first strike has none before it.
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
