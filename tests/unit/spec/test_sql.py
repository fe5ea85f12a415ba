"""What a query looks like at first sight."""

import sys

import pytest

from millstream.spec.models import Pipeline
from millstream.spec.sql import doubt_of, doubts_of
from tests.unit.spec.test_graph import IN, OUT, arrow, pipeline


@pytest.mark.parametrize(
    "query",
    [
        "SELECT key, count(*) AS n, avg(value.delay) AS mean FROM window GROUP BY key",
        "select key, percentile_approx(value.delay, 0.95) p95 from window where value.delay > 0 group by all",
        "WITH a AS (SELECT key FROM window) SELECT key, count(*) n FROM a GROUP BY key HAVING n > 1;",
        "SELECT key, explode(value.legs) AS leg FROM window LATERAL VIEW explode(value.xs) t AS x",
        "SELECT transform(value.xs, x -> x + 1) AS ys, value.`a b` FROM window",
        "FROM window |> AGGREGATE count(*) AS n GROUP BY key",
        "SELECT 1 AS n UNION ALL SELECT 2",
    ],
)
def test_queries_of_spark_s(query: str) -> None:
    assert doubt_of(query) is None


@pytest.mark.parametrize(
    ("query", "doubt"),
    [
        ("SELECT count(* FROM window", "the query may not be valid SQL near `FROM` (line 1, column 19 of the query)"),
        (
            "SELECT key\nFROM window\nWHERE",
            "the query may not be valid SQL near `WHERE` (line 3, column 5 of the query)",
        ),
        ("SELECT 'open FROM window", "the query may not be valid SQL: a text or comment in it may not be closed"),
        ("SELECT 1; SELECT 2", "the query may contain 2 statements instead of one"),
        ("-- nothing", "the query may contain 0 statements instead of one"),
        ("DROP TABLE window", "the query may be a DROP instead of a SELECT"),
    ],
)
def test_what_may_be_no_query(query: str, doubt: str) -> None:
    assert doubt_of(query) == doubt


def with_sql(query: str) -> Pipeline:
    window = {"window": {"fixed": {"length": "1m"}}}
    udf = {"sql": {"query": query}, "groupBy": window}
    return pipeline({"in": IN, "sum": {"udf": udf}, "out": OUT}, [arrow("in>sum"), arrow("sum>out")])


def test_doubts_have_their_place() -> None:
    ((path, _),) = doubts_of(with_sql("SELEC"))
    assert path == ("spec", "vertices", 1, "udf", "sql", "query")
    assert list(doubts_of(with_sql("SELECT 1 AS n"))) == []


def test_without_sqlglot_nothing_is_doubted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlglot", None)
    assert doubt_of("SELEC") is None
