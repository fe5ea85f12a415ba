"""`millstream run`: one pipeline on this machine, from the lock on its data directory to its summary.

    lock ─► end what an earlier run left behind ─► same shape? ─► broker ─► workers ──────────┐
                                                                                              │ all ended
    summary ◄─ marks ◄────────────── drain (Ctrl-C) or failure ◄──────── watch and show ◄─────┘

Above it: the command line. Below it: the parts of this package. It moves no records: killing it at any point loses
nothing, because everything is in the broker's store.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream import codes
from millstream.background import beside
from millstream.clock import SystemClock
from millstream.codes.code import Code
from millstream.errors import DamageError, MillstreamError, RetryLaterError, UserError, first_cause
from millstream.importing import started
from millstream.ledger.protocol import DurabilityLevel
from millstream.pauses import until_next
from millstream.plan.shape import as_stored, former_keys_text
from millstream.plurals import counted
from millstream.record import ReplicaId
from millstream.spec.loading import LoadedPipeline
from millstream.udf.socket_directory import open_socket_directory
from millstream.udf.sources import OnChange
from millstream_runner.local import audit
from millstream_runner.local.broker import BROKER, EmbeddedBroker
from millstream_runner.local.changed_files import watch_files
from millstream_runner.local.changing import PipelineChange, check_restored, claim, plan_change
from millstream_runner.local.directory import DataDirectory, KnownLedgers, held, read_json, root_of
from millstream_runner.local.display import Display, ShownEntries
from millstream_runner.local.logfiles import LogFile, runner_log
from millstream_runner.local.members import Members
from millstream_runner.local.memory_watch import default_limit
from millstream_runner.local.outputs import FormerOutput, former_outputs, move_outputs, refuse_former_outputs
from millstream_runner.local.prerequisites import refuse_small_disk, refuse_taken_ports
from millstream_runner.local.processes import end_stale, refuse_live_runner
from millstream_runner.local.progress import PipelineProgress
from millstream_runner.local.recording import Recording
from millstream_runner.local.replica import Failure, Hooks, Logs, ProcessPlan
from millstream_runner.local.screen import Screen
from millstream_runner.local.standard_output import StandardOutput
from millstream_runner.local.states import OVER, State
from millstream_runner.local.summary import Summary, check_stored, summarize
from millstream_runner.local.view import PipelineView, open_view
from millstream_runner.local.workers import (
    LocalWorker,
    LocalWorkers,
    plan_workers,
    printing,
)

if TYPE_CHECKING:
    from millstream_runner.local.savepoints.restoring import Restore
    from millstream_runner.local.spark import LocalSpark

WORKER_MODULE = "millstream_worker"
SAMPLE_INTERVAL_S = 0.5
"""Time between two readings of the OT stores."""
QUIET_INTERVAL_S = 1.0
"""The same while they have nothing new: reading a store is a request to the broker."""
_QUIET_LOOKS = 8
"""After this many readings without anything new, each reads only the sources' stores and a part of the others, until
there is something new."""
SPARK_GRACE_S = 10.0
"""Time from the request to end until Spark's driver is killed. Nothing is lost by that."""
FAILURE_GRACE_S = 10.0
"""Time from the failure of one vertex until the others that have not drained are killed."""
_POLL_S = 0.05
_LOOKS_MAX = 100
"""How often the broker is asked for what the summary needs: 5 s if it answers at once."""
SAME_DECISION_S = 0.3
"""Signals within this time are one decision: `timeout` signals its child, and then the group of both."""
ASKED_TO_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_CLOCK = SystemClock()
ABORTED = 130
"""Exit code after a second Ctrl-C, as shells report it."""


@contextlib.contextmanager
def signals_handled(handler: Callable[[], None]) -> Iterator[None]:
    """Make SIGINT, SIGTERM and SIGHUP call `handler`. Afterwards they have no effect while the loop exists, so that a
    run that has ended can finish."""
    loop = asyncio.get_running_loop()
    for number in ASKED_TO_STOP:
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in ASKED_TO_STOP:
            loop.add_signal_handler(number, lambda: None)


