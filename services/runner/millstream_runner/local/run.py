"""`millstream run`: one pipeline on this machine, from the lock on its data directory to its summary.

    lock ─► end what an earlier run left behind ─► same shape? ─► broker ─► workers ──────────┐
                                                                                              │ all ended
    summary ◄─ marks ◄────────────── drain (Ctrl-C) or failure ◄──────── watch and show ◄─────┘

Above it: the command line. Below it: the parts of this package. It moves no record: killing it at any point loses
nothing, because every fact lies in the broker's store.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream import codes, limits
from millstream.buffers.registry import technology_of
from millstream.clock import SystemClock
from millstream.codes.code import Code
from millstream.errors import DamageError, InfrastructureError, MillstreamError, RetryLaterError, UserError
from millstream.ledger.protocol import DurabilityLevel
from millstream.record import ReplicaId
from millstream.spec.graph import Graph
from millstream.spec.lanes import owned_lanes
from millstream.spec.loading import Loaded
from millstream.udf.socket_directory import open_socket_directory
from millstream_runner.local import audit
from millstream_runner.local.broker import NAME as BROKER
from millstream_runner.local.broker import EmbeddedBroker
from millstream_runner.local.causes import first_cause
from millstream_runner.local.changing import Change, plan_change
from millstream_runner.local.claiming import claim, refuse_live_runner
from millstream_runner.local.directory import HOME, DataDirectory, RunningProcess, Runtime, held, write_json
from millstream_runner.local.ledgers import KnownLedgers
from millstream_runner.local.listening import refuse_taken_ports
from millstream_runner.local.logfiles import LogFile, short_entry
from millstream_runner.local.outputs import former_outputs, move_outputs, refuse_former_outputs
from millstream_runner.local.processes import end_stale, identify
from millstream_runner.local.progress import PipelineProgress
from millstream_runner.local.replica import Failure, State, worst
from millstream_runner.local.runner_log import runner_log
from millstream_runner.local.screen import MESSAGES_PER_S, Scene, Screen
from millstream_runner.local.signals import handled
from millstream_runner.local.storage import refuse_small_disk
from millstream_runner.local.summary import Summary, check_stored, summarize
from millstream_runner.local.view import PipelineView, open_view
from millstream_runner.local.workers import (
    Hooks,
    LocalWorker,
    LocalWorkers,
    Logs,
    WorkerArguments,
    WorkerPlan,
    plan_workers,
)

if TYPE_CHECKING:
    from millstream_runner.local.spark import LocalSpark

SAMPLE_INTERVAL_S = 0.5
"""Between two looks at the OT stores."""
FAILURE_GRACE_S = 10.0
"""From the failure of one vertex until the others are ended that have not drained."""
DRAIN_GRACE_S = 5.0
"""After the deadline of a drain: vertices that do not end by themselves are killed. Nothing is lost by it."""
_POLL_S = 0.05
_REPEAT_S = 30.0
"""The same line of a vertex is shown again after this."""
_REMEMBERED_MAX = 1000
ABORTED = 130
"""Exit code after a second Ctrl-C, as a shell gives it."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the user asked for."""

    data_dir: Path | None = None
    """Default: `.millstream/<pipeline>` below the current directory."""
    fresh: bool = False
    """Remove what earlier runs stored, first."""
    move_outputs: bool = False
    """Where the run starts from nothing, move what file sinks have of earlier ones aside, first."""
    forget: Sequence[str] = ()
    """Sources that are gone from the pipeline, and may be forgotten with how far they had read."""
    durability: DurabilityLevel = DurabilityLevel.FSYNC
    metrics_port_base: int | None = None
    """Port of the first worker's metrics; the next ones follow. None: no metrics endpoint."""
    metrics_host: str = "127.0.0.1"
    """Address that they listen on."""
    workers: int | None = None
    """Processes that share the vertices. None: as many as there are processors, and at least two."""
    log_level: str = "info"
    broker_path: str | None = None
    """URL at which the vertices reach the broker, when something stands in between. None: directly."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run went."""

    exit_code: int
    failure: Failure | None
    summary: Summary | None
    """None when it could not be read."""
    directory: Path
    elapsed_s: float
    had_ended: bool
    """Everything had been processed before this run."""

    @property
    def code(self) -> Code | None:
        """Of what went wrong; None where nothing did, or where nothing is known but an exit code."""
        if self.failure is not None:
            return self.failure.code
        if self.summary is None or self.summary.balanced:
            return None
        return codes.STORED_CONTRADICTS if self.summary.damage else codes.UNBALANCED


