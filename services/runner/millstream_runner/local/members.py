"""The processes of a run: its broker, its workers, its Spark driver; and where they print.

Above it: the run. Below it: the supervisor of each.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

from millstream.spec.graph import Graph
from millstream_runner.local.broker import BROKER, EmbeddedBroker
from millstream_runner.local.directory import RunningProcess, Runtime
from millstream_runner.local.formatting import duration_text, shortened
from millstream_runner.local.processes import identify
from millstream_runner.local.replica import Failure, Supervisor, worst
from millstream_runner.local.standard_output import StandardOutput
from millstream_runner.local.states import State
from millstream_runner.local.workers import LocalWorkers

if TYPE_CHECKING:
    from millstream_runner.local.spark import LocalSpark

_NAMED_MAX = 2
"""The most vertices that are named among those that a start waits for."""
_REASON_CHARS_MAX = 80
"""The most characters of a reason why a vertex waits."""


class Members:
    """All processes that the runner has started."""

    def __init__(
        self,
        graph: Graph,
        broker: EmbeddedBroker,
        workers: LocalWorkers,
        spark: LocalSpark | None,
        output: StandardOutput,
    ) -> None:
        self._graph = graph
        self._output = output
        self._supervisors: list[Supervisor] = [*workers, *([spark] if spark is not None else [])]
        self._runner = identify(os.getpid())
        self.broker = broker
        self.broker_over = False
        """Whether it has exited as intended."""
        self.workers = workers
        self.spark = spark
        """None in a pipeline without windows."""
        self._complete = False
        """Whether all of it has been ready at the same time."""

    @property
    def failure(self) -> Failure | None:
        """The worst failure so far."""
        failures = [*(one.failure for one in self._supervisors), self._output.failure]
        return worst([failure for failure in failures if failure is not None])

    def beginning(self) -> tuple[State, str]:
        """The state of a starting run, and what it waits for, until everything has been ready once."""
        if self._complete:
            return State.RUNNING, ""
        if not self.broker.ready.is_set():
            return State.STARTING, "the broker"
        missing = [name for name in self._graph.order if State.STARTING in self._states_of(name)[0]]
        if missing:
            named = ", ".join(missing[:_NAMED_MAX])
            more = len(missing) - _NAMED_MAX
            there = f"{len(self._graph.order) - len(missing)} of {len(self._graph.order)} vertices are ready"
            return State.STARTING, f"{named}{f' and {more} more' if more > 0 else ''} ({there})"
        if self.spark is not None and not self.spark.is_ready:
            return State.WAITING_FOR_SPARK, "Spark, which computes the windows"
        self._complete = True
        return State.RUNNING, ""

    def states(self) -> dict[str, str]:
        """The states of each vertex's replicas, in words."""
        return {vertex: self._state_of(vertex) for vertex in self._graph.order}

    def _state_of(self, vertex: str) -> str:
        found, restarts = self._states_of(vertex)
        running = State.RUNNING
        if self.spark is not None and not self.spark.is_ready and self._graph.vertex(vertex).definition.has_windows:
            running = State.WAITING_FOR_SPARK
        states = Counter((running if state is State.RUNNING else state).value for state in found)
        words = [name if len(states) == 1 else f"{count} {name}" for name, count in states.items()]
        if restarts:
            words.append(f"restarted {restarts}x")
        if slow_s := self.workers.slow_s(vertex):
            words.append(f"call without answer for {slow_s:.0f} s")
        waited_s, why = self.workers.waits(vertex)
        if why and State.RUNNING in found:
            words.append(f"waiting for {duration_text(waited_s)} ({shortened(why, _REASON_CHARS_MAX)})")
        return ", ".join(words)

    def _states_of(self, vertex: str) -> tuple[list[State], int]:
        """The states of the replicas in which it runs."""
        return self.workers.states_of(self._graph.head(vertex))

    def runtime(self) -> Runtime | None:
        """The processes, for the next runner; None if this one cannot be distinguished from others."""
        if self._runner is None:
            return None
        processes = [one.process for one in self._supervisors]
        if self.broker.identity is not None and not self.broker_over:
            processes.append(RunningProcess(BROKER, self.broker.identity))
        return Runtime(
            self._graph.pipeline.name,
            self._runner,
            self.broker.port,
            self.broker.access.url,
            tuple(process for process in processes if process is not None),
        )
