"""Queries whose tasks aggregate before Spark does: what becomes of them, and which are left as they are. No Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest

from millstream_reduce.spark.preaggregation import ColumnPlace, Partial, preaggregated

FIELDS: dict[str, pa.DataType] = {
    "delay": pa.float64(),
    "origin": pa.string(),
    "n": pa.int32(),
    "price": pa.decimal128(9, 2),
    "tags": pa.list_(pa.string()),
}
KEY, EVENT_TIME = ColumnPlace("key", is_field=False), ColumnPlace("event_time", is_field=False)
ROWS = Partial("rows", None)


def field(name: str) -> ColumnPlace:
    return ColumnPlace(name, is_field=True)


def test_aggregates_of_partial_results_take_the_place_of_aggregates() -> None:
    query = (
        "SELECT KEY, count(*) AS n, upper(key), avg(value.delay) + 1, sum(value.N) s FROM window "
        "GROUP BY key, value.origin HAVING count(1) > 3 ORDER BY max(event_time) LIMIT 3 -- the end"
    )
    found = preaggregated(query, FIELDS, ["KEY", "n", "upper(key)", "(avg(value.delay) + 1)", "s"])
    assert found is not None
    assert found.query == (
        "SELECT KEY, sum(__partial_0) AS n, upper(key), "
        "try_divide(sum(__partial_1), sum(__partial_2)) + 1 AS `(avg(value.delay) + 1)`, sum(__partial_3) AS s "
        "FROM window GROUP BY key, value.origin HAVING sum(__partial_0) > 3 ORDER BY max(__partial_4) LIMIT 3"
    )
    assert found.groups == (KEY, field("origin"))
    of_delay = [Partial(function, field("delay")) for function in ("sum_double", "count")]
    assert found.partials == (ROWS, *of_delay, Partial("sum", field("n")), Partial("max", EVENT_TIME))
    assert found.places() == (KEY, field("origin"), field("delay"), field("n"), EVENT_TIME)


def test_without_groups_there_is_one() -> None:
    found = preaggregated("SELECT count(*) FROM window", {}, ["count(1)"])
    assert found is not None
    assert (found.query, found.groups) == ("SELECT sum(__partial_0) AS `count(1)` FROM window", ())


@pytest.mark.parametrize(
    "query",
    [
        pytest.param("SELECT key, count(*) AS n FROM window WHERE value.n > 1 GROUP BY key", id="condition"),
        pytest.param("SELECT key, value.n AS n FROM window", id="nothing aggregated"),
        pytest.param("SELECT DISTINCT key, count(*) AS n FROM window GROUP BY key", id="distinct"),
        pytest.param("SELECT key, count(DISTINCT value.n) AS n FROM window GROUP BY key", id="distinct values"),
        pytest.param("SELECT key, sum(value.n) FILTER (WHERE value.n > 1) AS n FROM window GROUP BY key", id="filter"),
        pytest.param("SELECT key, sum(count(*)) OVER () AS n FROM window GROUP BY key", id="window function"),
        pytest.param("SELECT key, percentile(value.n, 0.5) AS n FROM window GROUP BY key", id="another aggregate"),
        pytest.param("SELECT key, count(*) + new_agg(key) AS n FROM window GROUP BY key", id="unknown function"),
        pytest.param("SELECT key, max(value.origin) AS n FROM window GROUP BY key", id="text compared"),
        pytest.param("SELECT key, sum(value.price) AS n FROM window GROUP BY key", id="decimal"),
        pytest.param("SELECT key, count(value.tags) AS n FROM window GROUP BY key", id="list"),
        pytest.param("SELECT key, sum(value.n * 2) AS n FROM window GROUP BY key", id="expression aggregated"),
        pytest.param("SELECT key, count(value) AS n FROM window GROUP BY key", id="whole value"),
        pytest.param("SELECT key, count(keys) AS n FROM window GROUP BY key", id="list of the table"),
        pytest.param("SELECT value.delay AS d, count(*) AS n FROM window GROUP BY value.delay", id="by a double"),
        pytest.param("SELECT upper(key) AS k, count(*) AS n FROM window GROUP BY upper(key)", id="by an expression"),
        pytest.param("SELECT key AS k, count(*) AS n FROM window GROUP BY 1", id="by a position"),
        pytest.param("SELECT key, count(*) AS n FROM window GROUP BY ALL", id="by all"),
        pytest.param("SELECT key, count(*) AS n FROM window GROUP BY ROLLUP (key)", id="rollup"),
        pytest.param("SELECT key, count(*) AS n FROM window AS w GROUP BY key", id="another name"),
        pytest.param("SELECT key, count(*) AS n FROM a.window GROUP BY key", id="another table"),
        pytest.param("SELECT w.key, count(*) AS n FROM window JOIN window w ON true GROUP BY w.key", id="join"),
        pytest.param("WITH w AS (SELECT 1) SELECT key, count(*) AS n FROM window GROUP BY key", id="WITH"),
        pytest.param("SELECT key, count(*) IN (SELECT 1) AS n FROM window GROUP BY key", id="query inside"),
        pytest.param("SELECT key, count(*) AS n FROM window GROUP BY key UNION SELECT 'a', 1", id="set operation"),
        pytest.param("SELECT key, count(* FROM window", id="no SQL"),
    ],
)
def test_left_as_it_is(query: str) -> None:
    assert preaggregated(query, FIELDS, ["key", "n"]) is None


def test_fields_that_differ_in_case_only_are_left_alone() -> None:
    query = "SELECT key, sum(value.n) AS n FROM window GROUP BY key"
    assert preaggregated(query, FIELDS, ["key", "n"]) is not None
    assert preaggregated(query, FIELDS | {"N": pa.int64()}, ["key", "n"]) is None
