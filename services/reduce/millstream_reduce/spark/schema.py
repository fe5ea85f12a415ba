"""The declared fields of values: from Spark's DDL to Arrow.

Above it: SQL programs. Below it: the Spark session, which knows its own DDL.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as spark_types

_SIMPLE: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


def parse_fields(spark: SparkSession, ddl: str) -> spark_types.StructType:
    """The columns in `ddl`. Raises Spark's `ParseException`, and `ValueError` for types that cannot be decoded."""
    schema = empty_table(spark, ddl).schema
    for field in schema:
        arrow_type(field.dataType)
    return schema


def empty_table(spark: SparkSession, columns: spark_types.StructType | str) -> DataFrame:
    """A table of these columns that has no rows. Raises Spark's `ParseException`."""
    if type(spark) is not SparkSession:
        return spark.createDataFrame([], columns)
    # PySpark would send no rows to the JVM through a file and an RDD, which takes a third of a second the first time.
    java: Any = spark._jsparkSession
    if isinstance(columns, str):
        kind = java.sessionState().sqlParser().parseTableSchema(columns)
    else:
        kind = java.parseDataType(columns.json())
    rows = spark._jvm.java.util.ArrayList()  # type: ignore[union-attr]  # a classic session has one
    return DataFrame(java.createDataFrame(rows, kind), spark)


def arrow_type(kind: spark_types.DataType) -> pa.DataType:
    """What Spark takes for a column of this type. Raises `ValueError`."""
    match kind:
        case spark_types.DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
        case spark_types.StructType():
            return pa.struct([pa.field(field.name, arrow_type(field.dataType)) for field in kind])
        case spark_types.ArrayType():
            return pa.list_(arrow_type(kind.elementType))
        case spark_types.MapType():
            return pa.map_(arrow_type(kind.keyType), arrow_type(kind.valueType))
    simple = _SIMPLE.get(kind.simpleString())
    if simple is None:
        raise ValueError(f"values cannot be decoded as {kind.simpleString().upper()}")
    return simple
