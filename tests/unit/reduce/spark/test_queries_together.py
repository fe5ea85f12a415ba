"""Many windows in one query have exactly the results that each has alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from millstream.wire.reduce.v1 import engine_pb2
from millstream_reduce.spark.batching import batched
from millstream_reduce.spark.manifest import WINDOW, JobWindows, manifest_of
from millstream_reduce.spark.rows import RowReader
from millstream_reduce.spark.sql import alone, as_results, compute_sql, plan_sql
from tests.unit.reduce.spark.logs import MINUTE_US, Row, TestLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIELDS = "delay DOUBLE, origin STRING, n INT, tags ARRAY<STRING>"
ORIGINS = ("EWR", "JFK", "LGA")


WINDOWS = 4


@pytest.fixture(scope="module", autouse=True)
def interpreted(spark_session: SparkSession) -> Iterator[None]:
    """Each query runs once, over some rows: its expressions are not compiled for that."""
    names = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    for name, value in names.items():
        spark_session.conf.set(name, value)
    yield
    for name in names:
        spark_session.conf.unset(name)


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory) -> JobWindows:
    """Windows over three entries: some keys are in one only, some conditions leave nothing of one."""
    log = TestLog(tmp_path_factory.mktemp("log"))
    for entry in range(3):
        log.append_windows({window: rows_of(window, entry) for window in range(WINDOWS)})
    return log.windows()


def rows_of(window: int, entry: int) -> list[Row]:
    rows = []
    for index in range((window + 1) * 2 if (window, entry) != (2, 1) else 0):
        number = window * 100 + entry * 10 + index
        value = (
            b"no object"
            if number % 17 == 0
            else f'{{"delay": {number % 7 - 2}.5, "origin": "{ORIGINS[number % 3]}", "n": {number % 5}, '
            f'"tags": ["t{number % 2}", "u"]}}'.encode()
        )
        keys = ((), (f"k{number % 4}",), (f"k{window}", "part"))[number % 3]
        headers = {"trace": b"%d" % number} if number % 2 else {}
        rows.append(Row(value, window * MINUTE_US + number, keys, headers))
    return rows


TOGETHER = [
    "SELECT key, count(*) AS n, avg(value.delay) AS mean FROM window GROUP BY key",
    "SELECT count(*) AS n FROM window",
    "SELECT count(*) AS n, max(value.n) AS most, count(key) AS keyed FROM window WHERE value.delay > 3",
    "SELECT count(*) AS n, sum(value.n) FILTER (WHERE value.n > 2) AS s FROM window WHERE value.origin = 'nowhere'",
    "SELECT count(DISTINCT value.origin) AS origins, count(DISTINCT key) AS keys_ FROM window WHERE value.n > 3",
    "SELECT count(*) AS n FROM window WHERE value.n > 3 HAVING count(*) > 2",
    "SELECT * FROM window",
    "SELECT key, value.* FROM window WHERE value.n IS NOT NULL",
    "SELECT w.* EXCEPT (value, headers), value.delay + 1 AS later FROM window AS w",
    "SELECT DISTINCT value.origin, value.n % 2 AS odd FROM window",
    "SELECT value.origin AS o, count(*) AS n FROM window GROUP BY 1 HAVING count(*) > 1 ORDER BY n DESC, o",
    (
        "SELECT value.origin AS o, percentile_approx(value.delay, 0.95) AS p, min_by(key, event_time) AS first_key "
        "FROM window GROUP BY ALL"
    ),
    (
        "SELECT key, value.delay, row_number() OVER (ORDER BY event_time) AS i, "
        "sum(value.delay) OVER (PARTITION BY value.origin ORDER BY event_time) AS running FROM window"
    ),
    "SELECT key, rank() OVER w AS r, lag(value.n) OVER w AS before FROM window WINDOW w AS (ORDER BY event_time)",
    "SELECT key, count(*) AS n, sum(count(*)) OVER () AS total FROM window GROUP BY key",
    (
        "SELECT key, n / total AS share FROM (SELECT key, count(*) AS n, sum(count(*)) OVER () AS total FROM window "
        "GROUP BY key)"
    ),
    "SELECT max(n) AS most, count(*) AS groups FROM (SELECT key, count(*) AS n FROM window GROUP BY key)",
    (
        "WITH a AS (SELECT key, count(*) AS n FROM window GROUP BY key), b (k, late) AS (SELECT key, "
        "max(value.delay) FROM window WHERE value.delay > 0 GROUP BY key) SELECT a.key, n, late FROM a LEFT JOIN b "
        "ON a.key <=> b.k"
    ),
    (
        "SELECT a.event_time AS t, b.event_time AS u FROM window a JOIN window b ON a.value.n = b.value.n "
        "AND a.event_time < b.event_time"
    ),
    "SELECT a.key, b.origin FROM window a, (SELECT DISTINCT value.origin FROM window) b WHERE a.value.n = 1",
    (
        "SELECT a.key, a.event_time AS t FROM window a LEFT ANTI JOIN (SELECT key FROM window WHERE value.n > 2) b "
        "ON a.key = b.key"
    ),
    (
        "SELECT a.key, a.event_time AS t FROM window a LEFT SEMI JOIN (SELECT key FROM window WHERE value.n > 2) b "
        "ON a.key = b.key"
    ),
    (
        "SELECT a.o, b.o AS p FROM (SELECT value.origin AS o FROM window WHERE value.n = 1) a FULL JOIN "
        "(SELECT value.origin AS o FROM window WHERE value.n = 4) b ON a.o = b.o"
    ),
    (
        "SELECT o, a.n AS x, b.n AS y FROM (SELECT value.origin AS o, value.n AS n FROM window) a JOIN "
        "(SELECT value.origin AS o, max(value.n) AS n FROM window GROUP BY 1) b USING (o)"
    ),
    "SELECT key FROM window NATURAL JOIN (SELECT key, max(event_time) AS event_time FROM window GROUP BY key)",
    "SELECT key FROM window UNION SELECT value.origin FROM window",
    "SELECT value.n FROM window WHERE value.n > 1 UNION ALL SELECT value.n FROM window WHERE value.n < 3",
    "SELECT value.origin FROM window WHERE value.n > 1 INTERSECT SELECT value.origin FROM window WHERE value.n < 2",
    "SELECT key FROM window EXCEPT SELECT key FROM window WHERE value.n > 2",
    "SELECT tag, count(*) AS n FROM window LATERAL VIEW explode(value.tags) t AS tag GROUP BY tag",
    "SELECT * EXCEPT (value, headers) FROM window LATERAL VIEW OUTER posexplode(keys) t AS pos, part",
    "SELECT explode(keys) AS part FROM window",
    (
        "SELECT w.key, v.name FROM window w JOIN VALUES ('EWR', 'Newark'), ('JFK', 'Kennedy') AS v(code, name) "
        "ON v.code = w.value.origin"
    ),
    "SELECT v.name, w.key FROM VALUES ('EWR', 'Newark') AS v(code, name) JOIN window w ON v.code = w.value.origin",
    "SELECT key, count_if(value.n IN (SELECT * FROM VALUES (1), (2))) AS n FROM window GROUP BY key",
    "SELECT key, headers, array('all') AS tags, window_start, window_end, window_early FROM window",
    "SELECT key, transform(value.tags, t -> upper(t)) AS up, map('a', value.n) AS m, event_time FROM window",
    (
        "SELECT key, CASE WHEN value.delay > 0 THEN 'late' ELSE 'on time' END AS class, count(*) AS n FROM window "
        "GROUP BY key, CASE WHEN value.delay > 0 THEN 'late' ELSE 'on time' END"
    ),
    "SELECT `key` AS `a ``quoted`` name`, 'it''s' AS text, \"double\" AS d FROM `window` -- note\n",
    "FROM window SELECT key, event_time WHERE value.n = 1",
    "SELECT key, event_time AS t FROM window ORDER BY event_time DESC LIMIT 2",
    "SELECT * FROM window ORDER BY value.n NULLS LAST, event_time LIMIT 3 OFFSET 1",
    "SELECT key, count(*) AS n FROM window GROUP BY key ORDER BY count(*) DESC, key LIMIT 2",
    "SELECT upper(key) AS o, value.n * 2 AS n FROM window WHERE value.n > 0 ORDER BY n DESC, o, event_time LIMIT 4",
    "SELECT DISTINCT value.origin AS o FROM window ORDER BY o DESC LIMIT 2",
    "SELECT value.n AS n FROM window UNION SELECT 100 + value.n FROM window ORDER BY n DESC LIMIT 3",
    "SELECT value.origin AS o, max(value.n) AS m FROM window GROUP BY 1 ORDER BY 2, 1 LIMIT 1",
    "SELECT sum(n) AS n FROM (SELECT count(*) AS n FROM window GROUP BY key ORDER BY n DESC LIMIT 2)",
    "WITH a AS (SELECT key FROM window ORDER BY event_time LIMIT 5) SELECT key, count(*) AS n FROM a GROUP BY key",
    (
        "(SELECT event_time FROM window ORDER BY 1 LIMIT 1) UNION ALL "
        "(SELECT event_time FROM window ORDER BY 1 DESC LIMIT 1)"
    ),
]
ONE_BY_ONE = [
    "SELECT key, count(*) / (SELECT count(*) FROM window) AS share FROM window GROUP BY key",
    "SELECT key, value.origin AS o, count(*) AS n FROM window GROUP BY ROLLUP (key, value.origin)",
    "SELECT count(*) AS n FROM window a JOIN window b ON a.value.n = b.value.n + 4",
]


@pytest.fixture(scope="module")
def views(spark_session: SparkSession, windows: JobWindows) -> Iterator[list[str]]:
    """Tables of the rows of all windows, and of each: what the tasks would read, without tasks."""
    plan = plan_sql(spark_session, program("SELECT * FROM window"))
    reader = RowReader(manifest_of(windows, whole_windows=True), plan.table.columns)
    rows = pa.Table.from_batches(list(reader([pa.record_batch({"id": [0]})])))
    names = []
    for index in (None, *range(len(windows))):
        some = rows if index is None else rows.filter(pc.equal(rows[WINDOW], index))
        name = f"rows_{index}"
        spark_session.createDataFrame(some).selectExpr(*plan.table.window).createOrReplaceTempView(name)
        names.append(name)
    yield names
    for name in names:
        spark_session.catalog.dropTempView(name)


@pytest.mark.parametrize(
    "query", [pytest.param(query, marks=pytest.mark.sweep if index % 5 else ()) for index, query in enumerate(TOGETHER)]
)
def test_together_as_alone(spark_session: SparkSession, views: list[str], query: str) -> None:
    plan = plan_sql(spark_session, program(query))
    assert plan.one_by_one == ""
    everything, *singles = views
    queries = [alone(query, view, index=index) for index, view in enumerate(singles)]
    expected = spark_session.sql("\nUNION ALL\n".join(as_results(plan.results, one) for one in queries))
    together = results(spark_session.sql(as_results(plan.results, batched(query, everything))).toArrow())
    assert len(together) > 0
    assert Counter(together) == Counter(results(expected.toArrow()))
    if " LIMIT " in query or "ORDER BY n DESC" in query:
        assert _by_window(together) == _by_window(results(expected.toArrow()))


@pytest.mark.parametrize("query", [*ONE_BY_ONE, *TOGETHER[:3]])
def test_jobs_give_what_single_windows_give(spark_session: SparkSession, windows: JobWindows, query: str) -> None:
    plan = plan_sql(spark_session, program(query))
    assert bool(plan.one_by_one) == (query in ONE_BY_ONE)
    table = compute_sql(spark_session, plan, windows, parallelism=2)
    singles = [
        (index, row[1])
        for index, window in enumerate(windows.each())
        for row in results(compute_sql(spark_session, plan, window, parallelism=2))
    ]
    assert Counter(row[:2] for row in results(table)) == Counter(singles)


PREAGGREGATED = [
    "SELECT key, count(*) AS n, avg(value.delay) AS mean FROM window GROUP BY key",
    "SELECT count(*), max(value.n), count(key) AS keyed, min(event_time) AS first FROM window",
    (
        "SELECT key, window_start, window_end, window_early, upper(value.origin) AS o, sum(value.n) + 1, "
        "sum(value.delay) AS s, avg(value.n), max(value.delay) AS most FROM window "
        "GROUP BY key, window_start, window_end, window_early, value.origin"
    ),
    (
        "SELECT value.origin, value.n, CASE WHEN count(value.delay) > 1 THEN 'some' ELSE 'one' END AS size "
        "FROM window GROUP BY value.n, value.origin HAVING count(1) > 1 AND max(event_time) IS NOT NULL"
    ),
    "SELECT key, count(*) AS n FROM window GROUP BY key ORDER BY count(*) DESC, max(event_time) LIMIT 2",
]


@pytest.mark.parametrize("query", PREAGGREGATED)
def test_what_the_tasks_aggregate_before_spark_changes_no_result(
    spark_session: SparkSession, windows: JobWindows, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    plan = plan_sql(spark_session, program(query))
    assert plan.partials is not None
    monkeypatch.setattr("millstream_reduce.spark.sql.preaggregated", lambda *_: None)
    plain = plan_sql(spark_session, program(query))
    assert plain.partials is None
    monkeypatch.setattr("millstream_reduce.spark.sql.SMALL_JOB_ROWS", 0)
    for some in (windows, windows[3:]):
        expected = Counter(results(compute_sql(spark_session, plain, some, parallelism=1)))
        assert len(expected) > 0
        for tasks in (1, 3):
            assert Counter(results(compute_sql(spark_session, plan, some, parallelism=tasks))) == expected


@pytest.mark.parametrize("chosen", [slice(None), slice(3, 4)], ids=["many windows", "one window"])
def test_several_tasks_give_what_one_gives(
    spark_session: SparkSession, windows: JobWindows, monkeypatch: pytest.MonkeyPatch, chosen: slice
) -> None:
    plan = plan_sql(spark_session, program(TOGETHER[0]))
    some = windows[chosen]
    expected = Counter(results(compute_sql(spark_session, plan, some, parallelism=1)))
    monkeypatch.setattr("millstream_reduce.spark.sql.SMALL_JOB_ROWS", 0)
    assert Counter(results(compute_sql(spark_session, plan, some, parallelism=3))) == expected


def results(table: pa.Table) -> list[tuple[object, ...]]:
    rows = table.to_pylist()
    return [(row["window"], row["value"], str(row["keys"]), str(row["tags"]), str(row["headers"])) for row in rows]


def _by_window(rows: list[tuple[object, ...]]) -> dict[object, list[tuple[object, ...]]]:
    return {window: [row for row in rows if row[0] == window] for window in {row[0] for row in rows}}


def program(query: str) -> engine_pb2.SqlProgram:
    return engine_pb2.SqlProgram(query=query, value=engine_pb2.ValueSchema(format="json", fields=FIELDS))


@pytest.mark.guarantee("I3")
def test_runs_of_one_job_at_the_same_time_do_not_meet(spark_session: SparkSession, windows: JobWindows) -> None:
    plan = plan_sql(spark_session, program(TOGETHER[0]))
    alone_ = [Counter(results(compute_sql(spark_session, plan, window, parallelism=2))) for window in windows.each()]
    with ThreadPoolExecutor(4) as threads:
        at_once = list(threads.map(lambda window: compute_sql(spark_session, plan, window, 2), windows.each() * 10))
    assert [Counter(results(table)) for table in at_once] == alone_ * 10
