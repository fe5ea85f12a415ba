"""The SQL that is sent to Spark around a user's query. Pure.

Above it: `sql`. Below it: nothing.

The value of a result is a JSON object of the selected columns: NULL is written as null, times as RFC 3339 in UTC,
binaries in base64. A column `key` (or `keys`, a list of parts) becomes the result's key and stays in the object; `tags`
and `headers` become its tags and headers and do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import types as spark_types

from millstream_reduce.spark.batching import TABLE
from millstream_reduce.spark.manifest import WINDOW

QUERY_LINE = 2
"""Line of `alone` on which the user's query begins."""

_NOT_IN_VALUE = ("tags", "headers")
_JSON_OPTIONS = {
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "ignoreNullFields": "false",
}


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """A column of the query's result."""

    name: str
    kind: spark_types.DataType


def alone(query: str, view: str, index: int | None = None) -> str:
    """The query over the one window that is in `view`, with its index as the last column unless that is None."""
    columns = "*" if index is None else f"*, {index} AS {WINDOW}"
    return f"WITH {TABLE} AS (SELECT * EXCEPT ({WINDOW}) FROM {view}) SELECT {columns} FROM (\n{query}\n)"


def as_results(columns: Sequence[ResultColumn], query: str) -> str:
    """The rows of a query with these columns, and the window's index behind them, as results."""
    special = {column.name.lower(): column for column in reversed(columns)}
    in_value = [column.name for column in columns if column.name.lower() not in _NOT_IN_VALUE]
    members = ", ".join(f"{text(name)}, {quoted(name)}" for name in in_value)
    options = ", ".join(f"{text(name)}, {text(value)}" for name, value in _JSON_OPTIONS.items())
    value = f"to_json(named_struct({members}), map({options}))" if in_value else "'{}'"
    key = special.get("keys") or special.get("key")
    headers = special.get("headers")
    return (
        f"SELECT {WINDOW} AS window, {_list(key)} AS keys, {value} AS value, {_list(special.get('tags'))} AS tags, "
        f"CAST({quoted(headers.name) if headers else 'NULL'} AS MAP<STRING, BINARY>) AS headers FROM (\n{query}\n)"
    )


def _list(column: ResultColumn | None) -> str:
    """A list of texts: a list as it is, anything else as the only item."""
    if column is None:
        return "CAST(NULL AS ARRAY<STRING>)"
    name = quoted(column.name)
    if isinstance(column.kind, spark_types.ArrayType):
        return f"transform(CAST({name} AS ARRAY<STRING>), part -> coalesce(part, ''))"
    return f"CASE WHEN {name} IS NOT NULL THEN array(CAST({name} AS STRING)) END"


def quoted(name: str) -> str:
    """A name as SQL writes it."""
    return "`" + name.replace("`", "``") + "`"


def text(content: str) -> str:
    """A text as SQL writes it."""
    return "'" + content.replace("\\", "\\\\").replace("'", "\\'") + "'"