def ignore_signals() -> None:
    """The same without a loop, for a process that only has to print its result."""
    for number in ASKED_TO_STOP:
        signal.signal(number, signal.SIG_IGN)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The user's options."""

    data_dir: Path | None = None
    """Default: `.millstream/<pipeline>` below the current directory."""
    fresh: bool = False
    """First remove what earlier runs stored."""
    from_savepoint: str | None = None
    """Begin with this savepoint, by its name or its path."""
    move_outputs: bool = False
    """If the run starts over, first move the files that file sinks have from earlier runs."""
    forget: Sequence[str] = ()
    """Sources that were removed from the pipeline and may be forgotten, with their positions."""
    durability: DurabilityLevel = DurabilityLevel.FSYNC
    metrics_port_base: int | None = None
    """Port of the first worker's metrics; the next ones follow. None: no metrics endpoint."""
    metrics_host: str = "127.0.0.1"
    """Address on which they listen."""
    workers: int | None = None
    """Processes that share the vertices. None: one per processor, but at least two."""
    worker_memory: int | None = None
    """The bytes of memory that each of them may take. None: three quarters of the machine's."""
    log_level: str = "info"
    watch: bool = False
    """Restart a function when one of its files changes."""
    debugged: Mapping[str, int] = field(default_factory=dict)
    """Vertices whose functions wait for a debugger, and the ports."""
    broker_path: str | None = None
    """URL at which the vertices reach the broker if something is between them. None: directly."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """The outcome of a run."""

    exit_code: int
    failure: Failure | None
    summary: Summary | None
    """None if it could not be read."""
    directory: Path
    elapsed_s: float
    had_ended: bool
    """Everything had been processed before this run."""

    @property
    def code(self) -> Code | None:
        """The code of the failure; None if there was none, or if nothing is known but an exit code."""
        if self.failure is not None:
            return self.failure.code
        if self.summary is None or self.summary.balanced:
            return None
        return codes.STORED_CONTRADICTS if self.summary.damage else codes.UNBALANCED


async def run(
    loaded: LoadedPipeline, options: RunOptions, screen: Screen, recording: Recording | None = None
) -> RunResult:
    """Run a pipeline until it has ended, is asked to stop (SIGINT, SIGTERM, SIGHUP), or fails. `recording` records its
    course.

    Raises the errors that occur before the start: the directory is in use, or contains another pipeline's data.
    """
    with held(root_of(loaded.pipeline.name, options.data_dir).absolute()) as directory:
        # Everything is checked before anything is ended, moved or removed.
        previous = directory.read_runtime()
        if previous is not None:
            refuse_live_runner(directory, previous)
        if not options.fresh and options.from_savepoint is None:
            check_restored(directory)
        shape = None if options.fresh else read_json(directory.shape)
        change: PipelineChange | Restore | None = None
        restore: Restore | None = None
        kept: Sequence[str] = ()
        outputs: Sequence[FormerOutput] = ()
        if options.from_savepoint is not None:
            refuse_small_disk(loaded.plan, directory)
            change = restore = await _restore_of(directory, loaded, options)
            loaded = restore.loaded
        elif shape is None:
            refuse_small_disk(loaded.plan, directory)
            outputs = former_outputs(loaded.graph, loaded.base_dir)
            if not options.move_outputs:
                refuse_former_outputs(outputs, fresh=options.fresh)
        elif options.move_outputs:
            raise UserError(
                codes.OPTIONS_CONFLICT, "--move-outputs needs --fresh, because it is for a run that starts over"
            )
        else:
            loaded, kept = as_stored(loaded, shape)
            change = plan_change(directory, shape, loaded, options.forget)
        if previous is not None:
            stale = end_stale(process.identity for process in previous.processes)
            if stale:
                screen.message(f"ended {counted(len(stale), 'process', 'processes')} left behind by an earlier run")
        workers = list(plan_workers(loaded.plan, options.workers, options.metrics_port_base))
        refuse_taken_ports(loaded.graph, workers, options.metrics_host)
        chosen = asdict(options) | {"durability": options.durability.value}
        audit.note(directory, "start", **audit.pipeline_of(loaded), **chosen)
        for before, after in move_outputs(outputs, SystemClock().now_us()):
            screen.message(f"the files of {before} were moved to {after}")
        if restore is not None:
            restore.begin()
        elif options.fresh:
            directory.clear()
        directory.make()
        if change is None:
            claim(directory, loaded)
        if kept:
            screen.message(
                f"buffers kept, as in the stored data: {', '.join(kept)}. A new data directory would have none there, "
                "because these edges can be chained; `chain: false` says that they keep them"
            )
        for vertex in sorted(loaded.plan.former_keys):
            screen.message(former_keys_text(vertex))
        port = (previous.broker_port or None) if previous is not None else None
        with audit.until_end(directory, screen.message) as outcome:
            result = await _Run(loaded, options, screen, directory, change, recording or Recording()).run(workers, port)
            outcome.update(exit_code=result.exit_code, code=result.code.id if result.code is not None else None)
        return result


async def _restore_of(directory: DataDirectory, loaded: LoadedPipeline, options: RunOptions) -> Restore:
    """The restore with which a run begins. Nothing is changed yet."""
    assert options.from_savepoint is not None
    if options.move_outputs:
        raise UserError(
            codes.OPTIONS_CONFLICT,
            "--move-outputs is for a run that starts over; one with --from-savepoint continues what file sinks have",
        )
    if not options.fresh and not directory.restoring.exists() and directory.shape.exists():
        raise UserError(
            codes.SAVEPOINT_NOT_USED,
            f"{directory.root} has data already, and a run with --from-savepoint {options.from_savepoint} begins with "
            "what the savepoint has: run without --from-savepoint to continue with that data; or name another "
            "directory with --data-dir; or use --fresh to remove the data",
        )
    return await started(_planned_restore, directory, loaded, options.from_savepoint, options.forget)


def _planned_restore(
    directory: DataDirectory, loaded: LoadedPipeline, wanted: str, forget: Sequence[str]
) -> Coroutine[Any, Any, Restore]:
    # Not above: it imports all that functions remember.
    from millstream_runner.local.savepoints.restoring import plan_restore

    return plan_restore(directory, loaded, wanted, forget)


class _Run:
    """One run, from the lock to the exit code."""

    def __init__(
        self,
        loaded: LoadedPipeline,
        options: RunOptions,
        screen: Screen,
        directory: DataDirectory,
        change: PipelineChange | Restore | None,
        recording: Recording,
    ) -> None:
        self._loaded = loaded
        self._graph = loaded.graph
        self._options = options
        self._screen = screen
        self._directory = directory
        self._change = change
        task = asyncio.current_task()
        assert task is not None, "a run is a task"
        self._task = task
        self._progress = PipelineProgress(loaded.graph)
        self._display = Display(screen, directory, _CLOCK, recording, loaded.pipeline.name, options.durability.value)
        self._entries = ShownEntries(screen, _CLOCK, recording)
        self._changed = asyncio.Event()
        """Set when something about a process has changed."""
        self._drain_asked = asyncio.Event()
        self._view: PipelineView | None = None
        self._cancelled_with: int | None = None
        """The exit code of a run that signals have ended at once, or before anything could be read."""
        self._signalled_s = -SAME_DECISION_S
        self._state = State.STARTING
        self._had_ended = False

    async def run(self, plans: Sequence[ProcessPlan], port: int | None) -> RunResult:
        """`plans`: those of the workers. `port`: that of the broker of the previous run."""
        with (
            signals_handled(self._on_signal),
            runner_log(self._directory.logs, self._screen.message),
            contextlib.ExitStack() as files,
        ):
            members = self._open_members(files, plans, port)
            try:
                summary = await self._run_processes(members)
            except BaseExceptionGroup as group:
                raise first_cause(group) or group from None
            except asyncio.CancelledError:
                if self._cancelled_with is None:
                    raise
                return self._result(self._cancelled_with, members.failure, None)
            finally:
                self._screen.close()
            code = members.failure.exit_code if members.failure is not None else 0
            if members.failure is None and not summary.balanced:
                code = (DamageError if summary.damage else MillstreamError).exit_code
            return self._result(code, members.failure, summary)

    def _open_members(self, files: contextlib.ExitStack, plans: Sequence[ProcessPlan], port: int | None) -> Members:
        """Create everything that will run, without starting it."""
        broker_log = files.enter_context(LogFile(self._directory.logs / f"{BROKER}.jsonl"))

        def changed() -> None:
            self._changed.set()
            self._display.note_processes(members)

        broker = EmbeddedBroker(
            self._directory.broker,
            self._loaded.plan,
            durability=self._options.durability,
            port=port,
            on_line=broker_log.write,
            on_started=changed,
        )
        output = StandardOutput(self._screen, changed)
        hooks = Hooks(
            progress=self._progress.mark_of,
            have_ended=self._have_ended,
            prints=output.print,
            # The run says at its end that its standard output is closed, whichever worker noticed.
            on_entry=lambda entry: entry.get("code") == codes.OUTPUT_CLOSED.id or self._entries.show(entry),
            on_health=self._entries.say,
            on_change=changed,
        )
        memory_max = self._options.worker_memory or default_limit()
        workers = LocalWorkers(
            [
                LocalWorker(
                    plan, Logs(self._directory.logs, plan, files, printing(self._graph, plan)), hooks, memory_max
                )
                for plan in plans
            ]
        )
        spark = self._open_spark(files, hooks) if self._graph.reduces else None
        members = Members(self._graph, broker, workers, spark, output)
        return members

    async def _run_processes(self, members: Members) -> Summary:
        async with asyncio.TaskGroup() as processes:
            showing = processes.create_task(self._keep_showing(members), name="show")
            processes.create_task(members.broker.serve(), name=BROKER)
            if members.spark is not None:
                # It takes longest to start, and should be ready before the first window closes.
                processes.create_task(members.spark.serve(), name="spark")
            await members.broker.ready.wait()
            level = self._options.durability
            if self._change is not None:
                await self._change.make(members.broker.access, level)
            async with open_view(self._loaded.plan, members.broker.access, level) as view:
                self._view = view
                summary = await self._run_vertices(members, view)
            showing.cancel()
            self._show(members)
            self._screen.close()
            if members.spark is not None:
                members.spark.stop(grace_s=SPARK_GRACE_S)
            members.broker.stop()
        members.broker_over = True
        self._display.note_processes(members)
        return summary

    async def _run_vertices(self, members: Members, view: PipelineView) -> Summary:
        ledgers = KnownLedgers(self._directory.ledgers)
        ledgers.check(await view.ledger_ids())
        await view.separate_edges()
        stored = summarize(self._graph, await view.marks(), {})
        check_stored(stored, self._directory.root)
        self._had_ended = stored.ended
        self._state = State.RUNNING
        # Modules and the pipeline: a garbage collection of them would find nothing.
        gc.freeze()
        async with (
            beside(self._look(view, ledgers), "look"),
            beside(watch_files(self._loaded, self._screen.message), "changed files"),
            asyncio.TaskGroup() as tasks,
        ):
            draining = tasks.create_task(self._drain_when_asked(members, view), name="drain")
            for worker in members.workers:
                tasks.create_task(
                    worker.keep_running(partial(self._worker_command, members, worker)), name=worker.plan.name
                )
            while not members.workers.are_over:
                if members.failure is not None and self._state is not State.FAILING:
                    self._state = State.FAILING
                    draining.cancel()
                    members.workers.stop(self._graph.order, grace_s=FAILURE_GRACE_S)
                self._changed.clear()
                await self._changed.wait()
            draining.cancel()
        summary = await self._summarize(view, ledgers)
        self._state = State.DONE if summary.ended else State.STOPPED
        if members.failure is not None:
            self._state = State.FAILED
        return summary

    def _worker_command(self, members: Members, worker: LocalWorker) -> Sequence[str]:
        """The command line of a worker that starts now."""
        options = self._options
        metrics: list[str] = []
        if worker.plan.metrics_port is not None:
            metrics = ["--metrics-port", str(worker.plan.metrics_port), "--metrics-host", options.metrics_host]
        on_change = OnChange.RESTART if options.watch else OnChange.REPORT
        return [
            *(sys.executable, "-P", "-m", WORKER_MODULE),
            *("--replicas", *(replica.name for replica in worker.left())),
            *("--pipeline", str(self._directory.pipeline)),
            *("--broker", options.broker_path or members.broker.access.url),
            *("--broker-access", str(self._directory.broker_access)),
            *("--windows-dir", str(self._directory.windows)),
            *("--states-dir", str(self._directory.states)),
            *("--durability", options.durability.value),
            *("--log-level", options.log_level.upper()),
            "--orders",
            *("--on-change", on_change.value),
            *(word for vertex, port in options.debugged.items() for word in ("--debug", f"{vertex}:{port}")),
            *metrics,
            *(() if members.spark is None else ("--spark", members.spark.address)),
        ]

    async def _summarize(self, view: PipelineView, ledgers: KnownLedgers) -> Summary:
        """What the stored marks say. A killed vertex may leave a commit that the broker is still applying."""
        # Limited by the number of answers, not by the clock, so that a slow machine gets as many.
        for left in reversed(range(_LOOKS_MAX)):
            try:
                await self._look_once(view, ledgers)
                return await view.summary()
            except RetryLaterError as error:
                if not left:
                    raise
                if left == _LOOKS_MAX // 2:
                    self._screen.message(f"waiting for the broker to report what is stored: {error}")
            await asyncio.sleep(_POLL_S)
        raise AssertionError("the last attempt returns or raises")

    async def _drain_when_asked(self, members: Members, view: PipelineView) -> None:
        await self._drain_asked.wait()
        self._state = State.DRAINING
        await members.workers.drain(self._loaded.plan, view, self._progress)

    async def _look(self, view: PipelineView, ledgers: KnownLedgers) -> None:
        """Keep the figures up to date, forever. While the broker does not answer, the last ones are kept."""
        quiet = 0
        while True:
            interval_s = SAMPLE_INTERVAL_S
            with contextlib.suppress(RetryLaterError):
                part = quiet if quiet >= _QUIET_LOOKS else None
                if not await self._look_once(view, ledgers, part):
                    quiet, interval_s = quiet + 1, QUIET_INTERVAL_S
                else:
                    quiet = 0
                    if part is not None:
                        await self._look_once(view, ledgers)
            await asyncio.sleep(until_next(interval_s))

    async def _look_once(self, view: PipelineView, ledgers: KnownLedgers, part: int | None = None) -> bool:
        """Whether anything is new. `part`: see `PipelineView.update`."""
        await view.update(self._progress, part)
        ledgers.note(await view.ledger_ids())
        news = self._display.take(self._progress, (edge.name for edge in self._graph.edges))
        await self._display.find_durability(view)
        return news

    async def _keep_showing(self, members: Members) -> None:
        """Keep the screen and the files in the data directory up to date, forever, even if nothing answers."""
        while True:
            self._show(members)
            await asyncio.sleep(until_next(SAMPLE_INTERVAL_S))

    def _show(self, members: Members) -> None:
        state, waits_for = self._state, ""
        if state in (State.STARTING, State.RUNNING):
            # What was started is not ready yet.
            state, waits_for = members.beginning()
        self._display.show(state, waits_for, self._progress, members)

    def _open_spark(self, files: contextlib.ExitStack, hooks: Hooks) -> LocalSpark:
        # Its imports take time, and most pipelines do not need it.
        from millstream_reduce.spark.aot import advice
        from millstream_runner.local.spark import PLAN, LocalSpark, driver_command

        spark = self._graph.pipeline.spec.spark
        if (spark is None or spark.remote is None) and (text := advice()):
            self._screen.message(text)
        address = f"unix:{files.enter_context(open_socket_directory()) / 'spark'}"
        command = driver_command(
            address, self._graph.pipeline, self._loaded.base_dir, self._directory.spark, self._options.log_level
        )
        return LocalSpark(address, command, Logs(self._directory.logs, PLAN, files), hooks)

    async def _have_ended(self, replica: ReplicaId) -> bool:
        assert self._view is not None, "vertices run while the broker can be read"
        marks = await self._view.marks(replica.vertex)
        lanes = self._graph.owned_lanes(replica.vertex, replica.number)
        return all(lane in marks and marks[lane].ended for lane in lanes)

    def _result(self, exit_code: int, failure: Failure | None, summary: Summary | None) -> RunResult:
        return RunResult(exit_code, failure, summary, self._directory.root, self._display.elapsed_s, self._had_ended)

    def _on_signal(self) -> None:
        """First signal: drain. Second: end everything at once."""
        if self._state in OVER:
            # The result is known. Only the broker and Spark still have to end, and they have limits of their own.
            return
        since_s = _CLOCK.monotonic_s() - self._signalled_s
        self._signalled_s += since_s
        if since_s < SAME_DECISION_S:
            return
        if self._state is State.STARTING and self._cancelled_with is None:
            # As after a drain, everything that was read is finished: nothing was.
            self._screen.message("stopping: nothing has been read yet (Ctrl-C again: stop at once)")
            audit.note_going(self._directory, self._screen.message, "drain")
            self._cancelled_with = 0
            self._task.cancel()
            return
        if not self._drain_asked.is_set() and self._state is State.RUNNING:
            self._screen.message(
                "draining: no new records are read; those in flight are finished (Ctrl-C again: stop at once)"
            )
            self._drain_asked.set()
            audit.note_going(self._directory, self._screen.message, "drain")
            return
        audit.note_going(self._directory, self._screen.message, "stop")
        self._cancelled_with = ABORTED
        self._task.cancel()
