"""One run of one seed: a pipeline whose processes, broker, disks and outside world are all inside this process.

    seed ─► shape, records, weather, faults ─► processes over the shared broker ─► they end ─► `model` judges

A process is the vertex's own assembly (`millstream_worker.assembly`) over environment made here: all of reader, lanes,
writer, queue and log runs as shipped. A supervisor starts again what ends, as the runner does.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass, replace
from pathlib import Path

from millstream.background import open_tasks
from millstream.errors import DamageError, FencedError, InfrastructureError, RetryLaterError
from millstream.ledger.compression import COMPRESSED_BYTES_MIN
from millstream.ledger.memory import Faults, MemoryBroker
from millstream.ledger.protocol import Commit, DurabilityLevel
from millstream.nats.access import BrokerAccess
from millstream.record import SOURCE_INPUT
from millstream.watermark.memory import OtMemory
from millstream_reduce.lane import units
from millstream_reduce.queue import QueueLimits
from millstream_worker.assembly import VertexProcess, open_vertex
from millstream_worker.environment import Outside as ReplicaOutside
from millstream_worker.environment import VertexConfig
from millstream_worker.trimmers import open_trimmers
from millstream_worker.watches import open_watches
from millstream_writer import committer
from tests.simulation import model
from tests.simulation.disk import Died, Disk, SimFiles
from tests.simulation.faults import (
    ALL_LOG_FAULTS,
    LOG_FAULTS,
    OUTSIDE_FAULTS,
    PROCESS_FAULTS,
    Fault,
    Plan,
    draw,
    with_outside,
)
from tests.simulation.history import History, Noticed, Violation
from tests.simulation.jobs import SimEngine
from tests.simulation.kept import Losses, Way
from tests.simulation.loop import CURRENT, Process, SimLoop, StuckError
from tests.simulation.network import Link, Network, SimBroker, SimOtStores
from tests.simulation.outside import BASE_US, Outside, SimPrograms
from tests.simulation.set_back import set_back
from tests.simulation.shapes import Shape, given, resolved_of
from tests.simulation.silence import SourceJudge, policy

STEPS_MAX = 400_000
DRAIN_S = 90.0
"""I9: after the last record and the last fault, everything has ended within this."""
CALM_S = 60.0
"""If the network loses anything all that time, it has ended so much later, with a network that loses nothing."""
RESTART_S = 0.2


class SimClock:
    """The loop's time, for those who ask for a clock."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def now_us(self) -> int:
        return BASE_US + round(self._loop.time() * 1e6)

    def monotonic_s(self) -> float:
        return self._loop.time()


@dataclass(eq=False, slots=True)
class Incarnation:
    """One life of one replica of a vertex."""

    vertex: str
    replica: int
    number: int
    process: Process
    context: Context
    link: Link
    over: asyncio.Event
    running: VertexProcess | None = None
    error: BaseException | None = None
    replaced: bool = False
    """A successor has been started."""
    disk_steps: int | None = None
    """After so many operations on its disk it is gone; None: not because of that."""
    disk_breaks: bool = False
    """The next fsync fails."""
    has_broken: bool = False
    """One has failed."""
    no_room: bool = False
    """The disk is full."""

    def __str__(self) -> str:
        return f"{self.vertex}-{self.replica}#{self.number}"


@dataclass(frozen=True, slots=True)
class SimEnvironment(ReplicaOutside):
    """The environment of one incarnation."""

    world: World
    life: Incarnation

    @asynccontextmanager
    async def engine(self, address: str) -> AsyncIterator[SimEngine]:
        outside = self.world.outside
        yield SimEngine(self.rng, outside.pause_s, outside.temper.failing)

    def files(self) -> SimFiles:
        return SimFiles(self.world.disk, lambda step: self.world.before_disk(self.life, step))

    def queue_limits(self, log_bytes_max: int | None, segment_bytes: int) -> QueueLimits:
        return self.world.limits