async def run(loaded: Loaded, options: RunOptions, screen: Screen) -> RunResult:
    """Run a pipeline until it has ended, is told to stop (SIGINT, SIGTERM, SIGHUP), or fails.

    Raises errors of before the start: the directory is in use, or holds another pipeline's data.
    """
    root = options.data_dir or HOME / loaded.pipeline.name
    with held(root.absolute()) as directory:
        # Everything is checked before anything is ended, moved or removed.
        previous = directory.read_runtime()
        if previous is not None:
            refuse_live_runner(directory, previous)
        starts_anew = options.fresh or not directory.shape.exists()
        if options.move_outputs and not starts_anew:
            raise UserError(
                codes.OPTIONS_CONFLICT, "--move-outputs is for a run that starts from nothing: give --fresh as well"
            )
        change = plan_change(directory, loaded, options.forget) if not starts_anew else None
        if starts_anew:
            refuse_small_disk(loaded.graph, directory)
        outputs = former_outputs(loaded.graph, loaded.base_dir) if starts_anew else []
        if not options.move_outputs:
            refuse_former_outputs(outputs, fresh=options.fresh)
        if previous is not None:
            stale = end_stale(process.identity for process in previous.processes)
            if stale:
                screen.message(f"ended {len(stale)} process(es) that an earlier run had left behind")
        refuse_taken_ports(loaded.graph, _plans(loaded.graph, options), options.metrics_host)
        audit.note(directory, "start", **audit.pipeline_of(loaded), **asdict(options))
        for before, after in move_outputs(outputs, SystemClock().now_us()):
            screen.message(f"the files of {before} were moved to {after}")
        if options.fresh:
            directory.clear()
        directory.make()
        if change is None:
            claim(directory, loaded)
        port = previous.broker_port if previous is not None else None
        with audit.until_end(directory, screen.message) as outcome:
            result = await _Run(loaded, options, screen, directory, change).run(port)
            outcome["exit_code"] = result.exit_code
            outcome["code"] = result.code.id if result.code is not None else None
        return result


def _plans(graph: Graph, options: RunOptions) -> list[WorkerPlan]:
    return list(plan_workers(graph, options.workers, options.metrics_port_base))


