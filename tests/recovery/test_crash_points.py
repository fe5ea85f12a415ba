"""Pipelines are killed before and after every durable step, and again in the recovery: the outputs are always the same.

The points come from the code (`tools/durable_steps.py`); one that no pipeline here reaches has its reason below.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import pytest

from millstream.sandbox import refusal
from tests.recovery import crash_plan
from tests.recovery.crash_pipelines import SWEPT
from tests.recovery.crash_runs import Outcome, open_crash_runs
from tests.small_disk import give_up
from tests.spark_driver import SparkDriver
from tests.support import sizes
from tests.support.children import together
from tests.support.sizes import sized
from tools import durable_steps

SEED = 20
PAIRS = 40
AGAIN = 5
"""Points of each pipeline that others have come to as well."""
AGAIN_JOINED = 20
"""The same where two vertices meet."""
SOME = 1
"""Points of each pipeline, where not every one is tried."""
SOME_OF = tuple(name for name in SWEPT if not name.startswith("lost_"))[:: sized(4, 1)]
"""The pipelines that are tried there: one of those that lose their logs."""
ROUNDS = 3
"""Kills one after another, at most, until a point is reached that only comes after kills."""

UNREACHED = {
    "broker.adopt": "one rename in the store of an earlier version: tests/mesh/test_run_pipelines.py",
    "data": "of the runner, not of a vertex: tests/recovery/test_runner_crashes.py",
    "outputs": "of the runner, not of a vertex: tests/unit/local/test_outputs.py",
    "ledger.delete": "a pipeline that is started over: tests/recovery/test_runner_crashes.py",
    "ledger.leave": "of the runner and of replays: tests/mesh/test_run_changes.py and test_deadletters.py",
    "watermark.delete": "a pipeline that is started over: tests/recovery/test_runner_crashes.py",
    "kafka_sink": "needs a broker of Kafka: tests/contract/with_kafka/test_sink.py",
    "file_sink.discard": "a lane that fails with a file unfinished: tests/contract/sinks/test_file_directory.py",
    "file_sink.withdraw": "a run that is refused: tests/contract/sinks/test_file_directory.py",
    "repair": "a command between two runs, which may be repeated at any point: tests/mesh/test_repair.py",
    "watermark.forget": "a command between two runs: tests/mesh/test_watermark.py",
    "format.register": "needs a schema registry: tests/recovery/test_format_kills.py",
    "redis": "of the other technology: see below",
    "bigquery_sink": "tests/recovery/test_bigquery_kills.py, with a stand-in",
    "delta_sink": "tests/recovery/test_table_kills.py, with a table of its own",
    "iceberg_sink": "tests/recovery/test_table_kills.py, with a table of its own",
    "object_sink": "tests/recovery/test_object_kills.py, with a server of its own",
    "opensearch_sink": "tests/recovery/test_opensearch_kills.py, with a server",
    "pulsar_sink": "tests/contract/with_pulsar/test_sink.py, with a server",
    "redis_sink": "tests/recovery/test_redis_kills.py, with a server of its own",
    "postgres_sink": "tests/recovery/test_postgres_kills.py, with a server of its own",
    "sql_sink": "needs a database: tests/contract/sinks/test_sql.py and test_sql_mariadb.py",
    "udsink": "a function that keeps positions: tests/recovery/test_position_sink_kills.py",
    "log.reserve.give_up": "a full disk: tests/unit/reduce/log/test_faults.py",
    "log.segment.abandon": "a failed write: tests/unit/reduce/log/test_faults.py",
    "store": "of what functions remember, with a test of its own: tests/unit/vertex/keyed/test_images.py",
    "result.abandon": "a failed write: tests/unit/reduce/test_queue.py",
}
"""Steps, or groups of them, that no pipeline here comes to, with the reason."""


def report(outcomes: Sequence[Outcome]) -> str:
    return "\n\n".join(str(outcome) for outcome in outcomes if outcome.failed)


def missed(outcomes: Sequence[Outcome], point: str) -> bool:
    return any(point in outcome.missed for outcome in outcomes)


def recoveries_of(outcomes: Sequence[Outcome]) -> list[tuple[Sequence[str], crash_plan.Reached]]:
    return [(outcome.points, outcome.reached) for outcome in outcomes]


@pytest.mark.timeout(900)
@pytest.mark.guarantee("I1", "I2", "I3", "I6", "I8", "I9")
async def test_killed_at_some_durable_steps_the_outputs_are_the_same(tmp_path: Path, spark: SparkDriver) -> None:
    rng = random.Random(SEED)
    async with open_crash_runs(tmp_path, spark=spark.address) as runs:
        for pipeline in SOME_OF:
            whole = await runs.case(pipeline)
            assert not whole.failed, whole
            places = crash_plan.one_of_each(whole.reached, rng)
            points = rng.sample(sorted(places.values()), SOME)
            outcomes = await together(*(runs.case(pipeline, point) for point in points))
            assert not report(outcomes), report(outcomes)


@pytest.mark.sweep
@pytest.mark.timeout(1800)
@pytest.mark.guarantee("I1", "I2", "I3", "I6", "I8", "I9")
async def test_killed_at_every_durable_step_the_outputs_are_the_same(
    tmp_path: Path, spark: SparkDriver, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(SEED)
    tried: set[tuple[str, str]] = set()
    killed: set[str] = set()
    everything: list[tuple[str, tuple[str, ...]]] = []
    singles = doubles = 0
    async with open_crash_runs(tmp_path, spark=spark.address) as runs:
        for pipeline in SWEPT:
            whole = await runs.case(pipeline)
            assert not whole.failed, whole
            places = crash_plan.one_of_each(whole.reached, rng)
            known = sorted(places.keys() & tried)
            again = set(rng.sample(known, min(AGAIN_JOINED if "joined" in pipeline else AGAIN, len(known))))
            points = [text for place, text in places.items() if place in again or place not in tried]
            outcomes = await together(*(runs.case(pipeline, point) for point in points))
            assert not report(outcomes), report(outcomes)
            singles += len(points)
            everything += [(pipeline, pair) for pair in crash_plan.pairs(recoveries_of(outcomes))]
            # A run does not come to every point as often as the one before it: those are tried again.
            tried |= {place for place, text in places.items() if not missed(outcomes, text)}
            last = outcomes
            for _ in range(ROUNDS):
                later = crash_plan.only_after_a_kill(tried, recoveries_of(last))
                last = await together(*(runs.case(pipeline, *points) for points in later.values()))
                assert not report(last), report(last)
                outcomes += last
                tried |= {place for place, points in later.items() if not missed(last, points[-1])}
                doubles += len(later)
            killed |= {point for outcome in outcomes for point in outcome.points if point not in outcome.missed}
        sample = rng.sample(everything, PAIRS)
        outcomes = await together(*(runs.case(name, *pair) for name, pair in sample))
        assert not report(outcomes), report(outcomes)
    names = crash_plan.names_of(killed)
    steps = {step.name for step in durable_steps.steps()}
    with capsys.disabled():
        sys.stdout.write(
            f"\n{len(steps)} durable steps, {2 * len(steps)} points: killed at {len(names)} in {singles} places, "
            f"in {doubles} more after another kill, and at {len(sample)} of {len(everything)} pairs\n"
        )
    every = {f"{step}:{side}" for step in steps for side in ("before", "after")}
    excused = {point for point in every for name in UNREACHED if point.startswith((f"{name}:", f"{name}."))}
    assert every - names - excused == set()
    assert names & excused == set()


HANDED_OVER = (
    "reduce.compute:before@sum",
    "reduce.compute:after@sum",
    "file_sink.begin:before@out",
    "file_sink.name:after@out",
)
"""At each of them the first two windows are handed over."""


@pytest.mark.sweep
@pytest.mark.timeout(900)
@pytest.mark.guarantee("I1", "I2", "I3")
async def test_what_comes_before_the_retry_of_a_hand_over_does_not_change_it(
    tmp_path: Path, spark: SparkDriver
) -> None:
    async with open_crash_runs(tmp_path, spark=spark.address) as runs:
        outcomes = await together(*(runs.case("frozen", point) for point in HANDED_OVER[: sized(2, 4)]))
    assert not report(outcomes), report(outcomes)
    assert not [point for outcome in outcomes for point in outcome.missed]


@pytest.mark.timeout(900)
@pytest.mark.guarantee("I1", "I2", "I3")
@pytest.mark.sweep
async def test_of_owners_that_hand_the_same_windows_over_at_once_one_has_an_effect(
    tmp_path: Path, spark: SparkDriver
) -> None:
    points = ("reduce.compute:after@sum", "reduce.compute:before@sum", "log.entries.sync:before@sum")
    async with open_crash_runs(tmp_path, spark=spark.address) as runs:
        found = await together(*(runs.zombies("windows", point) for point in points[: sized(1, 3)]))
    assert not report([last for _, last in found]), report([last for _, last in found])
    assert all("FencedError" in before for befores, _ in found for before in befores)


DELIVERIES = (
    "chain.prepare:before#2@out",
    "chain.prepare:after#2@out",
    "sink.write:after#2",
    "file_sink.name:before#2@out",
    "file_sink.name:after#2@out",
    "chain.commit:before#2@out",
    "chain.commit:after#2@out",
    "chain.commit:before@columns",
)
"""Around the deliveries of chains that end in sinks."""


@pytest.mark.timeout(900)
@pytest.mark.guarantee("I1", "I2", "I9")
async def test_killed_around_a_delivery_the_target_decides_whether_it_counts(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    async with open_crash_runs(tmp_path, spark=None) as runs:
        points = DELIVERIES[-sized(1, len(DELIVERIES)) :]
        outcomes = await together(*(runs.case("unbuffered", point) for point in points))
        assert not report(outcomes), report(outcomes)
        assert not [point for outcome in outcomes for point in outcome.missed]
        pairs = [(first, later) for first in DELIVERIES for later in DELIVERIES]
        twice = rng.sample(pairs, sized(0, len(pairs)))
        again = await together(*(runs.case("unbuffered", *pair) for pair in twice))
        assert not report(again), report(again)


@pytest.mark.sweep
@pytest.mark.timeout(900)
@pytest.mark.guarantee("I1", "I2")
async def test_of_owners_that_make_the_same_delivery_one_has_an_effect(tmp_path: Path) -> None:
    points = (
        "chain.prepare:after@out",
        "file_sink.name:before@out",
        "chain.prepare:before@out",
        "chain.commit:before@out",
    )
    async with open_crash_runs(tmp_path, spark=None) as runs:
        found = await together(*(runs.zombies("unbuffered", point) for point in points[: sized(1, 4)]))
    assert not report([last for _, last in found]), report([last for _, last in found])
    assert all("FencedError" in before for befores, _ in found for before in befores)


REMEMBERED = (
    "ledger.commit:before#2@remember",
    "ledger.commit:after#2@remember",
    "ledger.commit:after#4@remember",
    "ledger.stage:before#3",
    "ledger.trim:before@remember",
    "ledger.trim:after@remember",
    "ledger.take_over:before@remember",
    "ledger.take_over:after@remember",
    "watermark.publish:before#2@remember",
)
"""Around the commits of what a function remembers, their trims, and the takeover before its changelog is read."""


@pytest.mark.timeout(900)
@pytest.mark.guarantee("I1", "I4", "I7", "I12")
async def test_killed_around_what_is_remembered_the_outputs_are_the_same(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    async with open_crash_runs(tmp_path, spark=None) as runs:
        whole = await runs.case("state")
        assert not whole.failed, whole
        assert {("ledger.trim:after", "remember"), ("ledger.take_over:after", "remember")} <= whole.reached.keys()
        # Of the runs that are killed twice, the first kill is one of these.
        points = rng.sample(REMEMBERED, sized(0, len(REMEMBERED)))
        outcomes = await together(*(runs.case("state", point) for point in points))
        assert not report(outcomes), report(outcomes)
        assert not [point for outcome in outcomes for point in outcome.missed]
        pairs = [(first, later) for first in REMEMBERED for later in REMEMBERED]
        again = await together(*(runs.case("state", *pair) for pair in rng.sample(pairs, sized(1, 30))))
        assert not report(again), report(again)


@pytest.mark.sweep
@pytest.mark.timeout(900)
@pytest.mark.guarantee("I1", "I7", "I12")
async def test_of_owners_that_commit_what_is_remembered_one_has_an_effect(tmp_path: Path) -> None:
    points = ("ledger.commit:before#3@remember", "ledger.commit:after#3@remember", "ledger.trim:before@remember")
    async with open_crash_runs(tmp_path, spark=None) as runs:
        found = await together(*(runs.zombies("state", point) for point in points))
    assert not report([last for _, last in found]), report([last for _, last in found])


PACKED = (
    "ledger.commit:before@many",
    "ledger.commit:after@many",
    "ledger.commit:after#2@many",
    "ledger.trim:after@many",
    "ledger.commit:after@next",
    "ledger.commit:after@delivered",
    "ledger.commit:after@columns",
    "log.entries.sync:after@sum",
)
"""Around commits that are packs, and where their readers are in the middle of one."""


@pytest.mark.timeout(900)
@pytest.mark.guarantee("I1", "I2", "I4", "I9")
@pytest.mark.sweep
async def test_killed_around_packs_the_outputs_are_the_same(tmp_path: Path, spark: SparkDriver) -> None:
    rng = random.Random(SEED)
    async with open_crash_runs(tmp_path, spark=spark.address) as runs:
        points = rng.sample(PACKED, sized(2, len(PACKED)))
        outcomes = await together(*(runs.case("packs", point) for point in points))
        assert not report(outcomes), report(outcomes)
        assert not [point for outcome in outcomes for point in outcome.missed]
        pairs = [(first, later) for first in PACKED for later in PACKED]
        again = await together(*(runs.case("packs", *pair) for pair in rng.sample(pairs, sized(1, len(pairs)))))
        assert not report(again), report(again)


APART = (
    "ledger.apart:before",
    "ledger.apart:after",
    "ledger.apart:after#2",
    "ledger.stage:before",
    "ledger.stage:after#2",
    "ledger.commit:after@spread",
    "ledger.trim:after@spread",
    "ledger.commit:after@next",
    "ledger.commit:after@delivered",
)
"""Around commits that refer to frames which are stored apart, and where their readers are in the middle of one."""


@pytest.mark.timeout(900)
@pytest.mark.guarantee("I1", "I2", "I9")
@pytest.mark.sweep
async def test_killed_around_references_the_outputs_are_the_same(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    async with open_crash_runs(tmp_path, spark=None) as runs:
        points = rng.sample(APART, sized(1, len(APART)))
        outcomes = await together(*(runs.case("references", point) for point in points))
        assert not report(outcomes), report(outcomes)
        assert not [point for outcome in outcomes for point in outcome.missed]
        # Another owner removes what the one before it has stored apart.
        again = await together(
            *(runs.case("references", first, "ledger.remove:after") for first in APART[1 : sized(2, 3)]),
            *(runs.case("references", *pair) for pair in rng.sample(list(permutations(APART, 2)), sized(1, 40))),
        )
        assert not report(again), report(again)


SECURED = sized(1, 6)
"""Points of each pipeline that is encrypted, with a user for each vertex and its map in a sandbox."""


@pytest.mark.timeout(900)
@pytest.mark.guarantee("I1", "I2", "I3", "I8", "I9")
@pytest.mark.sweep
async def test_killed_with_encryption_users_and_a_sandbox_the_outputs_are_the_same(
    tmp_path: Path, spark: SparkDriver
) -> None:
    cannot = refusal(strict=True, network=False, limits=frozenset())
    if cannot is not None:
        give_up(f"there is no sandbox here: {cannot}")
    rng = random.Random(SEED)
    async with open_crash_runs(tmp_path, spark=spark.address, secured=True) as runs:
        for pipeline in ("map", "windows", "chains")[: sized(1, 3)]:
            first = await runs.case(pipeline)
            assert not report([first]), report([first])
            places = crash_plan.one_of_each(first.reached, rng)
            points = rng.sample(sorted(places.values()), SECURED)
            outcomes = await together(*(runs.case(pipeline, point) for point in points))
            assert not report(outcomes), report(outcomes)


ELSEWHERE = {
    "redis.delete": "a pipeline that is started over",
    "redis.delete_watermarks": "a pipeline that is started over",
    "redis.forget": "a command between two runs: tests/mesh/test_watermark.py",
    "redis.remove": "a command between two runs: tests/contract/ledger/test_repair.py",
}
"""Steps over Redis that no pipeline here comes to, with the reason."""
OTHERS = sized(1, 6)
"""Points of each pipeline that are not of the technology."""
OF_REDIS = sized(2, 1000)
"""Points that are, at most: `make test-all` tries each."""


@pytest.mark.timeout(900)
@pytest.mark.guarantee("I1", "I2", "I3", "I6", "I8", "I9")
@pytest.mark.sweep
async def test_killed_at_durable_steps_over_redis_the_outputs_are_the_same(tmp_path: Path, spark: SparkDriver) -> None:
    rng = random.Random(SEED)
    killed: set[str] = set()
    async with open_crash_runs(tmp_path, spark=spark.address, ledger="redis") as runs:
        for pipeline in ("chains", "map", "windows")[: sized(1, 3)]:
            whole = await runs.case(pipeline)
            assert not whole.failed, whole
            places = crash_plan.one_of_each(whole.reached, rng)
            steps = sorted(text for text in places.values() if text.startswith("redis."))
            points = rng.sample(steps, min(OF_REDIS, len(steps)))
            points += rng.sample(sorted(set(places.values()) - set(steps)), OTHERS)
            outcomes = await together(*(runs.case(pipeline, point) for point in points))
            assert not report(outcomes), report(outcomes)
            killed |= {point for outcome in outcomes for point in outcome.points if point not in outcome.missed}
    names = crash_plan.names_of(killed)
    every = {step.name for step in durable_steps.steps() if step.name.startswith("redis.")}
    assert not names & {f"{step}:{side}" for step in ELSEWHERE for side in ("before", "after")}
    if sizes.ALL:
        assert {f"{step}:{side}" for step in every - ELSEWHERE.keys() for side in ("before", "after")} <= names
