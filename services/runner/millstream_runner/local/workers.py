"""The workers of a local run: which there are, what each runs, and the states of its replicas.

    replica: starting ─► running ─► (asked to stop: draining) ─► stopped, or done
                ▲           └──── the worker dies ──┐
                └────────── restarting ◄────────────┘   one that was asked to stop is not restarted

A drain stops the sources, and then every vertex when it has read everything.

Above it: the runner. Below it: one supervised process for each worker (`replica.py`), which says when a replica is
over, and takes the order to stop one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from millstream import codes, limits
from millstream.errors import RetryLaterError, UserError
from millstream.pauses import REPEATED_AFTER_S, WAIT, WAITS_FOR
from millstream.plan.placement import place
from millstream.plan.plan import Plan
from millstream.record import ReplicaId
from millstream.resources import processors
from millstream.spec.graph import Graph
from millstream.udf.sidecar import HeldUp
from millstream.udf.slow_calls import SLOW_AFTER_S
from millstream_connectors.log.settings import LogSink
from millstream_runner.local.logfiles import WORKER_PREFIX
from millstream_runner.local.progress import PipelineProgress
from millstream_runner.local.replica import Hooks, Logs, ProcessPlan, Supervisor
from millstream_runner.local.states import State
from millstream_runner.local.view import PipelineView

_WORKERS_MIN = 2
"""The default minimum: a worker with only sources yields to the others (docs/decisions/0015), even if all share one
processor."""
GRACE_S = 5.0
"""Time after the deadline of a drain until vertices that have not ended by themselves are killed. Nothing is lost by
that."""
_POLL_S = 0.05
_HELD_UP = {HeldUp.TO_BE_FIXED.value: State.FIXING, HeldUp.DEBUGGED.value: State.DEBUGGED}


def plan_workers(plan: Plan, workers: int | None, metrics_port_base: int | None) -> Iterator[ProcessPlan]:
    """`workers`: the most workers that share the vertices; None for one per processor. `metrics_port_base`: port of the
    first one's metrics; None for no metrics. Raises `UserError` if there are to be none."""
    if workers is not None and workers < 1:
        raise UserError(codes.OPTION_VALUE, f"--workers {workers}: at least one process is needed")
    for number, replicas in enumerate(place(plan, workers or max(_WORKERS_MIN, processors()))):
        # The name of its only replica, or one that no replica can have.
        name = replicas[0].name if len(replicas) == 1 else f"{WORKER_PREFIX}{number}"
        yield ProcessPlan(name, replicas, None if metrics_port_base is None else metrics_port_base + number)


class Waits:
    """What the lanes of one worker have been waiting for, for a while, as the lines of its log say (see
    `millstream.pauses.RepeatedFailure`)."""

    def __init__(self) -> None:
        self._waits: dict[int, tuple[str, str, float]] = {}
        """Vertex, reason, and since when; by their number in the process."""

    def take(self, entry: Mapping[str, Any], now_s: float) -> None:
        """Takes a line of the log into account."""
        number, why = entry.get(WAIT), entry.get(WAITS_FOR)
        if not isinstance(number, int):
            return
        if not why:
            self._waits.pop(number, None)
            return
        before = self._waits.get(number)
        since_s = now_s - REPEATED_AFTER_S if before is None else before[2]
        self._waits[number] = (str(entry.get("vertex", "")), str(why), since_s)

    def longest(self, vertex: str, now_s: float) -> tuple[float, str]:
        """How long a lane of the vertex has been waiting, in seconds, and what for; no reason if none is."""
        waits = ((now_s - since_s, why) for name, why, since_s in self._waits.values() if name == vertex)
        return max(waits, default=(0.0, ""))


@dataclass(slots=True)
class CurrentProcess:
    """What is known of the current process of a worker; a new one has told nothing yet."""

    open: set[ReplicaId] = field(default_factory=set)
    """Replicas that work in it."""
    held_up: dict[ReplicaId, State] = field(default_factory=dict)
    """Replicas whose functions wait for a person."""
    slow_since_s: dict[tuple[ReplicaId, str], float] = field(default_factory=dict)
    """Since when functions have had calls without an answer, by replica and vertex."""
    waits: Waits = field(default_factory=Waits)

    def slow_s(self, vertex: str, now_s: float) -> float:
        """How long a function of the vertex has had a call without an answer; 0 if there is no such call, or it is
        not slow."""
        return max((now_s - since_s for (_, name), since_s in self.slow_since_s.items() if name == vertex), default=0)


