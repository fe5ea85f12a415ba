"""Tables without rows, which have the columns that PySpark would give them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import ParseException
from pyspark.sql import types

from millstream_reduce.spark.columns import empty_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NESTED = types.StructType([
    types.StructField("a b`c", types.ArrayType(types.StringType()), nullable=True),
    types.StructField("headers", types.MapType(types.StringType(), types.BinaryType()), nullable=False),
    types.StructField("inner", types.StructType([types.StructField("at", types.TimestampType())]), nullable=True),
    types.StructField("price", types.DecimalType(12, 3), nullable=True),
])  # fmt: skip


@pytest.mark.parametrize(
    "columns", [NESTED, types.StructType(), "delay DOUBLE, `an origin` STRING NOT NULL", "a STRUCT<b: INT>"]
)
def test_a_table_without_rows_has_its_columns(spark_session: SparkSession, columns: types.StructType | str) -> None:
    table = empty_table(spark_session, columns)
    assert table.schema == spark_session.createDataFrame([], columns).schema
    assert table.collect() == []


def test_columns_that_are_none_are_a_syntax_error(spark_session: SparkSession) -> None:
    with pytest.raises(ParseException):
        empty_table(spark_session, "delay NUMBER OF, origin")
