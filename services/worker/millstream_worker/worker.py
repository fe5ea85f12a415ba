"""A worker: replicas of any vertices of one pipeline in one process, on one event loop.

    telemetry ─┐
    links ─────┴─► replica: opened ─► runs ─► ended, or stopped
                   replica: opened ─► fails ─► the others finish what is in flight ─► the worker ends

The replicas share one connection to the broker, one watch of each OT store, one trimmer of each ledger that they read,
and one endpoint for metrics and probes. A replica that has ended does not affect the others. One that fails ends the
worker, and the process that started the worker decides what to restart (docs/decisions/0015). The error is logged under
the name of the replica, and its exit code becomes the worker's.

Above it: the process. Below it: the assembly of one replica, and the environment.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from millstream.buffers.registry import technology_of
from millstream.buffers.technology import Access
from millstream.clock import Clock
from millstream.limits import DRAIN_TIMEOUT_S, WORKER_END_GRACE_S
from millstream.pauses import until_next
from millstream.priority import give_way
from millstream.record import ReplicaId
from millstream.telemetry.logging import log_replica
from millstream.telemetry.opening import Identity, ProcessTelemetry, open_telemetry
from millstream.udf.sidecar import WAITS, HeldUp
from millstream.udf.sources import OnChange, programs_below
from millstream_worker.assembly import VertexProcess, open_vertex
from millstream_worker.ending import is_of_function, report
from millstream_worker.environment import OpenEnvironment, RunConfig, VertexConfig, WorkerLink, open_link
from millstream_worker.readiness import Readiness

_log = logging.getLogger(__name__)
_LOOK_INTERVAL_S = 0.2
"""Time between two checks of whether the author has saved a fix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig(RunConfig):
    """The configuration that a worker gets when it starts."""

    access: Mapping[ReplicaId, Access]
    """The replicas that the worker runs, at least one, with the identity of each at the broker."""
    metrics_port: int = 0
    """Port of the endpoint with metrics and probes; 0 for none."""
    metrics_host: str = "127.0.0.1"
    """Address that this endpoint listens on."""

    @property
    def replicas(self) -> Sequence[ReplicaId]:
        return tuple(self.access)

    @property
    def identities(self) -> Sequence[Identity]:
        """The vertices and replicas whose telemetry the worker sends."""
        graph, name = self.resolved.graph, self.resolved.pipeline.name
        return [
            Identity(name, vertex.name, vertex.kind, one.number, vertex.definition.reports)
            for one in self.replicas
            for vertex in map(graph.vertex, graph.chain(one.vertex))
        ]

    def of(
        self,
        replica: ReplicaId,
        on_held_up: Callable[[HeldUp | None], None],
        on_slow: Callable[[str, bool], None],
    ) -> VertexConfig:
        """The configuration of one of its replicas. `on_held_up`, `on_slow`: see `Development`."""
        return VertexConfig(
            resolved=self.resolved,
            vertex=replica.vertex,
            replica=replica.number,
            broker=self.access[replica],
            durability=self.durability,
            windows_dir=self.windows_dir,
            states_dir=self.states_dir,
            spark=self.spark,
            hidden=self.hidden,
            development=dataclasses.replace(self.development, on_held_up=on_held_up, on_slow=on_slow),
        )


@dataclass(frozen=True, slots=True)
class _Replica:
    """The state of one of the worker's replicas."""

    readiness: Readiness
    environment: OpenEnvironment
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the replica has to stop."""
    held_up: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while a function of the replica waits for a person."""


