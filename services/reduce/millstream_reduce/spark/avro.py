"""The fields of an Avro record, as Spark's types. Pure."""

from __future__ import annotations

from typing import Any

from pyspark.sql import types as spark_types

_SIMPLE: dict[str, spark_types.DataType] = {
    "boolean": spark_types.BooleanType(),
    "int": spark_types.IntegerType(),
    "long": spark_types.LongType(),
    "float": spark_types.FloatType(),
    "double": spark_types.DoubleType(),
    "string": spark_types.StringType(),
    "bytes": spark_types.BinaryType(),
}
_LOGICAL: dict[str, spark_types.DataType] = {
    "date": spark_types.DateType(),
    "timestamp-millis": spark_types.TimestampType(),
    "timestamp-micros": spark_types.TimestampType(),
    "local-timestamp-millis": spark_types.TimestampNTZType(),
    "local-timestamp-micros": spark_types.TimestampNTZType(),
    "uuid": spark_types.StringType(),
}


def fields_of_avro(schema: Any) -> spark_types.StructType:
    """The fields of a writer's schema. Raises `ValueError` for one that is not of a record, or cannot be read."""
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ValueError("the Avro schema is not of a record")
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
        known = _SIMPLE.get(schema) or named.get(schema)
        if known is None:
            raise ValueError(f"the Avro type {schema!r} is unknown, or contains itself")
        return known
    if schema.get("logicalType") == "decimal":
        return spark_types.DecimalType(schema["precision"], schema.get("scale", 0))
    if schema.get("logicalType") in _LOGICAL:
        return _LOGICAL[schema["logicalType"]]
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
