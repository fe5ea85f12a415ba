"""Pipelines simulated: many seeds hold every invariant, a seed is repeated exactly, and what is broken is found.

`python benchmarks/simulation.py` runs as many seeds as one likes, and shows what happens in one.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from millstream.ledger import memory
from millstream.ledger.compression import decompressed, is_compressed
from millstream.ledger.packs import is_pack
from millstream.ledger.protocol import Commit
from millstream.ledger.subjects import lane_filter
from millstream.ledger.witness import ReadCheck
from millstream.record import SOURCE_INPUT
from millstream_vertex import trimming
from millstream_vertex.to_sink import ChainDeliverer
from millstream_writer.committer import Committer, Unit
from tests.simulation.faults import Fault
from tests.simulation.kept import Table
from tests.simulation.network import Weather
from tests.simulation.outside import BASE_US, Given, Split, Temper
from tests.simulation.set_back import with_set_backs
from tests.simulation.shapes import CHAINED, COPIED, KEPT, PACKED, SHAPES, SILENT, Shape
from tests.simulation.simulate import Outcome, simulate
from tests.simulation.world import World
from tests.support.sizes import ALL, sized

SEEDS = sized(3, 30)
"""Of each shape."""
LARGE_SEEDS = sized(3, 60)
"""Of each shape whose runs are long: a few of them take a dozen seconds of a processor."""
SHORT_SEEDS = sized(6, 60)
"""Of each shape whose runs are short, or in which what is looked for is rare."""
LOST_SEEDS = range(61) if ALL else (0, 1, 3, 8)
"""Of each shape that loses its logs: with these, a quick run notices each of the planted defects."""
REPOSITORY = Path(__file__).resolve().parents[2]


def found_in(outcome: Outcome, *options: str) -> str:
    """What to do about a violation."""
    command = ["python benchmarks/simulation.py", *options, f"--seed {outcome.seed} --trace"]
    return f"seed {outcome.seed}: {outcome.violation}\nsee: {' '.join(command)}"


@pytest.mark.guarantee("I1", "I2", "I3", "I4", "I5", "I6", "I8", "I9")
@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_whatever_happens_every_invariant_holds(shape: str) -> None:
    first = sorted(SHAPES).index(shape)
    outcomes = [simulate(first + n * len(SHAPES)) for n in range(SEEDS)]
    assert not [found_in(outcome) for outcome in outcomes if outcome.violation]
    assert {outcome.shape for outcome in outcomes} == {shape}
    # It was worth looking: there were faults, and work.
    assert sum(outcome.faults for outcome in outcomes) > SEEDS
    assert sum(outcome.commits for outcome in outcomes) > 10 * SEEDS


@pytest.mark.guarantee("I1", "I2", "I4", "I5", "I9")
@pytest.mark.parametrize("shape", sorted(CHAINED))
def test_chains_hold_every_invariant(shape: str) -> None:
    outcomes = [simulate(seed, shape=CHAINED[shape]) for seed in range(LARGE_SEEDS)]
    assert not [found_in(outcome, f"--shape {shape}") for outcome in outcomes if outcome.violation]
    assert sum(outcome.faults for outcome in outcomes) > LARGE_SEEDS
    assert sum(outcome.commits for outcome in outcomes) > 10 * LARGE_SEEDS


@pytest.mark.guarantee("I1", "I2", "I4", "I5", "I8", "I9")
@pytest.mark.parametrize("shape", sorted(COPIED))
def test_edges_that_share_copies_hold_every_invariant(shape: str) -> None:
    outcomes = [simulate(seed, shape=COPIED[shape]) for seed in range(LARGE_SEEDS)]
    assert not [found_in(outcome, f"--shape {shape}") for outcome in outcomes if outcome.violation]
    assert sum(outcome.faults for outcome in outcomes) > LARGE_SEEDS
    assert sum(outcome.commits for outcome in outcomes) > 10 * LARGE_SEEDS


@pytest.mark.guarantee("I1")
def test_a_copy_that_is_trimmed_behind_the_fastest_of_its_readers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trimming, "min", max, raising=False)
    violations = [simulate(seed, shape=COPIED["narrow-copies"]).violation for seed in range(SEEDS)]
    assert any("is trimmed through" in violation for violation in violations)


@pytest.mark.guarantee("I1", "I2", "I4", "I5", "I9")
@pytest.mark.parametrize("shape", sorted(KEPT))
def test_chains_to_a_target_and_targets_that_keep_positions_hold_every_invariant(shape: str) -> None:
    worlds: list[World] = []
    outcomes = [simulate(seed, shape=KEPT[shape], adjust=worlds.append) for seed in range(SHORT_SEEDS)]
    assert not [found_in(outcome, f"--shape {shape}") for outcome in outcomes if outcome.violation]
    assert sum(outcome.faults for outcome in outcomes) > SHORT_SEEDS
    fenced = sum(table.fenced for world in worlds for table in world.outside.tables.values())
    assert fenced > 0 or not KEPT[shape].keeps, "no older owner wrote to a target"


@pytest.mark.guarantee("I1", "I2", "I4", "I5", "I9")
@pytest.mark.parametrize(
    "shape", [pytest.param(one, marks=pytest.mark.sweep if one == "narrow-packs" else ()) for one in sorted(PACKED)]
)
def test_packs_hold_every_invariant(shape: str) -> None:
    worlds: list[World] = []
    outcomes = [simulate(seed, shape=PACKED[shape], adjust=worlds.append) for seed in range(SHORT_SEEDS)]
    assert not [found_in(outcome, f"--shape {shape}") for outcome in outcomes if outcome.violation]
    assert sum(outcome.faults for outcome in outcomes) > SHORT_SEEDS
    stored = [written.data for world in worlds for buffer in world.history.buffers.values() for written in buffer]
    assert sum(is_pack(decompressed(data)) for data in stored) > SHORT_SEEDS
    assert sum(is_compressed(data) for data in stored) > SHORT_SEEDS // 8
    # Owners were replaced in the middle of a pack.
    lanes = [lane for world in worlds for lane in world.history.lanes.values()]
    replaced = [
        any(after.epoch > before.epoch and after.record_index for before, after in pairwise(lane.marks.values()))
        for lane in lanes
    ]
    assert sum(replaced) > SHORT_SEEDS // 8


@pytest.mark.guarantee("I1", "I2", "I4", "I5", "I9")
@pytest.mark.parametrize("shape", sorted(SILENT))
def test_sources_that_fall_silent_hold_every_invariant(shape: str) -> None:
    worlds: list[World] = []
    seeds = (4 if shape.endswith("end") else 2) * SEEDS
    outcomes = [simulate(seed, shape=SILENT[shape], adjust=worlds.append) for seed in range(seeds)]
    assert not [found_in(outcome, f"--shape {shape}") for outcome in outcomes if outcome.violation]
    judges = [judge for world in worlds for judge in world.history.sources.values()]
    # Watermarks moved without records, and records came that were older than that.
    assert sum(judge.steps for judge in judges) > seeds
    assert sum(judge.passed for judge in judges) > seeds // 2


@pytest.mark.guarantee("I1", "I15")
def test_a_target_that_is_ahead_of_a_ledger_that_was_set_back_stops_the_lane() -> None:
    said: list[str] = []
    for shape in ("to-the-end", "straight"):
        outcomes = [simulate(seed, shape=KEPT[shape], adjust=with_set_backs) for seed in range(SEEDS)]
        assert not [found_in(outcome, f"--shape {shape}", "--set-back") for outcome in outcomes if outcome.violation]
        said += [outcome.noticed for outcome in outcomes if outcome.noticed]
    assert any("older than" in text for text in said)


@pytest.mark.guarantee("I1")
def test_a_target_that_takes_what_an_older_owner_writes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Table, "may_commit", lambda *_: True)
    violations = (simulate(seed, shape=KEPT["straight"]).violation for seed in range(100))
    assert any(violation.startswith(("I1", "I2")) for violation in violations)


@pytest.mark.guarantee("I5")
def test_a_chain_that_promises_what_it_has_not_committed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    # A lane is taken for quiet while its last delivery is on its way to the ledger.
    monkeypatch.setattr(ChainDeliverer, "is_empty", True)
    violations = (simulate(seed, shape=SILENT["silent-to-any-end"]).violation for seed in range(100))
    assert any("late records" in violation or "as if silent" in violation for violation in violations)


@pytest.mark.guarantee("I1", "I3", "I9")
@pytest.mark.parametrize("shape", sorted(shape.name for shape in SHAPES.values() if shape.loses_logs))
def test_logs_that_are_lost_are_made_anew_from_the_input(shape: str) -> None:
    lost = 0

    def adjust(world: World) -> None:
        nonlocal lost
        rng = random.Random(world.seed)
        times = [rng.random() * world.span_s * 1.3 for _ in range(rng.choice((1, 2, 4)))]
        lost += len(times)
        more = (Fault(at_s, "lost", rng.random(), 0.1) for at_s in times)
        world.follow(replace(world.plan, faults=tuple(sorted((*world.plan.faults, *more), key=lambda one: one.at_s))))

    first = sorted(SHAPES).index(shape)
    outcomes = [simulate(first + n * len(SHAPES), adjust=adjust) for n in LOST_SEEDS]
    assert not [found_in(outcome) for outcome in outcomes if outcome.violation]
    assert lost >= len(LOST_SEEDS)


@pytest.mark.guarantee("I1", "I15")
def test_a_ledger_that_is_set_back_and_refilled_is_noticed_before_a_record_is_used() -> None:
    outcomes: list[Outcome] = []
    lost: list[Outcome] = []
    # Whether a set-back removes anything is chance: further seeds are drawn until enough have.
    enough = sized(len(SHAPES) // 2, len(SHAPES))
    while len(outcomes) < 2 * enough or (len(lost) <= enough and len(outcomes) < 4 * enough):
        outcomes.append(simulate(len(outcomes), adjust=with_set_backs))
        lost = [outcome for outcome in outcomes if outcome.removed]
    assert not [found_in(outcome, "--set-back") for outcome in outcomes if outcome.violation]
    # Some were noticed, and in some nothing that was lost had been read.
    assert len(lost) > enough
    assert sum(bool(outcome.noticed) for outcome in lost) > 0


@pytest.mark.guarantee("I15")
def test_a_ledger_that_is_set_back_behind_the_end_of_its_last_writer_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commit, confirm = Committer.commit, Committer.confirm
    worlds: list[World] = []
    set_backs: list[Callable[[], None]] = []
    """One that puts a ledger back behind the commit with which its last lane ended."""

    async def commits(self: Committer, units: Sequence[Unit], *, ended: bool = False, **options: Any) -> None:
        world, lane = worlds[-1], self._lane
        if ended and lane.input == SOURCE_INPUT and not set_backs:
            others = [one for one in world.stages.lanes_of(lane.vertex) if one != lane]
            marks = [await self._ledger.mark(one) for one in others]
            if all(mark is not None and mark.mark.ended for mark in marks):
                restore, note = world.broker.save(lane.vertex), world.history.save(lane.vertex)

                def set_back() -> None:
                    restore()
                    world.network.set_backs += 1
                    note(published_too=False)

                set_backs.append(set_back)
        await commit(self, units, ended=ended, **options)

    def simulated(*, looks: bool) -> Outcome:
        async def confirms(self: Committer) -> None:
            # The end is published by now.
            while set_backs and self._lane.input == SOURCE_INPUT:
                set_backs.pop()()
                made.append(True)
            if looks:
                await confirm(self)

        made: list[bool] = []
        monkeypatch.setattr(Committer, "commit", commits)
        monkeypatch.setattr(Committer, "confirm", confirms)
        outcome = simulate(531, adjust=worlds.append)
        assert made
        return outcome

    assert not simulated(looks=True).violation
    # The end would be gone, and readers would wait for it.
    assert "has not ended" in simulated(looks=False).violation


@pytest.mark.guarantee("I5")
def test_owners_of_one_epoch_take_no_promise_back() -> None:
    # A ledger is set back below an owner that sleeps, and the next one gets the epoch of that.
    assert not simulate(196, adjust=with_set_backs).violation


@pytest.mark.guarantee("I9")
def test_a_chain_that_is_asked_to_stop_commits_what_its_sink_has_taken_when_it_is_due() -> None:
    # It waited for no time, again and again, until its source had been read.
    assert not simulate(51031, shape=KEPT["to-any-end"]).violation


@pytest.mark.guarantee("I9")
def test_frames_that_are_lost_before_they_are_read_are_not_waited_for() -> None:
    # A reader has heard of them, and lives on where their ledger is set back.
    assert not simulate(2985, adjust=with_set_backs).violation


@pytest.mark.guarantee("I9")
def test_a_network_that_loses_much_may_delay_the_end() -> None:
    # Small buffers, so that little is on its way at a time; of 13 requests, one costs five seconds.
    assert not simulate(300207).violation


def test_a_past_that_is_not_looked_at_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    # Readers compare sequences only. It takes a ledger and its OT store that are set back and refilled at the right
    # moment; where shapes or draws have changed, a later seed.
    monkeypatch.setattr(ReadCheck, "next", lambda *_: None)
    monkeypatch.setattr(ReadCheck, "stored", lambda *_: None)
    violations = (simulate(seed, adjust=with_set_backs).violation for seed in range(sized(150, 85), 385))
    assert any(violations)


@pytest.mark.parametrize("seed", [4, 25])
def test_a_seed_is_repeated_exactly(seed: int) -> None:
    first, again = simulate(seed, tracing=True), simulate(seed, tracing=True)
    assert first.steps > 100
    assert first == again


def test_a_seed_is_the_same_in_another_process() -> None:
    here = "\n".join(simulate(7, tracing=True).trace)
    command = [sys.executable, "benchmarks/simulation.py", "--seed", "7", "--trace"]
    for hash_seed in ("1", "2")[: sized(1, 2)]:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        there = subprocess.run(
            command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True, timeout=60
        )
        assert here in there.stdout


@pytest.mark.sweep
@pytest.mark.guarantee("I3", "I9")
def test_a_log_that_was_cut_between_hand_overs_is_gone_on_with() -> None:
    seed = sorted(SHAPES).index("sessions")
    when_s = 0.0

    def adjust(world: World) -> None:
        # Each window is handed over alone, and the process dies in the middle of a write.
        world.limits = replace(world.limits, hand_over_windows_max=1)
        world.follow(replace(world.plan, weather=Weather(), faults=(Fault(when_s, "disk", 0.0, 0.0),)))

    for step in range(40):
        when_s = step * 0.05
        outcome = simulate(seed + len(SHAPES) * step, adjust=adjust)
        assert not outcome.violation, f"at {when_s} s: {outcome.violation}"


@pytest.mark.guarantee("I9")
def test_a_reduce_that_died_before_it_told_how_far_it_had_read_tells_it_when_it_starts_again() -> None:
    first = sorted(SHAPES).index("narrow")

    def adjust(world: World) -> None:
        # While no answer gets through, the reduce dies; the map before it takes its buffer for full.
        away_s = 0.05 + 0.05 * (world.seed // len(SHAPES))
        faults = (Fault(away_s, "away", 0.0, 1.0), Fault(away_s + 0.9, "crash", 0.45, 0.0))
        world.follow(replace(world.plan, weather=Weather(), temper=Temper(), faults=faults))

    outcomes = [simulate(first + n * len(SHAPES), adjust=adjust) for n in range(0, 16, sized(3, 1))]
    assert not [found_in(outcome) for outcome in outcomes if outcome.violation]


@pytest.mark.guarantee("I1", "I5")
def test_nothing_is_promised_on_the_strength_of_records_that_are_not_durable() -> None:
    seed = sorted(SHAPES).index("sessions")
    crash_s = 0.0

    def adjust(world: World) -> None:
        # One record is on its way to the log when those come that make one long session with it, and the end. Their
        # write is lost: each is read again, and the first of them is a session of its own that ends early.
        times_s = (0.3, -0.05, 0.08, 0.2)
        records = [
            Given(b"a.0#%d" % number, "ada", BASE_US + round(time_s * 1e6), "", 5.0 if number == 0 else 5.02)
            for number, time_s in enumerate(times_s)
        ]
        world.outside.splits["a", 0] = Split(records, gives_ids=False)
        world.outside.splits["a", 1] = Split([], gives_ids=False)
        faults = (Fault(crash_s, "crash", 0.34, 0.0),)
        world.follow(replace(world.plan, weather=Weather(slow=0.0), temper=Temper(), thread_s=0.2, faults=faults))

    for step in range(0, 60, sized(3, 1)):
        crash_s = 5.03 + 0.01 * step
        outcome = simulate(seed + len(SHAPES) * step, adjust=adjust)
        assert not outcome.violation, f"crash at {crash_s:.2f} s: {outcome.violation}"


def test_an_owner_that_is_not_fenced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    fenced = memory.MemoryLedger._attempt

    def lets_everybody(self: memory.MemoryLedger, commit: Commit, *rest: object) -> int | None:
        subject = lane_filter(self._id, commit.lane)
        stored = self._stream.last_of(subject)
        landed = bool(stored) and self._stream.mark(subject).commit_id
        if landed != commit.mark.commit_id:
            commit = replace(commit, after=stored, replaces=b"")
        return fenced(self, commit, *rest)  # type: ignore[arg-type]  # passed on as it came

    def haunted(world: World) -> None:
        zombies = tuple(Fault(0.2 * n, "zombie", n * 0.37 % 1, 0.1) for n in range(1, 8))
        world.follow(replace(world.plan, faults=zombies))

    def found(seeds: int, shape: Shape | None = None) -> Iterator[str]:
        outcomes = (simulate(seed, adjust=haunted, shape=shape) for seed in range(seeds))
        return (outcome.violation for outcome in outcomes if outcome.violation)

    assert not [*found(12)]
    monkeypatch.setattr(memory.MemoryLedger, "_attempt", lets_everybody)
    for shape in (None, *CHAINED.values()):
        # Whether an owner that is not fenced commits anything is chance: the first seed that shows it is enough.
        assert any("after epoch" in violation for violation in found(100, shape)), shape