class Worker:
    """The replicas of one process. Made by `open_worker`."""

    def __init__(
        self,
        config: WorkerConfig,
        clock: Clock,
        telemetry: ProcessTelemetry,
        replicas: Mapping[ReplicaId, _Replica],
        say: Callable[[str], None],
    ) -> None:
        self._config = config
        self._clock = clock
        self._telemetry = telemetry
        self._replicas = replicas
        self._say = say
        self._opening = len(replicas)
        """Replicas that are not open yet."""
        self._exit_code: int | None = None
        """The exit code of the replica that failed first."""
        self._failed = asyncio.Event()

    async def run(self) -> int:
        """Run until every replica has ended or was stopped, or one has failed. Returns the exit code."""
        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(self._run(name, replica), name=name.name) for name, replica in self._replicas.items()
            ]
            ending = group.create_task(self._end_after_failure(running), name="end after a failure")
            await asyncio.wait(running)
            ending.cancel()
        return self._exit_code or 0

    def stop(self, replica: ReplicaId | None = None) -> None:
        """Make one replica, or all of them, accept no new input and end when the records in flight are finished."""
        for one in [self._replicas[replica]] if replica is not None else self._replicas.values():
            one.stopped.set()

    async def _run(self, name: ReplicaId, replica: _Replica) -> None:
        with log_replica(name):
            _log.info("starting vertex %s of pipeline %s", name.vertex, self._config.resolved.pipeline.name)
            try:
                async with asyncio.TaskGroup() as group:
                    living = group.create_task(self._live(name, replica), name=f"life of {name}")
                    leaving = group.create_task(_leave(replica, living), name=f"leaving {name}")
                    await asyncio.wait((living,))
                    leaving.cancel()
            except Exception as error:  # noqa: BLE001  # every failure is reported in the log
                self._fail(error)
            else:
                replica.readiness.over()
                ended = not living.cancelled() and living.result()
                self._say(f"{'ended' if ended else 'stopped'} {name}")

    async def _live(self, name: ReplicaId, replica: _Replica) -> bool:
        """Run a replica until it has ended or was stopped. If a function of it fails, and its author is working on it,
        wait for the fix and run it again. Returns whether its lanes have ended."""
        while True:
            try:
                return await self._live_once(name, replica)
            except Exception as error:
                if self._config.development.on_change is not OnChange.RESTART or not is_of_function(error):
                    raise
                report(error, note=WAITS)
            await self._until_changed(name, replica)

    async def _until_changed(self, name: ReplicaId, replica: _Replica) -> None:
        """Return when a file beside the functions of a replica was saved."""
        resolved = self._config.resolved
        places = {
            resolved.base_dir / (placed.program.working_dir or "")
            for vertex in resolved.graph.chain(name.vertex)
            for placed in resolved.graph.vertex(vertex).programs
        }
        self._say(f"{HeldUp.TO_BE_FIXED.value} {name}")
        replica.held_up.set()
        before = now = last = programs_below(places)
        while now == before or now != last:
            await asyncio.sleep(until_next(_LOOK_INTERVAL_S))
            last, now = now, programs_below(places)
        replica.held_up.clear()
        self._say(f"going {name}")
        _log.warning("a file was saved: %s continues", name)

    async def _live_once(self, name: ReplicaId, replica: _Replica) -> bool:
        """Open a replica and run it. Returns whether its lanes have ended."""

        def note(by: HeldUp | None) -> None:
            self._say(f"{by.value if by is not None else 'going'} {name}")
            if by is not None:
                replica.held_up.set()
            else:
                replica.held_up.clear()

        def note_slow(vertex: str, is_slow: bool) -> None:
            self._say(f"{'slow' if is_slow else 'answered'} {name} {vertex}")

        opening = open_vertex(
            self._config.of(name, note, note_slow),
            self._clock,
            environment=replica.environment,
            process=self._telemetry,
            readiness=replica.readiness,
        )
        async with opening as process:
            # Modules and other objects that live as long as the process: scanning them would delay all records
            # by tens of milliseconds, repeatedly, and free nothing.
            gc.freeze()
            self._opened()
            self._say(f"running {name}")
            return await _run_until_stopped(process, replica.stopped)

    def _opened(self) -> None:
        """One more replica is open."""
        # One that has failed and is open again was counted before.
        self._opening = max(0, self._opening - 1)
        if not self._opening and not any(
            self._config.resolved.graph.vertex(one.vertex).definition.has_input for one in self._replicas
        ):
            # Only once all replicas are open, and only if the process has nothing but sources: other vertices on
            # this event loop would give way with them.
            give_way()

    def _fail(self, error: Exception) -> None:
        # A failure after the first is usually a consequence of it.
        if self._exit_code is None:
            self._exit_code = report(error)
            self._failed.set()

    async def _end_after_failure(self, running: Sequence[asyncio.Task[None]]) -> None:
        await self._failed.wait()
        self.stop()
        _, late = await asyncio.wait(running, timeout=WORKER_END_GRACE_S)
        for task in late:
            task.cancel()


