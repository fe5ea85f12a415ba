"""What reaches the windows and the Spark driver of what a user wrote."""

from pathlib import Path
from typing import Any

import pytest

from millstream import codes
from millstream.plan.plan import plan_of
from millstream.plan.resolved import ResolvedPipeline
from millstream.record import LaneId
from millstream.spec.graph import Graph
from millstream.spec.loading import load
from millstream.spec.models import GroupBy
from millstream.wire.reduce.v1 import engine_pb2
from millstream_reduce.config import log_bytes_max, program_of, window_config
from millstream_reduce.windows import WindowConfig, make_windowing
from tests.support.errors import raises

FLIGHTS = Path(__file__).parents[1] / "spec" / "pipelines" / "flights-hourly.yaml"
S = 1_000_000


@pytest.mark.parametrize(
    ("written", "config"),
    [
        ({"window": {"fixed": {"length": "1m"}}}, WindowConfig("fixed", length_us=60 * S)),
        (
            {"window": {"fixed": {"length": "250ms"}}, "keyed": True, "allowedLateness": "2s"},
            WindowConfig("fixed", length_us=S // 4, lateness_us=2 * S),
        ),
        (
            {"window": {"sliding": {"length": "3h", "slide": "1h30m"}}},
            WindowConfig("sliding", length_us=10_800 * S, slide_us=5_400 * S),
        ),
        ({"window": {"session": {"timeout": 5}}}, WindowConfig("session", timeout_us=5 * S)),
        (
            {"window": {"session": {"timeout": 5}}, "keyed": True},
            WindowConfig("session", timeout_us=5 * S, keyed=True),
        ),
        ({"window": {"global": {}}}, WindowConfig("global")),
        (
            {"window": {"global": {"trigger": {"count": 7}, "accumulate": True}}, "keyed": True},
            WindowConfig("global", count=7, accumulate=True, keyed=True),
        ),
        ({"window": {"global": {"trigger": {"every": "24h"}}}}, WindowConfig("global", every_us=86_400 * S)),
    ],
)
def test_windows(written: dict[str, Any], config: WindowConfig) -> None:
    found = window_config(GroupBy.model_validate(written))
    assert found == config
    assert make_windowing(found).needs_keys is config.needs_keys


def test_the_longest_spans_of_the_file_are_within_those_of_the_windows() -> None:
    ten_years = f"{10 * 366 * 24}h"
    written = {"window": {"sliding": {"length": ten_years, "slide": ten_years}}, "allowedLateness": ten_years}
    assert window_config(GroupBy.model_validate(written)).length_us == 10 * 366 * 86_400 * S


@pytest.fixture(scope="module")
def resolved() -> ResolvedPipeline:
    loaded = load(FLIGHTS)
    return ResolvedPipeline(loaded.plan, loaded.base_dir)


def lane(vertex: str, partition: int = 0) -> LaneId:
    return LaneId(vertex, "window", partition)


def test_sql(resolved: ResolvedPipeline) -> None:
    program = program_of(resolved, lane("carrier-hours"), 0, None)
    assert program == engine_pb2.Program(
        keyed=True,
        sql=engine_pb2.SqlProgram(
            query="SELECT key, count(*) AS n, avg(value.delay) AS mean FROM window GROUP BY key",
            value=engine_pb2.ValueSchema(format="json", fields="delay DOUBLE, origin STRING"),
        ),
    )


def test_sql_over_bytes(resolved: ResolvedPipeline) -> None:
    pipeline = resolved.pipeline.as_written(given_only=True)
    del pipeline["spec"]["vertices"][1]["udf"]["sql"]["value"]
    plain = type(resolved.pipeline).model_validate(pipeline)
    changed = ResolvedPipeline(plan_of(Graph.of(plain)), resolved.base_dir)
    assert program_of(changed, lane("carrier-hours"), 0, None).sql.value == engine_pb2.ValueSchema(format="raw")


def test_functions_are_found_from_the_file(resolved: ResolvedPipeline) -> None:
    program = program_of(resolved, lane("planes"), 0, None)
    assert program.python == engine_pb2.PythonProgram(
        target="planes.py:Day",
        directory=str(FLIGHTS.parent / "functions"),
        pipeline="flights-hourly",
        vertex="planes",
    )


def test_programs_are_called_where_they_run(resolved: ResolvedPipeline) -> None:
    program = program_of(resolved, lane("moving"), 0, None)
    assert not program.keyed
    assert program.udf == engine_pb2.UdfProgram(
        address="unix:/run/moving.sock", pipeline="flights-hourly", vertex="moving", lane="window.0"
    )
    assert program_of(resolved, lane("totals"), 1, "unix:/own.sock").udf.address == "unix:/own.sock"
    with raises(codes.IMPOSSIBLE, match="totals: its program runs nowhere"):
        program_of(resolved, lane("totals"), 0, None)
    with raises(codes.IMPOSSIBLE):
        program_of(resolved, lane("out"), 0, None)


def test_lanes_share_the_storage_of_their_replica(resolved: ResolvedPipeline) -> None:
    assert log_bytes_max(resolved.graph.vertex("carrier-hours")) == (1 << 30) // 2, "four lanes, two replicas"
    assert log_bytes_max(resolved.graph.vertex("totals")) == 2 << 30
    assert log_bytes_max(resolved.graph.vertex("moving")) is None
    assert log_bytes_max(resolved.graph.vertex("out")) is None
