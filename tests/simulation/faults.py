"""What goes wrong in a run, and when: drawn from the seed before it begins.

    crash       the process is gone in the middle of whatever it does, and started again
    zombie      it is paused until its successor has taken over, and then goes on
    pause       it is paused for a while, unnoticed
    hung        it is stopped, noticed after a while, and replaced
    cut         nothing comes through between it and the broker for a while
    stop        it is asked to stop, finishes, and is started again
    full        the broker refuses commits: a buffer, or its storage, is full
    fence       another process takes a lane over, and goes away
    away        the OT stores are away for a while, and watchers miss what happens
    held        watchers of the OT stores hear late
    slow        a process is gone, and while it opens again the broker takes a second or so for everything
    disk        a process with a log is gone between two of the log's file operations, or in the middle of one
    power       its machine has lost its power: what was not synced is lost, or not
    broken      an fsync of the log fails
    no-room     the disk of the log is full for a while
    lost        its machine is lost with the disk of the log, where the input is kept
    target-away targets that keep positions cannot be reached for a while: only in pipelines with such targets
    source-away sources cannot be read for a while: only in pipelines with such targets, or with an idle policy
    set-back    a ledger is again what it was some time ago, and its writers go on from there: only where it is asked
                for, as a run ends where it is noticed

Above it: `world`, which does them. Below it: nothing.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.simulation.network import Weather
from tests.simulation.outside import Temper

PROCESS_FAULTS = ("crash", "zombie", "pause", "hung", "cut", "stop")
BROKER_FAULTS = ("full", "fence", "away", "held", "slow")
LOG_FAULTS = ("disk", "disk", "power", "broken", "no-room")
ALL_LOG_FAULTS = (*LOG_FAULTS, "lost", "lost")
"""Where a log may be lost."""


OUTSIDE_FAULTS = ("target-away", "source-away")
"""Where targets keep positions; where only sources fall silent, the second."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One of them."""

    at_s: float
    kind: str
    victim: float
    """Which process: a share of those that run."""
    length_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """All of a run."""

    weather: Weather
    temper: Temper
    thread_s: float
    """How long a disk takes, about."""
    faults: tuple[Fault, ...]


def draw(rng: random.Random, span_s: float, log_faults: Sequence[str]) -> Plan:
    """What goes wrong in a run whose sources give records for `span_s`. `log_faults`: none without a log."""
    stormy = rng.random() < 0.6

    def share(most: float) -> float:
        return rng.random() * most if stormy and rng.random() < 0.6 else 0.0

    weather = Weather(
        latency_s=rng.choice((0.0002, 0.001, 0.02)),
        slow=rng.choice((0.0, 0.02, 0.1)),
        lost_requests=share(0.04),
        lost_answers=share(0.04),
        repeated=share(0.1),
        overtaken=share(0.03),
        unheard=share(0.3),
    )
    temper = Temper(pause_s=rng.choice((0.0005, 0.005, 0.05)), failing=rng.choice((0.0, 0.0, 0.1)))
    faults = []
    for _ in range(rng.choice((0, 1, 2, 3, 5, 8))):
        kind = rng.choice(PROCESS_FAULTS if rng.random() < 0.8 else BROKER_FAULTS)
        if rng.random() < 0.25:
            kind = "crash"
        if log_faults and rng.random() < 0.4:
            kind = rng.choice(log_faults)
        length_s = rng.choice((0.01, 0.3, 3.0)) * (0.5 + rng.random())
        faults.append(Fault(rng.random() * span_s * 1.3, kind, rng.random(), length_s))
    faults.sort(key=lambda fault: fault.at_s)
    return Plan(weather, temper, rng.choice((0.0002, 0.005, 0.05)), tuple(faults))


def with_outside(rng: random.Random, plan: Plan, span_s: float, kinds: Sequence[str] = OUTSIDE_FAULTS) -> Plan:
    """The same, with faults of what is outside."""
    more = [
        Fault(rng.random() * span_s, rng.choice(kinds), 0.0, rng.choice((0.1, 0.5, 3.0)))
        for _ in range(rng.choice((0, 1, 2)))
    ]
    return replace(plan, faults=tuple(sorted([*plan.faults, *more], key=lambda fault: fault.at_s)))