class LocalWorker(Supervisor):
    """One worker of a run."""

    def __init__(self, plan: ProcessPlan, logs: Logs, hooks: Hooks, memory_max: int) -> None:
        """`memory_max`: the bytes of memory that it may take."""
        super().__init__(plan, logs, hooks, takes_orders=True, memory_max=memory_max)
        self._drained: set[ReplicaId] = set()
        """Replicas that are to stop."""
        self._over: dict[ReplicaId, State] = {}
        """Replicas that will not be started again."""
        self.current = CurrentProcess()

    def has_over(self, replica: ReplicaId) -> bool:
        """Whether nothing more will come from it."""
        return self.over.is_set() or replica in self._over

    def state_of(self, replica: ReplicaId) -> State:
        if replica in self._over:
            return self._over[replica]
        if self.failure is not None and self.failure.process != replica.name:
            # It ended with another replica that failed.
            names = {replica.name for replica in self.plan.replicas}
            return State.STOPPED if self.failure.process in names else State.FAILED
        if self.state is not State.RUNNING:
            return self.state
        if replica in self.current.held_up:
            return self.current.held_up[replica]
        if replica not in self.current.open:
            return State.STARTING
        return State.DRAINING if replica in self._drained else State.RUNNING

    def keep(self, line: bytes, entry: Mapping[str, Any]) -> None:
        super().keep(line, entry)
        self.current.waits.take(entry, time.monotonic())

    def progress(self) -> Mapping[str, object]:
        return {replica.name: self.hooks.progress(replica) for replica in self.plan.replicas}

    def stop_replicas(self, replicas: Collection[ReplicaId], *, grace_s: float) -> None:
        """Ask these of its replicas to finish and end; if it has no others, it is killed after `grace_s`."""
        new = {replica for replica in self.plan.replicas if replica in replicas} - self._drained
        self._drained |= new
        if set(self.plan.replicas) <= self._drained | self._over.keys():
            self.stop(grace_s=grace_s)
        for replica in new - self._over.keys():
            self.tell(f"stop {replica}")

    def left(self) -> Sequence[ReplicaId]:
        """The replicas for which a process is started."""
        left = [replica for replica in self.plan.replicas if replica not in self._over]
        # It was killed after its last replica had ended, before its exit code could say so.
        return left or [replica for replica in self.plan.replicas if replica not in self._drained]

    def hear(self, text: str) -> None:
        """Handle a message of the worker about a replica."""
        how, _, name = text.partition(" ")
        name, _, vertex = name.partition(" ")
        for replica in self.plan.replicas:
            if replica.name != name:
                continue
            if how == "running":
                self.current.open.add(replica)
            elif how == "ended":
                self._over[replica] = State.DONE
            elif how == "slow":
                self.current.slow_since_s[replica, vertex] = time.monotonic() - SLOW_AFTER_S
            elif how == "answered":
                self.current.slow_since_s.pop((replica, vertex), None)
            elif how in _HELD_UP:
                self.current.held_up[replica] = _HELD_UP[how]
            elif how == "going":
                self.current.held_up.pop(replica, None)
            elif replica in self._drained:
                # It was stopped by another owner, and is started again.
                self._over[replica] = State.STOPPED
        self.hooks.on_change()

    def started(self) -> None:
        self.current = CurrentProcess()
        # The new process does not know about earlier orders.
        for replica in self._drained - self._over.keys():
            self.tell(f"stop {replica}")

    def changed(self) -> None:
        if self.state is State.RESTARTING:
            # Like a process with one replica: what was asked to end, and died, has ended.
            self._over.update(dict.fromkeys(self._drained - self._over.keys(), State.STOPPED))
        super().changed()

    async def have_lanes_ended(self) -> bool:
        for replica in self.plan.replicas:
            if replica not in self._over and not await self.hooks.have_ended(replica):
                return False
        return True


