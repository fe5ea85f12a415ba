"""Every function of Spark has been read for what it may reach, and is allowed or refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.spec.sql import UNSAFE_FUNCTIONS
from millstream_reduce.spark.functions import ALLOWED_FUNCTIONS, ALLOWED_TABLE_FUNCTIONS, REFUSED_TABLE_FUNCTIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def registered(spark: SparkSession, registry: str) -> set[str]:
    java: Any = spark._jvm
    module = getattr(getattr(java.org.apache.spark.sql.catalyst.analysis, f"{registry}$"), "MODULE$")
    return set(module.builtin().listFunction().mkString("\n").replace("`", "").splitlines())


def test_each_function_of_this_spark_is_allowed_or_refused(spark_session: SparkSession) -> None:
    """Read what a new function does, and add it to one of the lists: what it may reach decides."""
    found = {name.rpartition(".")[2] or name for name in registered(spark_session, "FunctionRegistry")}
    assert found == ALLOWED_FUNCTIONS | UNSAFE_FUNCTIONS.keys()
    assert not ALLOWED_FUNCTIONS & UNSAFE_FUNCTIONS.keys()
    tables = {name.rpartition(".")[2] for name in registered(spark_session, "TableFunctionRegistry")}
    assert tables == ALLOWED_TABLE_FUNCTIONS | REFUSED_TABLE_FUNCTIONS