async def _leave(replica: _Replica, living: asyncio.Task[bool]) -> None:
    """End a replica that has to stop but waits for a person or for an external system.

    It cannot finish the records in flight; they are processed at the next start.
    """
    await replica.stopped.wait()
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(event.wait()) for event in (replica.held_up, replica.readiness.waits)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for one in waiting:
            one.cancel()
    living.cancel()


async def _run_until_stopped(process: VertexProcess, stopped: asyncio.Event) -> bool:
    """Run the lanes of a replica. Returns whether they ended by themselves, rather than after a stop."""
    async with asyncio.TaskGroup() as group:
        running = group.create_task(process.run(), name="lanes")
        watching = group.create_task(stopped.wait(), name="stop")
        await asyncio.wait((running, watching), return_when=asyncio.FIRST_COMPLETED)
        ended = not stopped.is_set()
        if not running.done():
            _log.info("stopping: finishing the records in flight")
            process.stop()
            await asyncio.wait((running,), timeout=DRAIN_TIMEOUT_S)
            if not running.done():
                _log.warning(
                    "not finished in %.0f s: the remaining records are processed at the next start", DRAIN_TIMEOUT_S
                )
                running.cancel()
        watching.cancel()
    return ended


def _not_ready(readiness: Mapping[ReplicaId, Readiness]) -> str | None:
    """Why the worker is not ready: the replicas that are not ready, each with its reason."""
    reasons = {name: reason for name, one in readiness.items() if (reason := one.reason()) is not None}
    if len(readiness) == 1:
        return next(iter(reasons.values()), None)
    return "\n".join(f"{name}: {reason}" for name, reason in reasons.items()) or None


@asynccontextmanager
async def open_worker(
    config: WorkerConfig, clock: Clock, *, say: Callable[[str], None] = lambda text: None
) -> AsyncIterator[Worker]:
    """Open what the replicas share.

    `say` gets `running NAME` when a replica starts to work, `ended NAME` when it has ended by itself, `stopped NAME`
    when it was stopped, `fixing NAME` or `debugged NAME` when one of its functions waits for a person, and
    `going NAME` when that wait is over.
    """
    readiness = {replica: Readiness() for replica in config.replicas}
    async with AsyncExitStack() as stack:
        # First, so that probes are answered before the rest is open.
        telemetry = await stack.enter_async_context(
            open_telemetry(
                config.identities,
                metrics_port=config.metrics_port,
                metrics_host=config.metrics_host,
                not_ready=lambda: _not_ready(readiness),
                clock=clock,
            )
        )
        plan = config.resolved.plan
        links: dict[Access, WorkerLink] = {}
        replicas: dict[ReplicaId, _Replica] = {}
        for replica, access in config.access.items():
            if access not in links:
                opening = open_link(
                    technology_of(plan.pipeline), access, plan, config.durability, f"{plan.pipeline.name}/{replica}"
                )
                links[access] = await stack.enter_async_context(opening)
            replicas[replica] = _Replica(readiness[replica], links[access].environment)
        yield Worker(config, clock, telemetry, replicas, say)