class World:
    """Made for one run."""

    def __init__(self, seed: int, shape: Shape, directory: Path, *, tracing: bool) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.shape = shape
        self.directory = directory
        # Drawn apart, so that other seeds stay what they are.
        silences = random.Random(seed)
        self.resolved = resolved_of(shape.name, json.dumps(policy(silences)) if shape.silent else "")
        self.graph = self.resolved.graph
        self.stages = self.resolved.plan
        """In which a chain is one vertex."""
        self.frame_records = random.Random(seed).choice((1, 3, 3 if shape.crowds else committer.JOINED_RECORDS_MAX))
        """Records up to which a commit joins frames. Those that it does not join are packs."""
        self.compressed_bytes_min = random.Random(seed).choice((1, 1, COMPRESSED_BYTES_MIN))
        """Bytes from which a frame or pack is compressed."""
        self.span_s = self.rng.choice((0.5, 2.0, 6.0))
        if shape.silent:
            self.span_s = max(2.0, self.span_s)
        reduces = {vertex.name for vertex in self.stages.vertices if vertex.kind == "reduce"}
        self.plan = draw(self.rng, self.span_s, ALL_LOG_FAULTS if shape.loses_logs else LOG_FAULTS if reduces else ())
        self.reduces = reduces
        self.disk = Disk()
        self.limits = QueueLimits(
            log_bytes_max=4 << 20,
            segment_bytes=self.rng.choice((1500, 6000, 1 << 20)),
            hand_over_windows_max=self.rng.choice((1, 3, 10_000)),
            hand_over_bytes_max=self.rng.choice((500, 1 << 20)),
        )
        self.unit_rows = self.rng.choice((1, 2, units.UNIT_ROWS))
        """Results in one commit."""
        if shape.loses_logs:
            # In the middle of what is committed in parts, the loss of a log is refused.
            self.limits = QueueLimits(log_bytes_max=4 << 20, segment_bytes=self.limits.segment_bytes)
            self.unit_rows = units.UNIT_ROWS
        self.loop = SimLoop(self.rng, self._thread_delay_s)  # type: ignore[abstract]  # what is not asked for is left out
        self.clock = SimClock(self.loop)
        self.history = History(self.loop.time, self.clock.now_us, tracing=tracing)
        self.outside = Outside(self.rng, self.plan.temper, self.loop.time)
        self.world = Process("world")
        self.ledger_faults = Faults()
        self.broker = MemoryBroker(shape.name, DurabilityLevel.MEMORY, self.ledger_faults, self.clock)
        self.ot = OtMemory()
        self.lives: list[Incarnation] = []
        self.current: dict[tuple[str, int], Incarnation] = {}
        self.fenced_by_fault = False
        self.setting_back = False
        """A ledger will be set back to what it is now, or was a while ago."""
        self._supervising: asyncio.TaskGroup | None = None
        self._supervisors: dict[tuple[str, int], asyncio.Task[None]] = {}
        self.noticed = ""
        """What a process said of a ledger that was set back; the run has ended there."""
        context = copy_context()
        context.run(CURRENT.set, self.world)
        self.network = Network(self.rng, self.plan.weather, context)
        self._context = context
        for lane in self.stages.all_lanes():
            for buffer in self.stages.inputs_of(lane):
                self.history.readers[buffer] = (lane.vertex, lane.key)
        self.outside.splits.update(given(self.rng, self.graph, shape, self.span_s))
        for chain in self.graph.chains:
            # A function gives other outputs at each attempt, and a target without positions may get those of several.
            self.outside.targets[chain[-1]].delivered_again = True
        if shape.crowds:
            self._ambushes = random.Random(seed)
            self._ambushes_left = self._ambushes.choice((0, 2, 4))
            self.history.on_commit = self._may_ambush
        if shape.silent and not shape.keeps:
            self.plan = with_outside(silences, self.plan, self.span_s, OUTSIDE_FAULTS[1:])
        if shape.keeps:
            rng = random.Random(seed)
            self.outside.way = Way(rng, Losses.drawn(rng), self.outside.pause_s, context)
            self.plan = with_outside(rng, self.plan, self.span_s)

    def _judge_sources(self) -> None:
        """Have what the lanes of sources promise judged by what their splits give."""
        watermark = self.resolved.pipeline.spec.watermark
        for lane in self.stages.all_lanes():
            if lane.input == SOURCE_INPUT:
                self.history.sources[lane.vertex, lane.key] = SourceJudge(
                    str(lane),
                    self.outside.splits[lane.vertex, lane.partition].records,
                    round(watermark.max_delay_s * 1e6),
                    watermark.idle_source is not None,
                    lambda: self.outside.away_since_s,
                )

    def follow(self, plan: Plan) -> None:
        """Have something else go wrong than what was drawn."""
        self.plan = plan
        self.network.weather = plan.weather
        self.outside.temper = plan.temper

    def _thread_delay_s(self) -> float:
        return self.plan.thread_s * 2 * self.rng.random()

    # Processes

    def live_again(self, vertex: str) -> None:
        """Have the replicas of a vertex supervised, those that had ended too."""
        assert self._supervising is not None
        for replica in range(self.stages.vertex(vertex).replicas):
            before = self._supervisors.get((vertex, replica))
            if before is None or before.done():
                self._supervisors[vertex, replica] = self._supervising.create_task(self._live(vertex, replica))

    async def _live(self, vertex: str, replica: int) -> None:
        """The supervisor of one replica."""
        number = 0
        while True:
            number += 1
            life = self._start(vertex, replica, number)
            await life.over.wait()
            if life.process.dead or life.replaced:
                self.history.say(f"{life} is gone")
            elif life.error is not None:
                self._judge_end(life)
                self.history.say(f"{life} ended: {life.error!r}")
            elif life.running is not None and self._has_ended(vertex, replica):
                self.history.say(f"{life} has ended")
                return
            else:
                self.history.say(f"{life} has stopped")
            await asyncio.sleep(RESTART_S * (0.5 + self.rng.random()))

    def _has_ended(self, vertex: str, replica: int) -> bool:
        lanes = [lane for lane in self.stages.all_lanes() if lane.vertex == vertex]
        replicas = self.stages.vertex(vertex).replicas
        own = [lane for lane in lanes if lane.partition % replicas == replica]
        return all(self.history.lanes[vertex, lane.key].ended for lane in own)

    def has_no_readers_left(self, vertex: str) -> bool:
        """All lanes that read what the vertex writes have ended."""
        readers = {edge.to for edge in self.stages.edges_out[vertex]}
        return bool(readers) and all(
            self.history.lanes[reader, lane.key].ended
            for reader in readers
            for lane in self.stages.all_lanes()
            if lane.vertex == reader
        )

    def _start(self, vertex: str, replica: int, number: int) -> Incarnation:
        process = Process(f"{vertex}-{replica}#{number}")
        context = self._context.copy()
        context.run(CURRENT.set, process)
        life = Incarnation(vertex, replica, number, process, context, Link(self.network, self.rng), asyncio.Event())
        self.lives.append(life)
        self.current[vertex, replica] = life
        self.history.say(f"{life} starts")
        task = self.loop.create_task(self._run_vertex(life), name=str(life), context=context)
        task.add_done_callback(lambda done: self._ended(life, done), context=self._context)
        return life

    def _ended(self, life: Incarnation, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            life.error = task.exception()
            if life.replaced and life.error is not None:
                self._judge_end(life)
                self.history.say(f"{life} has woken up and ended: {life.error!r}")
        life.over.set()

    async def _run_vertex(self, life: Incarnation) -> None:
        config = VertexConfig(
            resolved=self.resolved,
            vertex=life.vertex,
            replica=life.replica,
            broker=BrokerAccess(""),
            durability=DurabilityLevel.MEMORY,
            windows_dir=self.directory,
            spark="simulated",
        )

        @asynccontextmanager
        async def environment(config: VertexConfig) -> AsyncIterator[SimEnvironment]:
            async with AsyncExitStack() as stack:
                tasks = await stack.enter_async_context(open_tasks())
                stores = SimOtStores(self.ot, self.shape.name, tasks, life.link, self.history)
                stack.callback(stores.close)
                watches = await stack.enter_async_context(open_watches(stores))
                broker = SimBroker(self.broker, life.link, self.history)
                trimmers = await stack.enter_async_context(open_trimmers(broker))
                programs = {
                    vertex: SimPrograms(self.outside, vertex, self.shape.behaviours.get(vertex, ""))
                    for vertex in self.graph.chain(life.vertex)
                }
                yield SimEnvironment(
                    broker,
                    stores,
                    watches,
                    trimmers,
                    programs,
                    rng=self.rng,
                    buffer_trouble=lambda: None,
                    world=self,
                    life=life,
                )

        async with open_vertex(config, self.clock, environment=environment) as running:
            life.running = running
            await running.run()

    def _judge_end(self, life: Incarnation) -> None:
        """Whether a process may end like that."""
        for error in leaves(life.error):
            if isinstance(error, FencedError) and self._may_be_fenced(life):
                continue
            if isinstance(error, DamageError) and self.history.removed:
                raise Noticed(str(error)) from error
            if isinstance(error, InfrastructureError) and life.has_broken:
                continue
            if isinstance(error, RetryLaterError):
                # The runner starts it again.
                continue
            if isinstance(error, Violation):
                raise error
            raise Violation(f"{life} ends with {error!r}") from error

    def _may_be_fenced(self, life: Incarnation) -> bool:
        """Whether an owner may hear that it was replaced."""
        # 1. It was, or a fault says so.
        if life.replaced or self.fenced_by_fault or self.history.removed:
            return True
        # 2. A process that woke up while it was opening takes the lane over again: it need not know of its successor.
        if any(other.replaced and (other.vertex, other.replica) == (life.vertex, life.replica) for other in self.lives):
            return True
        # 3. A commit was refused for lack of space and rebuilt, and another copy of the first came late and found room.
        # It has landed, once; the lane begins again behind it.
        weather = self.plan.weather
        return weather.overtaken + weather.repeated > 0 and any(fault.kind == "full" for fault in self.plan.faults)

    # Faults

    async def _misbehave(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for fault in self.plan.faults:
                await asyncio.sleep(max(0.0, fault.at_s - self.loop.time()))
                # Some last for a while, and others may happen in the middle of them.
                tasks.create_task(self._do(fault))

    async def _do(self, fault: Fault) -> None:
        victims = [life for life in self.current.values() if not life.over.is_set() and not life.replaced]
        if fault.kind in PROCESS_FAULTS:
            if not victims:
                return
            life = victims[int(fault.victim * len(victims))]
            self.history.say(f"FAULT {fault.kind} of {life} for {fault.length_s:.3f} s")
            await getattr(self, f"_{fault.kind}")(life, fault)
            return
        if fault.kind in ALL_LOG_FAULTS:
            victims = [life for life in victims if life.vertex in self.reduces]
            if victims:
                life = victims[int(fault.victim * len(victims))]
                self.history.say(f"FAULT {fault.kind} of {life} for {fault.length_s:.3f} s")
                await self._on_log(life, fault)
            return
        self.history.say(f"FAULT {fault.kind} for {fault.length_s:.3f} s")
        await getattr(self, f"_{fault.kind.replace('-', '_')}")(fault)

    async def _crash(self, life: Incarnation, fault: Fault) -> None:
        self.loop.kill(life.process)
        life.over.set()

    def _may_ambush(self, commit: Commit) -> None:
        """Now and then who is in the middle of a pack has a successor soon."""
        if not commit.mark.record_index or not self._ambushes_left or self._ambushes.random() < 0.6:
            return
        self._ambushes_left -= 1
        lane = commit.lane
        life = self.current[lane.vertex, lane.partition % self.stages.vertex(lane.vertex).replicas]
        self.loop.call_later(0.01 * self._ambushes.random(), self._ambush, life, context=self._context)

    def _ambush(self, life: Incarnation) -> None:
        if life.over.is_set():
            return
        if wakes_up := self._ambushes.random() < 0.5:
            self.loop.pause(life.process)
            life.replaced = True
            self._after(RESTART_S + self._ambushes.random(), life, "wakes up")
        else:
            self.loop.kill(life.process)
        self.history.say(f"{life} is {'paused' if wakes_up else 'killed'} in the middle of a pack")
        life.over.set()

    async def _zombie(self, life: Incarnation, fault: Fault) -> None:
        self.loop.pause(life.process)
        life.replaced = True
        life.over.set()
        self._after(RESTART_S + fault.length_s, life, "wakes up")

    async def _pause(self, life: Incarnation, fault: Fault) -> None:
        self.loop.pause(life.process)
        self._after(fault.length_s, life, "goes on")

    async def _hung(self, life: Incarnation, fault: Fault) -> None:
        self.loop.pause(life.process)
        await asyncio.sleep(fault.length_s)
        if not life.over.is_set():
            await self._crash(life, fault)

    def _after(self, delay_s: float, life: Incarnation, what: str) -> None:
        def resume() -> None:
            if not life.process.dead:
                self.history.say(f"{life} {what}")
                self.loop.resume(life.process)

        self.loop.call_later(delay_s, resume)

    async def _cut(self, life: Incarnation, fault: Fault) -> None:
        life.link.cut()
        self.loop.call_later(fault.length_s * 3, life.link.mend)

    async def _stop(self, life: Incarnation, fault: Fault) -> None:
        if life.running is not None:
            # Its own steps do it, as those of a signal handler.
            self.loop.call_soon(life.running.stop, context=life.context)

    async def _full(self, fault: Fault) -> None:
        vertex = self.rng.choice(self.stages.vertices).name
        for _ in range(1 + int(fault.length_s)):
            self.rng.choice((self.ledger_faults.refuse_full, self.ledger_faults.refuse_storage))(vertex=vertex)

    async def _fence(self, fault: Fault) -> None:
        self.fenced_by_fault = True
        self.ledger_faults.fence()

    async def _away(self, fault: Fault) -> None:
        self.ot.stop()
        await asyncio.sleep(fault.length_s)
        self.ot.start()

    async def _slow(self, fault: Fault) -> None:
        victims = [life for life in self.current.values() if not life.over.is_set() and not life.replaced]
        if victims:
            await self._crash(victims[int(fault.victim * len(victims))], fault)
        self.network.is_slow = True
        await asyncio.sleep(RESTART_S + fault.length_s)
        self.network.is_slow = False

    async def _set_back(self, fault: Fault) -> None:
        await set_back(self, fault.length_s)

    async def _target_away(self, fault: Fault) -> None:
        way = self.outside.way
        assert way is not None, "the fault is drawn only where targets keep positions"
        way.is_away = True
        await asyncio.sleep(fault.length_s)
        way.is_away = False

    async def _source_away(self, fault: Fault) -> None:
        self.outside.away_since_s = self.loop.time()
        await asyncio.sleep(fault.length_s)
        self.outside.away_since_s = None

    async def _held(self, fault: Fault) -> None:
        self.ot.hold_updates()
        await asyncio.sleep(fault.length_s)
        self.ot.release_updates()

    async def _on_log(self, life: Incarnation, fault: Fault) -> None:
        match fault.kind:
            case "disk":
                life.disk_steps = self.rng.randrange(12)
            case "broken":
                life.disk_breaks = True
            case "no-room":
                life.no_room = True
                await asyncio.sleep(fault.length_s)
                life.no_room = False
            case "power" | "lost":
                # Any other process that has the log open runs on the same machine.
                for other in self.lives:
                    if other.vertex == life.vertex and (other.replaced or not other.over.is_set()):
                        await self._crash(other, fault)
                if fault.kind == "power":
                    self.disk.lose_power(self.directory / life.vertex, self.rng)
                else:
                    self.disk.lose(self.directory / life.vertex)

    def before_disk(self, life: Incarnation, step: str) -> None:
        """A process is about to do something to its disk."""
        if life.process.dead:
            raise Died
        self.history.say(f"{life} {step}")
        if life.disk_steps is not None:
            life.disk_steps -= 1
            if life.disk_steps < 0:
                self.history.say(f"{life} dies before that")
                self.loop.kill(life.process)
                life.over.set()
                raise Died
        if life.disk_breaks and step == "sync":
            life.disk_breaks, life.has_broken = False, True
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if life.no_room and step in ("write", "create", "reserve", "publish"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    # The run

    def _calm(self, limit: asyncio.Timeout) -> None:
        """The time is over, unless the network loses what is sent, which costs a sender the time until its limit."""
        weather = self.network.weather
        calm = replace(weather, lost_requests=0.0, lost_answers=0.0, overtaken=0.0)
        self.network.weather = calm
        limit.reschedule(self.loop.time() + (CALM_S if weather.lost_requests or weather.lost_answers else 0.0))

    async def _main(self) -> None:
        last_s = max([self.span_s, *(fault.at_s + 3 * fault.length_s for fault in self.plan.faults)])
        try:
            async with asyncio.timeout(None) as limit:
                calming = self.loop.call_at(last_s + DRAIN_S, self._calm, limit)
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._misbehave())
                    self._supervising = tasks
                    for vertex in self.stages.vertices:
                        self.live_again(vertex.name)
                calming.cancel()
        except TimeoutError:
            raise Violation(f"I9: not drained {self.loop.time() - last_s:.0f} s after the last fault") from None
        # Zombies go on, to see that they cannot do harm.
        for life in self.lives:
            if life.replaced and not life.process.dead:
                self.loop.resume(life.process)
        await asyncio.sleep(30.0)

    def run(self) -> None:
        """Raises `Violation`."""
        # Only now: a test may have given the sources other records.
        self._judge_sources()
        try:
            self.loop.run(self._main(), self.world, steps_max=STEPS_MAX)
        except StuckError as error:
            raise Violation(f"I9: {error}") from error
        except Noticed as error:
            self.noticed = str(error)
            return
        except BaseExceptionGroup as group:
            errors = leaves(group)
            noticed = [str(error) for error in errors if isinstance(error, Noticed)]
            if not noticed or any(isinstance(error, Violation) for error in errors):
                raise next(error for error in errors if not isinstance(error, Noticed)) from group
            self.noticed = noticed[0]
            return
        model.judge(self)

    def close(self) -> None:
        """Let go of what dead processes hold."""
        self.loop.bury([*(life.process for life in self.lives), self.world])


def leaves(error: BaseException | None) -> list[BaseException]:
    """The single errors of a group."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error] if error is not None else []
