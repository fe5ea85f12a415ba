"""Jobs that are planned once and run over ever new windows: none gives anything of the windows before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from millstream.wire.reduce.v1 import engine_pb2
from millstream_reduce.spark import prepared
from millstream_reduce.spark.manifest import JobWindows
from millstream_reduce.spark.prepared import PreparedJob, is_repeatable
from millstream_reduce.spark.sql import compute_sql, plan_sql
from tests.unit.reduce.spark.logs import Row, TestLog

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

QUERIES = [
    "SELECT key, count(*) AS n, sum(value.n) AS s FROM window GROUP BY key",
    "SELECT value.n + 1 AS m FROM window WHERE value.n % 3 > 0 ORDER BY m",
    "SELECT key, lag(value.n) OVER (PARTITION BY key ORDER BY event_time) AS before FROM window",
    "SELECT key, value.n FROM window ORDER BY value.n DESC LIMIT 3",
    "SELECT part, value.n FROM window LATERAL VIEW explode(keys) t AS part",
    "SELECT count(DISTINCT value.n) AS n, count(DISTINCT event_time, key) AS t, sum(value.n) AS s FROM window",
    "SELECT key, sort_array(collect_list(value.n)) AS ns FROM window GROUP BY key",
    "SELECT max(key) AS k, count(*) AS n FROM window GROUP BY value.n % 2",
    "SELECT value.n FROM window WHERE value.n < 104 UNION ALL SELECT -value.n FROM window WHERE value.n > 102",
    "SELECT key, value.n FROM window WHERE value.n > 3 EXCEPT SELECT key, 7 FROM window",
    "SELECT n, c FROM (SELECT value.n AS n FROM window) JOIN VALUES (1, 'a'), (102, 'b') AS t(m, c) ON n = m",
    (
        "SELECT a.key, a.n, b.n AS other FROM (SELECT key, value.n AS n FROM window) a "
        "JOIN (SELECT key, max(value.n) AS n FROM window GROUP BY key) b ON a.key = b.key"
    ),
]


@pytest.fixture
def windows(tmp_path: Path) -> JobWindows:
    log = TestLog(tmp_path)
    for window in range(2):
        numbers = [100 * window + n for n in range(10)]
        rows = [Row(json.dumps({"n": n}).encode(), n, (f"k{n % 3 + window}",), {}) for n in numbers]
        log.append_windows({window: rows})
    return log.windows()


@pytest.fixture(autouse=True)
def nothing_prepared() -> Iterator[None]:
    prepared._jobs.clear()
    yield
    prepared._jobs.clear()


def computed(spark_session: SparkSession, query: str, window: JobWindows) -> list[str]:
    value = engine_pb2.ValueSchema(format="json", fields="n INT")
    plan = plan_sql(spark_session, engine_pb2.SqlProgram(query=query, value=value))
    # The plan is another object each time; its job is to be the same.
    plan = _plans.setdefault(query, plan)
    table: pa.Table = compute_sql(spark_session, plan, window, parallelism=1)
    return sorted(map(str, table.to_pylist()))


_plans: dict[str, Any] = {}


def operators(plan: Any) -> set[str]:
    children = plan.children()
    return {plan.getClass().getName()}.union(*(operators(children.apply(at)) for at in range(children.size())))


@pytest.mark.guarantee("I3")
def test_the_second_window_of_a_job_has_its_own_results_whatever_operators_are_in_it(
    spark_session: SparkSession, windows: JobWindows
) -> None:
    seen: set[str] = set()
    for query in QUERIES:
        alone = {}
        for index, window in enumerate(windows.each()):
            prepared._jobs.clear()
            alone[index] = computed(spark_session, query, window)
        assert alone[0] != alone[1], query
        # The job of the second window is there now, and serves the first one.
        assert computed(spark_session, query, windows[:1]) == alone[0], query
        assert computed(spark_session, query, windows[1:]) == alone[1], query
        (job,) = prepared._jobs.values()
        if job.repeatable:
            seen |= operators(job._frame._jdf.queryExecution().executedPlan())
    assert seen >= {name for name in prepared._REPEATABLE if not name.endswith(RARE)}


RARE = ("SortMergeJoinExec", "SortAggregateExec")
"""Spark seldom chooses them for rows this few."""


def test_what_is_not_known_is_planned_anew(spark_session: SparkSession) -> None:
    def plan_of(frame: Any) -> Any:
        return frame._jdf.queryExecution().executedPlan()

    kept = spark_session.range(3).cache()
    try:
        for frame in (
            kept,
            spark_session.range(4).repartition(2),
            spark_session.range(4).coalesce(1),
            spark_session.range(4).sample(0.5),
            spark_session.range(4).filter("id = (SELECT max(id) FROM range(3))"),
            spark_session.range(4).join(spark_session.range(4), "id"),
        ):
            assert not is_repeatable(plan_of(frame)), plan_of(frame).toString()
    finally:
        kept.unpersist()
    assert is_repeatable(plan_of(spark_session.range(4).filter("id > 1")))


@pytest.mark.parametrize("function", ["uuid()", "rand()", "current_timestamp()", "now()"])
def test_the_clock_and_chance_are_asked_at_each_run(
    spark_session: SparkSession, windows: JobWindows, function: str
) -> None:
    query = f"SELECT {function} AS n FROM window"
    first, second = computed(spark_session, query, windows[:1]), computed(spark_session, query, windows[:1])
    assert set(first).isdisjoint(second)
    assert not next(iter(prepared._jobs.values())).settled


def test_a_query_like_any_other_is_analysed_once(spark_session: SparkSession) -> None:
    assert PreparedJob(spark_session.range(3).selectExpr("id + 1 AS n")).settled
