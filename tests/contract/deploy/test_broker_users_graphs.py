"""Users of a broker for pipelines with a cycle and with windows, over TLS: the rights of each vertex are enough."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from millstream.clock import SystemClock
from millstream.ledger.protocol import DurabilityLevel
from millstream.plan import resolved
from millstream.spec.loading import load
from millstream_runner.cli.broker import prepare
from millstream_worker.assembly import open_vertex
from millstream_worker.environment import VertexConfig
from tests.mesh.conftest import PipelineFiles
from tests.mesh.reducing import Event, contents_of, reduce, sliding_contents, source, write_events
from tests.recovery.crash_brokers import OPERATOR, BrokerPlace, open_secured_broker
from tests.spark_driver import SparkDriver
from tests.support.sizes import first

WAIT_S = 240.0


@pytest.fixture
def files(tmp_path: Path) -> PipelineFiles:
    return PipelineFiles(tmp_path)


async def run(path: Path, *, spark: str | None = None) -> None:
    """Run the pipeline to its end, each replica with the user of its vertex."""
    loaded = load(path)
    graph = loaded.graph
    async with asyncio.timeout(WAIT_S), open_secured_broker(path.parent / "server", [path]) as place:
        await prepare(loaded.plan, place.access(graph.pipeline.name, OPERATOR), DurabilityLevel.FSYNC)
        async with asyncio.TaskGroup() as group:
            for vertex in graph.vertices:
                for replica in range(vertex.replicas):
                    group.create_task(run_replica(path, place, vertex.name, replica, spark))


async def run_replica(path: Path, place: BrokerPlace, vertex: str, replica: int, spark: str | None) -> None:
    loaded = load(path)
    config = VertexConfig(
        resolved=resolved.load(resolved.dump(loaded.plan, loaded.base_dir)),
        vertex=vertex,
        replica=replica,
        broker=place.access(loaded.pipeline.name, vertex),
        durability=DurabilityLevel.FSYNC,
        windows_dir=path.parent / "windows",
        spark=spark,
    )
    async with open_vertex(config, SystemClock()) as process:
        await process.run()


CYCLES: Sequence[Sequence[str]] = (
    ["in -> map", "{from: map, to: map, conditions: {tags: {values: [again]}}}"],
    ["in -> turn", "turn -> map", "{from: map, to: turn, conditions: {tags: {values: [again]}}}"],
)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("cycle", first(1, CYCLES), ids=["of one vertex", "of two vertices"])
async def test_a_cycle_runs_and_ends_with_a_user_for_each_vertex(files: PipelineFiles, cycle: Sequence[str]) -> None:
    turn = files.function("identity", vertex="turn") if any("turn" in edge for edge in cycle) else ""
    path = files.write(
        files.generator(200) + turn + files.function("countdown") + files.file_sink("out"),
        [*cycle, "{from: map, to: out, conditions: {tags: {values: [done]}}}"],
    )

    await run(path)

    assert sorted(files.numbers("out")) == list(range(200))


REMEMBERING = """
import millstream_udf as udf


@udf.map
class Count:
    count = udf.counter()

    def process(self, record: udf.Record) -> udf.Message:
        self.count += 1
        return udf.Message({"key": record.keys[0], "number": self.count.value})
"""


@pytest.mark.timeout(900)
async def test_a_vertex_reads_and_trims_what_it_remembers_with_its_own_user(files: PipelineFiles) -> None:
    (files.directory / "remembering.py").write_text(REMEMBERING, encoding="utf-8")
    path = files.write(
        # So many that everything is written anew, and what lies before it is trimmed.
        files.generator(20_000, keyCount=3000)
        + "- name: map\n  partitions: 2\n  udf: {python: 'remembering.py:Count', state: {}}\n"
        + files.file_sink("out"),
        ["in -> map", "map -> out"],
    )

    await run(path)

    numbers: dict[str, list[int]] = {}
    for row in files.rows("out"):
        numbers.setdefault(row["key"], []).append(row["number"])
    assert sum(map(len, numbers.values())) == 20_000
    assert all(found == list(range(1, len(found) + 1)) for found in numbers.values())


@pytest.mark.sweep
@pytest.mark.timeout(900)
async def test_windows_and_their_late_records_come_with_a_user_for_each_vertex(
    files: PipelineFiles, spark: SparkDriver
) -> None:
    events = [Event(n, n / 2, f"k{n % 4}") for n in range(80)]
    late = [Event(80 + n, n, "k0") for n in range(4)]
    write_events(files.directory / "in.jsonl", [*events, *late])
    path = files.write(
        source()
        + reduce("{fixed: {length: 10s}}", group_by="keyed: true, onLate: edge", lanes="partitions: 2\n  replicas: 2")
        + files.file_sink("out")
        + files.file_sink("late"),
        ["in -> sum", "sum -> out", "{from: sum, to: late, kind: late}"],
    )

    await run(path, spark=spark.address)

    found, expected = contents_of(files.rows("out")), sliding_contents(events, 10, 10)
    taken = sorted(number for numbers in found.values() for number in numbers)
    assert sorted([*taken, *(row["n"] for row in files.rows("late"))]) == list(range(84))
    for window, numbers in expected.items():
        assert set(numbers) <= set(found[window])