def printing(graph: Graph, plan: ProcessPlan) -> list[str]:
    """The replicas of a worker that print records."""
    return [
        replica.name
        for replica in plan.replicas
        if any(isinstance(placed.end.settings, LogSink) for placed in graph.vertex(replica.vertex).ends)
    ]


class LocalWorkers:
    """All workers of a run."""

    def __init__(self, workers: Sequence[LocalWorker]) -> None:
        self._workers = workers

    def __iter__(self) -> Iterator[LocalWorker]:
        return iter(self._workers)

    @property
    def are_over(self) -> bool:
        return all(worker.over.is_set() for worker in self._workers)

    def have_over(self, vertices: Collection[str]) -> bool:
        """Whether nothing more will come from these vertices."""
        return all(worker.has_over(replica) for worker, replica in self._of(vertices))

    def are_held_up(self, vertices: Collection[str]) -> bool:
        """Whether a function of these vertices waits for a person, so that their input is not read."""
        return any(replica in worker.current.held_up for worker, replica in self._of(vertices))

    def stop(self, vertices: Collection[str], *, grace_s: float) -> None:
        """Ask these vertices to finish and end; a worker without others is killed after `grace_s`."""
        for worker in self._workers:
            own = [replica for replica in worker.plan.replicas if replica.vertex in vertices]
            if own:
                worker.stop_replicas(own, grace_s=grace_s)

    async def drain(self, plan: Plan, view: PipelineView, progress: PipelineProgress) -> None:
        """Stop the sources, then each vertex when it has read everything; at the deadline, stop the remaining ones."""
        deadline_s = asyncio.get_running_loop().time() + limits.DRAIN_TIMEOUT_S
        sources = {vertex.name for vertex in plan.sources}
        await self._stop_group(sources, deadline_s)
        for group in plan.sccs:
            if sources.isdisjoint(group):
                await self._until_read(group, view, progress, deadline_s)
                await self._stop_group(group, deadline_s)

    async def _until_read(
        self, vertices: Collection[str], view: PipelineView, progress: PipelineProgress, deadline_s: float
    ) -> None:
        """Wait until the buffers that these vertices read are empty; no process writes to them any more. Does not wait
        if a function waits for a person."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline_s):
                while not self.have_over(vertices) and not self.are_held_up(vertices):
                    with suppress(RetryLaterError):
                        await view.update(progress)
                        if not progress.waiting(vertices):
                            return
                    await asyncio.sleep(_POLL_S)

    async def _stop_group(self, vertices: Collection[str], deadline_s: float) -> None:
        """Stop these vertices, and wait for them until the deadline."""
        left_s = max(0.0, deadline_s - asyncio.get_running_loop().time())
        self.stop(vertices, grace_s=left_s + GRACE_S)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline_s):
                while not self.have_over(vertices):  # noqa: ASYNC110  # several events may make it true
                    await asyncio.sleep(_POLL_S)

    def slow_s(self, vertex: str) -> float:
        """How long a function of the vertex has had a call without an answer; 0 if there is none that is slow."""
        now_s = time.monotonic()
        return max((worker.current.slow_s(vertex, now_s) for worker in self._workers), default=0.0)

    def waits(self, vertex: str) -> tuple[float, str]:
        """How long a lane of the vertex has been waiting, and what for; no reason if none has for a while."""
        now_s = time.monotonic()
        return max((worker.current.waits.longest(vertex, now_s) for worker in self._workers), default=(0.0, ""))

    def states_of(self, vertex: str) -> tuple[list[State], int]:
        """The states of its replicas, and how often workers that run them were restarted."""
        found = list(self._of([vertex]))
        restarts = {worker.plan.name: worker.restarts for worker, _ in found}
        return [worker.state_of(replica) for worker, replica in found], sum(restarts.values())

    def _of(self, vertices: Collection[str]) -> Iterator[tuple[LocalWorker, ReplicaId]]:
        for worker in self._workers:
            for replica in worker.plan.replicas:
                if replica.vertex in vertices:
                    yield worker, replica
