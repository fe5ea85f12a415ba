"""What is written again means the same to Spark: on the examples that Spark gives for each of its own functions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from millstream_reduce.spark.dialect import NotUnderstoodError, parse, write
from millstream_reduce.spark.functions import AGGREGATES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EXAMPLE = re.compile(r"> (SELECT .*?);\s*$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def functions(spark_session: SparkSession) -> dict[str, Any]:
    """Every function of Spark's, with what Spark tells about it."""
    jvm: Any = spark_session._jvm  # there is no other way to Spark's own descriptions
    registry = jvm.org.apache.spark.sql.catalyst.analysis.FunctionRegistry.builtin()
    identifier = jvm.org.apache.spark.sql.catalyst.FunctionIdentifier
    names = [row[0] for row in spark_session.sql("SHOW FUNCTIONS").collect()]
    found = {name: registry.lookupFunction(identifier(name)) for name in names}
    return {name: option.get() for name, option in found.items() if option.isDefined()}


def test_queries_are_written_as_spark_understood_them(spark_session: SparkSession, functions: dict[str, Any]) -> None:
    parser: Any = spark_session._jsparkSession.sessionState().sqlParser()  # only parses
    written = 0
    for description in functions.values():
        # One example of each: they differ in values, not in form.
        for query in _EXAMPLE.findall(description.getExamples() or "")[:1]:
            try:
                again = write(parse(query), query)
            except NotUnderstoodError:
                continue
            if "VALUES '" in query:
                # sqlglot takes the alias of such a table for one of its last value. Spark refuses what comes of it.
                continue
            assert _plan(parser, again) == _plan(parser, query), query
            written += 1
    assert written > 400


def test_all_aggregates_are_known(functions: dict[str, Any]) -> None:
    of_spark = {name for name, description in functions.items() if description.getGroup() == "agg_funcs"}
    assert len(of_spark) > 50
    assert of_spark - AGGREGATES == set()


def _plan(parser: Any, query: str) -> str:
    return re.sub(r"#\d+", "", parser.parsePlan(query).toString())
