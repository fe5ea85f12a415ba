"""One experiment: a run is started, struck according to the plan, watched until it has recovered, and ended.

    start the runner ─► [ wait ─► strike ─► back? ] ... ─► ended, or drained ─► what happened
                             run, watcher of the OT stores

Above it: the command line, benchmarks and tests. Below it: the runner's process, the processes of the run, the OT
stores of its broker. It judges only how soon the run recovers.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from millstream.background import beside
from millstream.buffers.registry import technology_of
from millstream.buffers.technology import Access
from millstream.clock import MICROSECONDS, SystemClock
from millstream.errors import InfrastructureError, RetryLaterError, first_cause
from millstream.ledger.protocol import DurabilityLevel
from millstream.plan.plan import Plan
from millstream.record import LaneId
from millstream.spec.graph import Graph
from millstream.watermark.store import OtStore
from millstream_runner.chaos.faults import Injector
from millstream_runner.chaos.plan import ROLES, SPARK_ROLES, FaultKind, Role, Strike, strikes
from millstream_runner.chaos.processes import RunProcess, processes_of
from millstream_runner.chaos.resume import Board, OpenFault
from millstream_runner.chaos.running import RunnerProcess

RESUME_TIMEOUT_S = 60.0
"""A run that has not recovered after this time is not waited for any longer, and the verdict says so."""
SPARK_RESUME_TIMEOUT_S = 180.0
"""The same if Spark has to restart: on a busy machine that alone takes most of a minute."""
END_TIMEOUT_S = 600.0
"""After the last strike, a run that has made no progress for this long is not waited for any longer."""
_FIND_TIMEOUT_S = 3.0
"""How long to look for a process of the planned role, which may be just starting."""
_FIND_SPARK_TIMEOUT_S = 60.0
"""The same for a process of Spark, which takes longer."""
_POLL_S = 0.03
_WATCH_POLL_S = 0.05
_LOOK_S = 1.0
_FIRST_PROGRESS_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Assignment:
    """What to do to a run."""

    seed: int
    kinds: tuple[FaultKind, ...]
    strikes_max: int | None
    """None: as many as occur until `seconds` are over."""
    seconds: float | None
    """The run is drained this long after its sinks have their first records. None: it ends by itself, or, if it never
    would, is drained after the strikes."""
    bounded: bool
    """It ends by itself."""


@dataclass(slots=True)
class Struck:
    """One fault that was injected."""

    strike: Strike
    process: str
    """The process that it struck; empty if none."""
    pid: int
    """Id of that process; 0 if none."""
    at_s: float
    """Seconds since the experiment began."""
    spark_again: bool
    """Whether Spark has to restart before there are results."""
    measured: bool = True
    """Whether the next strike waited until the run had recovered."""
    resume_s: float | None = None
    """None: not measured, or never."""
    absent: list[str] = field(default_factory=list)
    """Lanes that did not recover in time."""


@dataclass(slots=True)
class ExperimentOutcome:
    """The outcome of the experiment, as far as the processes show it."""

    struck: list[Struck] = field(default_factory=list)
    missed: Counter[Role] = field(default_factory=Counter)
    """Strikes for which the run had no process of the planned role."""
    exit_code: int | None = None
    """Exit code of the runner at the end; None if it did not end in time."""
    drained: bool = False
    seconds: float = 0.0
    succeeded: int = 0
    """Paused workers whose lanes a successor took over."""
    fenced: int = 0
    """Those among them that could not do anything when they resumed."""
    leftovers: list[str] = field(default_factory=list)
    """Processes of the run that outlived it."""


class ExperimentSession:
    """One experiment. `run` is all of it."""

    def __init__(
        self,
        plan: Plan,
        runner: RunnerProcess,
        injector: Injector,
        assignment: Assignment,
        on_struck: Callable[[Struck], None],
        before_drain: Callable[[], Awaitable[None]] | None = None,
        settle: Callable[[int], None] | None = None,
    ) -> None:
        """`on_struck` is called for every fault, once it is known how soon the run recovered; `before_drain` before the
        run is asked to drain, if it is. `settle` gets the number of records that the sources have made when the faults
        are over, and changes the pipeline so that it ends by itself."""
        self._before_drain = before_drain
        self._settle = settle
        self._plan = plan
        self._runner = runner
        self._injector = injector
        self._assignment = assignment
        self._on_struck = on_struck
        self._board = Board()
        self._clock = SystemClock()
        self._outcome = ExperimentOutcome()
        self._begun_s = time.monotonic()
        self._until_s = math.inf
        self._pending: tuple[Struck, OpenFault] | None = None

    async def run(self) -> ExperimentOutcome:
        """Run the pipeline, and inject the planned faults."""
        async with self._runner.running(), beside(watch(self._plan, self._runner, self._board), "watch"):
            await self._first_progress()
            if self._assignment.seconds is not None:
                self._until_s = time.monotonic() + self._assignment.seconds
            await self._strike_all()
            await self._end()
        self._outcome.seconds = time.monotonic() - self._begun_s
        self._outcome.succeeded, self._outcome.fenced = self._injector.succeeded, self._injector.fenced
        self._outcome.leftovers = leftovers(self._runner.data.root)
        return self._outcome

    async def _first_progress(self) -> None:
        """Wait for the first progress: a pipeline whose records have not reached its sinks yet has nothing to
        resume."""
        sinks = [self._plan.lanes_of(self._plan.graph.head(vertex.name)) for vertex in self._plan.graph.sinks]
        deadline_s = time.monotonic() + _FIRST_PROGRESS_TIMEOUT_S
        while not self._runner.over and time.monotonic() < deadline_s:
            if all(self._board.records(lanes) for lanes in sinks):
                return
            await asyncio.sleep(_POLL_S)

    async def _strike_all(self) -> None:
        done = 0
        for strike in strikes(self._assignment.seed, self._assignment.kinds, roles_of(self._plan.graph)):
            if not strike.into_recovery:
                await self._until_back()
            left_s = max(0.0, self._until_s - time.monotonic())
            await self._runner.wait_over(min(strike.wait_s, left_s))
            # A run that has processed everything has nothing left that a fault could harm. Whether there is time left
            # is decided before the pause: timers of the event loop may fire a little early.
            ended = self._runner.over or self._board.ended(self._plan.all_lanes())
            if ended or done == self._assignment.strikes_max or strike.wait_s >= left_s:
                break
            if await self._strike(strike):
                done += 1
        await self._until_back()

    async def _strike(self, strike: Strike) -> bool:
        """Inject one fault. Returns False if there is nothing that it could strike."""
        victim = None
        if strike.role is not None:
            victim = await self._find(strike)
            if victim is None:
                self._outcome.missed[strike.role] += not self._runner.over
                return False
        self._abandon()
        struck = Struck(
            strike,
            victim.name if victim is not None else "",
            victim.process.pid if victim is not None else 0,
            time.monotonic() - self._begun_s,
            bool(self._plan.graph.reduces) and strike.role in (Role.RUNNER, Role.SPARK, Role.JVM),
        )
        lanes = self._lanes_of(victim)
        results = strike.role in SPARK_ROLES
        if strike.kind is FaultKind.KILL:
            assert victim is not None, "a kill is of a process"
            struck_us = self._clock.now_us()
            waiting = self._board.wait(
                lanes,
                struck_us,
                since_us=struck_us if strike.role in (Role.RUNNER, Role.WORKER, Role.PYTHON) else None,
                newer_epochs=strike.role in (Role.RUNNER, Role.WORKER),
                results=results,
            )
            if not await self._runner.kill(victim):
                self._board.forget(waiting)
                return False
        else:
            if not await self._injector.disturb(strike, victim):
                return False
            now_us = self._clock.now_us()
            waiting = self._board.wait(lanes, now_us, since_us=now_us, results=results)
        self._pending = struck, waiting
        self._outcome.struck.append(struck)
        return True

    async def _until_back(self) -> None:
        """Wait until the run has recovered from the last strike, or has ended."""
        if self._pending is None:
            return
        struck, waiting = self._pending
        deadline_s = time.monotonic() + (SPARK_RESUME_TIMEOUT_S if struck.spark_again else RESUME_TIMEOUT_S)
        while waiting.resumed_us() is None and not self._runner.over:
            if waiting.since_us is None:
                waiting.since_us = self._replaced_us(struck)
            if time.monotonic() > deadline_s or self._board.ended(list(waiting.lanes)):
                break
            await asyncio.sleep(_POLL_S)
        resumed_us = waiting.resumed_us()
        if resumed_us is not None:
            struck.resume_s = (resumed_us - waiting.struck_us) / MICROSECONDS
        elif not self._runner.over and not self._board.ended(list(waiting.lanes)):
            struck.absent = [str(lane) for lane in waiting.absent()]
        self._release()

    def _abandon(self) -> None:
        """The next strike comes before the run has recovered from the last one."""
        if self._pending is not None:
            self._pending[0].measured = False
            self._release()

    def _release(self) -> None:
        assert self._pending is not None, "the run is recovering"
        struck, waiting = self._pending
        self._pending = None
        self._board.forget(waiting)
        self._on_struck(struck)

    def _replaced_us(self, struck: Struck) -> int | None:
        """When the replacement of the killed process was started."""
        for one in processes_of(self._runner.pid):
            if (one.role, one.name) == (struck.strike.role, struck.process) and one.process.pid != struck.pid:
                # Its start time is known only to the second; it is noticed soon.
                return self._clock.now_us()
        return None

    async def _find(self, strike: Strike) -> RunProcess | None:
        deadline_s = time.monotonic() + (_FIND_SPARK_TIMEOUT_S if strike.role in SPARK_ROLES else _FIND_TIMEOUT_S)
        while not self._runner.over:
            found = [one for one in processes_of(self._runner.pid) if one.role is strike.role]
            if found:
                return found[min(int(strike.pick * len(found)), len(found) - 1)]
            if time.monotonic() > deadline_s:
                return None
            await asyncio.sleep(_POLL_S)
        return None

    def _lanes_of(self, victim: RunProcess | None) -> tuple[LaneId, ...]:
        """The lanes that a process serves; all of them if no process is given."""
        if victim is not None and victim.role in (Role.WORKER, Role.SIDECAR):
            # The function of a vertex that follows in a chain works for the lanes of its first vertex.
            served = [(self._plan.graph.head(one.vertex), one.number) for one in victim.replicas]
            return tuple(lane for vertex, number in served for lane in self._plan.owned_lanes(vertex, number))
        if victim is not None and victim.role in SPARK_ROLES:
            return tuple(lane for vertex in self._plan.graph.reduces for lane in self._plan.lanes_of(vertex.name))
        return self._plan.all_lanes()

    async def _end(self) -> None:
        """End the run: it ends by itself if it has an end and no time is set; otherwise it is asked to drain."""
        if self._settle is not None and not self._runner.over:
            taken = sum(self._board.records(self._plan.lanes_of(vertex.name)) for vertex in self._plan.graph.sources)
            self._settle(taken)
            await self._runner.restart()
            await self._until_over()
        elif self._assignment.seconds is None and self._assignment.bounded:
            await self._until_over()
        elif not self._runner.over:
            if self._before_drain is not None:
                await self._before_drain()
            self._outcome.drained = True
            self._runner.ask_to_end()
            await self._until_over()
        self._outcome.exit_code = self._runner.exit_code
        # It may have ended before it was asked to.
        self._outcome.drained = self._outcome.drained and not self._board.ended(self._plan.all_lanes())

    async def _until_over(self) -> None:
        """Wait until the run is over. A lot may wait in its buffers, but not without any progress."""
        seen, deadline_s = -1, 0.0
        while not self._runner.over:
            records = self._board.records(self._plan.all_lanes())
            if records > seen:
                seen, deadline_s = records, time.monotonic() + END_TIMEOUT_S
            elif time.monotonic() > deadline_s:
                return
            await self._runner.wait_over(_LOOK_S)


def roles_of(graph: Graph) -> tuple[Role, ...]:
    """The roles that processes of this pipeline's run have."""
    programs = [placed.program for vertex in graph.vertices for placed in vertex.programs if placed.beside]
    functions = any(program.python or program.command for program in programs)
    roles = tuple(role for role in ROLES if role is not Role.SIDECAR or functions)
    return roles + (SPARK_ROLES if graph.reduces else ())


