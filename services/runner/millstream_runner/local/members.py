"""The processes of a run: its broker, its workers, its Spark driver.

Above it: the run. Below it: what keeps each of them running.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

from millstream.spec.graph import Graph
from millstream_runner.local.broker import NAME as BROKER
from millstream_runner.local.broker import EmbeddedBroker
from millstream_runner.local.directory import RunningProcess, Runtime
from millstream_runner.local.processes import identify
from millstream_runner.local.replica import Failure, State, worst
from millstream_runner.local.workers import LocalWorkers

if TYPE_CHECKING:
    from millstream_runner.local.spark import LocalSpark


class Members:
    """All processes that the runner has started."""

    def __init__(self, graph: Graph, broker: EmbeddedBroker, workers: LocalWorkers, spark: LocalSpark | None) -> None:
        self._graph = graph
        self._runner = identify(os.getpid())
        self.broker = broker
        self.broker_over = False
        """It has ended, as it was to."""
        self.workers = workers
        self.spark = spark
        """None in a pipeline without windows."""

    @property
    def failure(self) -> Failure | None:
        """The worst there has been."""
        failures = self.workers.failures
        if self.spark is not None and self.spark.failure is not None:
            failures.append(self.spark.failure)
        return worst(failures)

    def states(self) -> dict[str, str]:
        """What the replicas of each vertex do, in words."""
        return {vertex: self._state_of(vertex) for vertex in self._graph.order}

    def _state_of(self, vertex: str) -> str:
        found, restarts = self.workers.states_of(vertex)
        running = State.RUNNING.value
        if self.spark is not None and not self.spark.is_ready and self._graph.vertex(vertex).definition.has_windows:
            running = "waiting for Spark"
        states = Counter(running if state is State.RUNNING else state.value for state in found)
        words = [name if len(states) == 1 else f"{count} {name}" for name, count in states.items()]
        if restarts:
            words.append(f"restarted {restarts}x")
        return ", ".join(words)

    def runtime(self) -> Runtime | None:
        """Which processes there are, for the next runner; None where this one cannot be distinguished from others."""
        if self._runner is None:
            return None
        processes = [worker.process for worker in self.workers]
        if self.spark is not None:
            processes.append(self.spark.process)
        if self.broker.identity is not None and not self.broker_over:
            processes.append(RunningProcess(BROKER, self.broker.identity))
        return Runtime(
            self._graph.pipeline.name,
            self._runner,
            self.broker.port,
            self.broker.access.url,
            tuple(process for process in processes if process is not None),
        )