class _Run:
    """One run, between the lock and the exit code."""

    def __init__(
        self, loaded: Loaded, options: RunOptions, screen: Screen, directory: DataDirectory, change: Change | None
    ) -> None:
        graph = loaded.graph
        self._graph = graph
        self._base_dir = loaded.base_dir
        self._options = options
        self._screen = screen
        self._directory = directory
        self._change = change
        self._clock = SystemClock()
        self._begun_s = self._clock.monotonic_s()
        self._identity = identify(os.getpid())
        self._task = _current_task()
        self._progress = PipelineProgress(graph)
        self._technology = technology_of(graph.pipeline)
        self._broker: EmbeddedBroker | None = None
        self._broker_over = False
        self._view: PipelineView | None = None
        self._workers = LocalWorkers([])
        self._spark: LocalSpark | None = None
        self._changed = asyncio.Event()
        """Something about a process has changed."""
        self._drain_asked = asyncio.Event()
        self._aborted = False
        self._state = "starting"
        self._durability: str | None = None
        self._messages = 0
        """Shown or left out since `_messages_since_s`."""
        self._messages_since_s = 0.0
        self._shown_s: dict[str, float] = {}
        """When each text was last shown."""
        self._last_trouble = ""
        self._had_ended = False

    async def run(self, port: int | None) -> RunResult:
        logs = self._directory.logs
        with handled(self._on_signal), runner_log(logs, self._screen.message), contextlib.ExitStack() as files:
            broker_log = files.enter_context(LogFile(logs / f"{BROKER}.jsonl"))
            self._broker = EmbeddedBroker(
                self._directory.broker,
                self._technology,
                durability=self._options.durability,
                port=port,
                on_line=broker_log.write,
                on_started=self._on_change,
            )
            self._workers = LocalWorkers([self._worker(plan, files) for plan in _plans(self._graph, self._options)])
            if self._graph.reduces:
                self._spark = self._open_spark(files)
            try:
                summary = await self._run_processes(self._broker)
            except BaseExceptionGroup as group:
                raise first_cause(group) or group from None
            except asyncio.CancelledError:
                if not self._aborted:
                    raise
                self._screen.close()
                return self._result(ABORTED, None)
            failure = self._failure()
            code = failure.exit_code if failure is not None else 0
            if failure is None and not summary.balanced:
                code = (DamageError if summary.damage else MillstreamError).exit_code
            return self._result(code, summary)

    async def _run_processes(self, broker: EmbeddedBroker) -> Summary:
        async with asyncio.TaskGroup() as processes:
            processes.create_task(broker.serve(), name=BROKER)
            if self._spark is not None:
                # It takes longest, and should be there before the first window closes.
                processes.create_task(self._spark.serve(), name="spark")
            await broker.ready.wait()
            level = self._options.durability
            if self._change is not None:
                await self._change.make(broker.access, level)
            async with open_view(self._graph, broker.access, level) as view:
                self._view = view
                summary = await self._run_vertices(broker, view)
            if self._spark is not None:
                self._spark.stop()
            broker.stop()
        self._broker_over = True
        self._write_runtime()
        return summary

    async def _run_vertices(self, broker: EmbeddedBroker, view: PipelineView) -> Summary:
        arguments = WorkerArguments(
            self._directory.pipeline,
            self._directory.windows,
            self._options.broker_path or broker.access.url,
            self._directory.broker_access,
            self._options.durability,
            self._options.log_level,
            self._spark.address if self._spark is not None else None,
            self._options.metrics_host,
        )
        ledgers = KnownLedgers(self._directory.ledgers)
        ledgers.check(await view.ledger_ids())
        stored = summarize(self._graph, await view.marks(), {})
        check_stored(stored, self._directory.root)
        self._had_ended = stored.ended
        self._state = "running"
        async with asyncio.TaskGroup() as tasks:
            watching = [
                tasks.create_task(self._look(view, ledgers), name="look"),
                tasks.create_task(self._keep_showing(), name="show"),
            ]
            draining = tasks.create_task(self._drain_when_asked(view), name="drain")
            for worker in self._workers:
                tasks.create_task(worker.serve(arguments), name=worker.plan.name)
            while not self._workers.are_over:
                if self._failure() is not None and self._state != "failing":
                    self._state = "failing"
                    draining.cancel()
                    self._workers.stop(self._graph.order, grace_s=FAILURE_GRACE_S)
                self._changed.clear()
                await self._changed.wait()
            draining.cancel()
            for task in watching:
                task.cancel()
        summary = await self._summarize(view, ledgers)
        self._state = "ended" if summary.ended else "stopped"
        self._show()
        self._screen.close()
        return summary

    async def _summarize(self, view: PipelineView, ledgers: KnownLedgers) -> Summary:
        """What the stored marks say. A vertex that was killed may leave a commit that the broker is still applying."""
        deadline_s = self._clock.monotonic_s() + limits.COMMIT_TIMEOUT_S
        while True:
            try:
                await self._look_once(view, ledgers)
                return await view.summary()
            except RetryLaterError:
                if self._clock.monotonic_s() > deadline_s:
                    raise
            await asyncio.sleep(_POLL_S)

    async def _drain_when_asked(self, view: PipelineView) -> None:
        """Stop the sources, then each vertex when all it reads has been read; at the deadline those that are left."""
        await self._drain_asked.wait()
        self._state = "draining"
        deadline_s = self._clock.monotonic_s() + limits.DRAIN_TIMEOUT_S
        sources = {vertex.name for vertex in self._graph.sources}
        await self._stop_group(sources, deadline_s)
        for group in self._graph.sccs:
            if sources.isdisjoint(group):
                await self._until_read(group, view, deadline_s)
                await self._stop_group(group, deadline_s)

    async def _until_read(self, vertices: Collection[str], view: PipelineView, deadline_s: float) -> None:
        """Wait until the buffers that these vertices read are empty; nothing writes them any more."""
        while self._clock.monotonic_s() < deadline_s:
            with contextlib.suppress(RetryLaterError):
                await view.update(self._progress)
                if not self._progress.waiting(vertices):
                    return
            if self._workers.have_over(vertices):
                return
            await asyncio.sleep(_POLL_S)

    async def _stop_group(self, vertices: Collection[str], deadline_s: float) -> None:
        """Stop these vertices and wait for them until the deadline."""
        left_s = max(0.0, deadline_s - self._clock.monotonic_s())
        self._workers.stop(vertices, grace_s=left_s + DRAIN_GRACE_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                while not self._workers.have_over(vertices):  # noqa: ASYNC110  # several events may make it true
                    await asyncio.sleep(_POLL_S)

    async def _look(self, view: PipelineView, ledgers: KnownLedgers) -> None:
        """Keep the numbers up to date, forever. While the broker is away the last ones stand."""
        while True:
            with contextlib.suppress(RetryLaterError):
                await self._look_once(view, ledgers)
            await asyncio.sleep(SAMPLE_INTERVAL_S)

    async def _look_once(self, view: PipelineView, ledgers: KnownLedgers) -> None:
        await view.update(self._progress)
        ledgers.note(await view.ledger_ids())
        if self._durability is None:
            self._durability = await self._shown_durability(view)

    async def _keep_showing(self) -> None:
        """Keep the screen and the files in the data directory up to date, forever: also when nothing answers."""
        while True:
            self._show()
            await asyncio.sleep(SAMPLE_INTERVAL_S)

    async def _shown_durability(self, view: PipelineView) -> str | None:
        found = await view.durability()
        if found is None:
            return None
        return f"{found.level.value} ({'verified' if found.verified else 'not verified'})"

    def _show(self) -> None:
        scene = Scene(
            pipeline=self._graph.pipeline.name,
            state=self._state,
            elapsed_s=self._elapsed_s(),
            durability=self._durability or self._options.durability.value,
            vertices=self._progress.sample(now_us=self._clock.now_us(), now_s=self._clock.monotonic_s()),
            states={vertex: self._state_of(vertex) for vertex in self._graph.order},
            spark=self._spark.text if self._spark is not None else "",
        )
        self._screen.show(scene)
        failure = self._failure()
        told = {"failure": failure.as_json() if failure is not None else None, "written_us": self._clock.now_us()}
        self._keep(self._directory.status, {**asdict(scene), **told})

    def _state_of(self, vertex: str) -> str:
        found, restarts = self._workers.states_of(vertex)
        running = State.RUNNING.value
        if self._spark is not None and not self._spark.is_ready and self._graph.vertex(vertex).definition.has_windows:
            running = "waiting for Spark"
        states = Counter(running if state is State.RUNNING else state.value for state in found)
        words = [name if len(states) == 1 else f"{count} {name}" for name, count in states.items()]
        if restarts:
            words.append(f"restarted {restarts}x")
        return ", ".join(words)

    def _failure(self) -> Failure | None:
        failures = self._workers.failures
        if self._spark is not None and self._spark.failure is not None:
            failures.append(self._spark.failure)
        return worst(failures)

    def _worker(self, plan: WorkerPlan, files: contextlib.ExitStack) -> LocalWorker:
        hooks = Hooks(
            progress=self._progress.mark_of,
            have_ended=self._have_ended,
            on_output=self._screen.output,
            on_entry=self._on_entry,
            on_health=lambda entry: self._screen.message(short_entry(entry)),
            on_change=self._on_change,
        )
        return LocalWorker(plan, Logs(self._directory.logs, plan, self._graph, files), hooks)

    def _open_spark(self, files: contextlib.ExitStack) -> LocalSpark:
        # What it imports takes time, and most pipelines do not need it.
        from millstream_reduce.spark.aot import advice
        from millstream_runner.local.spark import LocalSpark, plan_driver

        spark = self._graph.pipeline.spec.spark
        if (spark is None or spark.remote is None) and (text := advice()):
            self._screen.message(text)
        plan = plan_driver(
            self._graph.pipeline,
            self._base_dir,
            self._directory.spark,
            files.enter_context(open_socket_directory()),
            self._options.log_level,
        )
        return LocalSpark(
            plan,
            log=files.enter_context(LogFile(self._directory.logs / f"{plan.name}.jsonl")),
            on_output=self._screen.output,
            on_entry=self._on_entry,
            on_health=lambda entry: self._screen.message(short_entry(entry)),
            on_change=self._on_change,
        )

    async def _have_ended(self, replica: ReplicaId) -> bool:
        assert self._view is not None, "vertices run while the broker can be looked at"
        marks = await self._view.marks(replica.vertex)
        lanes = owned_lanes(self._graph, replica.vertex, replica.number)
        return all(lane in marks and marks[lane].ended for lane in lanes)

    def _result(self, exit_code: int, summary: Summary | None) -> RunResult:
        return RunResult(exit_code, self._failure(), summary, self._directory.root, self._elapsed_s(), self._had_ended)

    def _elapsed_s(self) -> float:
        return self._clock.monotonic_s() - self._begun_s

    def _on_signal(self) -> None:
        """First: drain. Second: end everything at once."""
        if not self._drain_asked.is_set() and self._state == "running":
            self._screen.message(
                "draining: sources take nothing new in, what is in flight is finished (again: stop at once)"
            )
            self._drain_asked.set()
            audit.note_going(self._directory, self._screen.message, "drain")
            return
        audit.note_going(self._directory, self._screen.message, "stop")
        self._aborted = True
        self._task.cancel()

    def _on_change(self) -> None:
        self._changed.set()
        self._write_runtime()

    def _write_runtime(self) -> None:
        broker = self._broker
        if broker is None or self._identity is None:
            return
        processes = [worker.process for worker in self._workers]
        if self._spark is not None:
            processes.append(self._spark.process)
        if broker.identity is not None and not self._broker_over:
            processes.append(RunningProcess(BROKER, broker.identity))
        runtime = Runtime(
            self._graph.pipeline.name,
            self._identity,
            broker.port,
            broker.access.url,
            tuple(process for process in processes if process is not None),
        )
        self._keep(self._directory.runtime, asdict(runtime))

    def _keep(self, path: Path, data: Mapping[str, Any]) -> None:
        """Write a small file for others to look at. A full disk must not stop the run over it."""
        try:
            write_json(path, data, durable=False)
        except InfrastructureError as error:
            if str(error) != self._last_trouble:
                self._last_trouble = str(error)
                self._screen.message(f"warning: {error}")

    def _on_entry(self, entry: Mapping[str, Any]) -> bool:
        """A warning or worse that a vertex logged: shown, if there are not too many. Returns whether it has been."""
        now_s = self._clock.monotonic_s()
        if now_s - self._messages_since_s >= 1.0:
            if self._messages > MESSAGES_PER_S:
                left_out = self._messages - MESSAGES_PER_S
                self._screen.message(f"... and {left_out} more lines: see `millstream logs`")
            self._messages_since_s, self._messages = now_s, 0
        text = short_entry(entry)
        # Lanes that wait for something say so at every attempt.
        if now_s - self._shown_s.get(text, -_REPEAT_S) < _REPEAT_S:
            return True
        if len(self._shown_s) > _REMEMBERED_MAX:
            self._shown_s.clear()
        self._messages += 1
        if self._messages > MESSAGES_PER_S:
            return False
        self._shown_s[text] = now_s
        self._screen.message(text)
        return True


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None, "a run is a task"
    return task