def leftovers(data_dir: Path) -> list[str]:
    """Processes that still work on this data directory, or that a run has left behind."""
    running = [(one.info["pid"], one.info["cmdline"] or []) for one in psutil.process_iter(["pid", "cmdline"])]
    return [
        f"{pid} {' '.join(command)[:200]}" for pid, command in running if any(str(data_dir) in part for part in command)
    ]


async def watch(plan: Plan, runner: RunnerProcess, board: Board) -> None:
    """Pass everything that lanes publish to the board, across all restarts of the broker and the runner, until
    cancelled."""
    while True:
        access = _access(plan, runner)
        if access is None:
            await asyncio.sleep(_WATCH_POLL_S)
            continue
        with suppress(InfrastructureError, RetryLaterError):
            await _watch_broker(plan, runner, board, access)


async def _watch_broker(plan: Plan, runner: RunnerProcess, board: Board, access: Access) -> None:
    """Watch as long as the broker of the run has this port and this key."""
    async with technology_of(plan.pipeline).open(
        access, plan.pipeline.name, name="chaos", require=DurabilityLevel.MEMORY
    ) as buffer:
        opened = {vertex: await buffer.stores.store(vertex) for vertex in plan.order}
        try:
            async with AsyncExitStack() as hearing:
                for vertex, store in opened.items():
                    await hearing.enter_async_context(beside(_hear(plan, board, vertex, store), f"hear {vertex}"))
                while _access(plan, runner) in (None, access):  # noqa: ASYNC110  # a file tells
                    await asyncio.sleep(_WATCH_POLL_S)
        except BaseExceptionGroup as group:
            # One failure stands for all: they have one cause, the broker.
            raise first_cause(group) or group from None


async def _hear(plan: Plan, board: Board, vertex: str, store: OtStore) -> None:
    lanes = {lane.key: lane for lane in plan.lanes_of(vertex)}
    async with store.watch() as updates:
        async for update in updates:
            lane: LaneId | None = lanes.get(update.key)
            if lane is not None:
                board.observe(lane, update)


def _access(plan: Plan, runner: RunnerProcess) -> Access | None:
    runtime = runner.runtime()
    if runtime is None or not runtime.broker_url:
        return None
    return runner.data.access(runtime, technology_of(plan.pipeline))
