"""Which columns and fields a query reads, and which types the declared fields of values have. Pure.

What a query does not read is neither decoded nor handed to Spark. Fields are declared in Spark's DDL or by an Avro
schema; a task needs their Arrow types.

Above it: SQL programs. Below it: the dialect, and the Spark session, which knows its own DDL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as spark_types
from sqlglot import exp

from millstream_reduce.spark.dialect import NotUnderstoodError, parse

COLUMNS = ("key", "keys", "event_time", "headers", "window_start", "window_end", "window_early")
"""The columns of the table `window`, apart from `value`."""


def needed_columns(query: str) -> tuple[tuple[str, ...], bool]:
    """The columns that are read, and whether `value` is."""
    text = query.lower()
    everything = _reads_all(query)
    names = tuple(name for name in COLUMNS if everything or name in text)
    return names, everything or "value" in text


def needed_fields(query: str, declared: Sequence[str]) -> tuple[str, ...]:
    """The declared fields of `value` that are read, in order."""
    text = query.lower()
    if _reads_all(query) or _reads_whole_value(query):
        return tuple(declared)
    return tuple(name for name in declared if name.lower() in text)


def reads_table(query: str, table: str) -> bool:
    """Whether a table is read anywhere; True if that is unknown."""
    return table in query.lower() and _has(query, exp.Table, lambda found: found.name.lower() == table)


def _reads_all(query: str) -> bool:
    """Whether there is a * that stands for columns."""
    return "*" in query and _has(
        query,
        exp.Star,
        lambda star: not (isinstance(star.parent, exp.Anonymous) and star.parent.name.lower() == "count"),
    )


def _reads_whole_value(query: str) -> bool:
    """Whether `value` appears alone somewhere, without a field after it."""
    return _has(
        query,
        exp.Identifier,
        lambda name: name.name.lower() == "value" and isinstance(name.parent, exp.Column) and name.arg_key == "this",
    )


def _has(query: str, kind: type[exp.Expr], is_meant: Callable[[exp.Expr], bool]) -> bool:
    """Whether there is a node of this kind that is meant; True if that is unknown."""
    try:
        return any(map(is_meant, parse(query).find_all(kind)))
    except NotUnderstoodError:
        return True


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
    # PySpark would send an empty table to the JVM through a file and an RDD, which takes a third of a second the first
    # time.
    java: Any = spark._jsparkSession
    if isinstance(columns, str):
        kind = java.sessionState().sqlParser().parseTableSchema(columns)
    else:
        kind = java.parseDataType(columns.json())
    rows = spark._jvm.java.util.ArrayList()  # type: ignore[union-attr]  # a classic session has one
    return DataFrame(java.createDataFrame(rows, kind), spark)


def arrow_type(kind: spark_types.DataType) -> pa.DataType:
    """The Arrow type that Spark accepts for a column of this type. Raises `ValueError`."""
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


_AVRO_TYPES: dict[str, spark_types.DataType] = {
    "boolean": spark_types.BooleanType(),
    "int": spark_types.IntegerType(),
    "long": spark_types.LongType(),
    "float": spark_types.FloatType(),
    "double": spark_types.DoubleType(),
    "string": spark_types.StringType(),
    "bytes": spark_types.BinaryType(),
}
_AVRO_LOGICAL: dict[str, spark_types.DataType] = {
    "date": spark_types.DateType(),
    "timestamp-millis": spark_types.TimestampType(),
    "timestamp-micros": spark_types.TimestampType(),
    "local-timestamp-millis": spark_types.TimestampNTZType(),
    "local-timestamp-micros": spark_types.TimestampNTZType(),
    "uuid": spark_types.StringType(),
}


def fields_of_avro(schema: Any) -> spark_types.StructType:
    """The fields of a writer's schema. Raises `ValueError` for one that is not a record's, or is invalid."""
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ValueError("the Avro schema does not describe a record")
    kind = _type(schema, {})
    assert isinstance(kind, spark_types.StructType)
    return kind


def _type(schema: Any, named: dict[str, spark_types.DataType]) -> spark_types.DataType:
    if isinstance(schema, list):
        others = [branch for branch in schema if branch != "null"]
        if len(others) != 1:
            raise ValueError(f"an Avro union of {len(others)} types other than null has no type in SQL")
        return _type(others[0], named)
    if isinstance(schema, str):
        known = _AVRO_TYPES.get(schema) or named.get(schema)
        if known is None:
            raise ValueError(f"the Avro type {schema!r} is unknown, or contains itself")
        return known
    if schema.get("logicalType") == "decimal":
        return spark_types.DecimalType(schema["precision"], schema.get("scale", 0))
    if schema.get("logicalType") in _AVRO_LOGICAL:
        return _AVRO_LOGICAL[schema["logicalType"]]
    return _complex(schema, named)


def _complex(schema: dict[str, Any], named: dict[str, spark_types.DataType]) -> spark_types.DataType:
    kind: spark_types.DataType
    match schema["type"]:
        case "record":
            fields = [spark_types.StructField(field["name"], _type(field["type"], named)) for field in schema["fields"]]
            kind = spark_types.StructType(fields)
        case "array":
            return spark_types.ArrayType(_type(schema["items"], named))
        case "map":
            return spark_types.MapType(spark_types.StringType(), _type(schema["values"], named))
        case "enum":
            kind = spark_types.StringType()
        case "fixed":
            kind = spark_types.BinaryType()
        case inner:
            return _type(inner, named)
    name = schema["name"]
    named[name] = kind
    if "namespace" in schema and "." not in name:
        named[f"{schema['namespace']}.{name}"] = kind
    return kind
