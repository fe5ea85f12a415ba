"""SQL programs: a query over each of many windows, as one Spark job.

    rows of the log ─► view of the table `window` ─► the query ─► one JSON object a row ─► Arrow

Above it: `jobs`. Below it: `rows` in Spark's tasks, `batching` for many windows in one query. Works with classic
sessions and with Spark Connect.

The value of a result is a JSON object of the selected columns: NULL is written as null, times as RFC 3339 in UTC,
binaries in base64. A column `key` (or `keys`, a list of parts) becomes the result's key and stays in the object; `tags`
and `headers` become its tags and headers and do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count, pairwise

import pyarrow as pa
from pyspark.errors import ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as spark_types

from millstream import codes
from millstream.errors import UserError
from millstream.json_parser import parse_json
from millstream.wire.reduce.v1 import engine_pb2
from millstream_reduce.spark import errors, safety
from millstream_reduce.spark.batching import TABLE, OneByOneError, batched
from millstream_reduce.spark.columns import (
    COLUMNS,
    arrow_type,
    empty_table,
    fields_of_avro,
    needed_columns,
    needed_fields,
    parse_fields,
    reads_table,
)
from millstream_reduce.spark.decoding import AvroDecoder, CsvDecoder, Decoder, Field, JsonDecoder
from millstream_reduce.spark.manifest import SPAN_COLUMNS, WINDOW, JobWindows, Manifest, manifest_of
from millstream_reduce.spark.partials import PartialColumn, Partials
from millstream_reduce.spark.preaggregation import ColumnPlace, Preaggregation, partial_name, preaggregated
from millstream_reduce.spark.prepared import run_job
from millstream_reduce.spark.rows import Columns, RowReader, field_column

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
    """The rows of a query with these columns, followed by the window's index, as results."""
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
    """A list of texts: a list unchanged, anything else as the only item."""
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


SMALL_JOB_ROWS = 300_000
"""Up to here one task is faster than several."""
SMALL_JOB_ROWS_OF_TWO = 2_000_000
"""The same if there are only two at a time: a task keeps two processors busy, its own and its Python worker's. A
million rows take one task 350 ms and 0.55 s of processor time, two tasks 370 to 450 ms and 0.65 to 0.8 s."""
ONE_BY_ONE_WINDOWS = 32
"""The most windows in a job in which each window has its own plan."""

_TYPES: dict[str, spark_types.DataType] = {
    "key": spark_types.StringType(),
    "keys": spark_types.ArrayType(spark_types.StringType()),
    "event_time": spark_types.TimestampType(),
    "headers": spark_types.MapType(spark_types.StringType(), spark_types.BinaryType()),
    "window_start": spark_types.TimestampType(),
    "window_end": spark_types.TimestampType(),
    "window_early": spark_types.IntegerType(),
}
_PARTIAL_TYPES: dict[str, spark_types.DataType] = {
    "rows": spark_types.LongType(),
    "count": spark_types.LongType(),
    "sum": spark_types.LongType(),
    "sum_double": spark_types.DoubleType(),
}
"""Types of partial results; the others have the type of their input."""
_LISTS = ("keys", "tags")
"""Result columns that are lists of texts."""
_PLACEHOLDER = "__rows_of_windows"
_names = count()


@dataclass(frozen=True, slots=True)
class ReadTable:
    """The table `window`, or the part of it that is read."""

    columns: Columns
    """What is read of every row."""
    rows: spark_types.StructType
    """Columns of the rows from the tasks."""
    window: tuple[str, ...]
    """The columns of the table, as expressions over those, the window's index first."""


@dataclass(frozen=True, eq=False, slots=True)
class SqlPlan:
    """A query that Spark has analysed."""

    query: str
    table: ReadTable
    results: tuple[ResultColumn, ...]
    together: str
    """The query over many windows, whose rows are in `_PLACEHOLDER`."""
    one_by_one: str
    """Why many windows cannot share one query; empty if they can."""
    partials: Partials | None = None
    """What the tasks return instead of the rows that they read, if anything."""

    @property
    def result_columns(self) -> str:
        """The columns of the result as Spark writes a table's."""
        return ", ".join(f"{quoted(column.name)} {column.kind.simpleString()}" for column in self.results)


class QueryError(UserError):
    """The query cannot run. The message says where and why."""

    def __init__(self, message: str) -> None:
        super().__init__(codes.QUERY, message)


def plan_sql(spark: SparkSession, program: engine_pb2.SqlProgram) -> SqlPlan:
    """Let Spark analyse a query. Raises `QueryError`."""
    query = program.query.strip().rstrip(";")
    declared = _declared(spark, program.value)
    fields = tuple(field.name for field in declared)
    full = _table(program.value, declared, COLUMNS, fields)
    if not program.unsafe:
        _check_text(spark, query)
    with _view(spark, empty_table(spark, full.rows), full.window) as name:
        results = _analyse(spark, alone(query, name), query)
    _check_results(results)
    if not reads_table(query, TABLE):
        raise QueryError(f"the query does not read the table `{TABLE}`: its results would not depend on the records")
    names, reads_value = needed_columns(query)
    fields = needed_fields(query, fields) if reads_value else ()
    pruned = _table(program.value, declared, names, fields, raw=reads_value)
    with _view(spark, empty_table(spark, pruned.rows), pruned.window) as name:
        together, one_by_one = "", ""
        try:
            together = _together(spark, query, name, results)
        except (OneByOneError, QueryError) as error:
            one_by_one = str(error)
            _analyse(spark, alone(query, name), query)
    plan = SqlPlan(query, pruned, results, together, one_by_one)
    return plan if one_by_one else _preaggregated(spark, program.value, declared, plan) or plan


def _preaggregated(
    spark: SparkSession, value: engine_pb2.ValueSchema, declared: spark_types.StructType, plan: SqlPlan
) -> SqlPlan | None:
    """The same, with most of the work done before Spark gets the rows; None if that is not possible."""
    kinds = {field.name: arrow_type(field.dataType) for field in declared}
    of = preaggregated(plan.query, kinds, [column.name for column in plan.results])
    if of is None:
        return None
    table, partials = _partial_table(value, declared, of)
    with _view(spark, empty_table(spark, table.rows), table.window) as name:
        try:
            together = _together(spark, of.query, name, plan.results)
        except (OneByOneError, QueryError):
            return None
    return replace(plan, table=table, together=together, partials=partials)


def _together(spark: SparkSession, query: str, view: str, results: Sequence[ResultColumn]) -> str:
    """The query over many windows. Raises `OneByOneError` unless Spark sees the same columns in it."""
    together = batched(query, _PLACEHOLDER)
    seen = _analyse(spark, together.replace(_PLACEHOLDER, view), query)
    if seen != (*results, ResultColumn(WINDOW, spark_types.IntegerType())):
        raise OneByOneError(f"over many windows it would have other columns: {[column.name for column in seen]}")
    return together


def compute_sql(spark: SparkSession, plan: SqlPlan, windows: JobWindows, parallelism: int) -> pa.Table:
    """The results of all windows: window, keys, value, tags, headers. Raises what Spark raises."""
    if plan.one_by_one and len(windows) > 1:
        return pa.concat_tables(
            _one_by_one(spark, plan, windows[at : at + ONE_BY_ONE_WINDOWS], at)
            for at in range(0, len(windows), ONE_BY_ONE_WINDOWS)
        )
    rows = int(windows.table.rows.sum())
    tasks = parallelism if rows > (SMALL_JOB_ROWS if parallelism > 2 else SMALL_JOB_ROWS_OF_TWO) else 1
    largest = int(windows.table.rows.max(initial=0))
    whole_windows = plan.one_by_one == "" and tasks > 1 and largest * tasks <= rows * 1.25
    manifest = manifest_of(windows, tasks, whole_windows=whole_windows)

    @contextmanager
    def open_frame(of_run: Manifest | None) -> Iterator[DataFrame]:
        reader = RowReader(of_run, plan.table.columns, plan.partials)
        # A plan for each task, if possible: one partition needs no shuffle.
        cuts = range(manifest.tasks + 1) if whole_windows else (0, manifest.tasks)
        bases = [_rows(spark, plan, reader, start, stop) for start, stop in pairwise(cuts)]
        with _views(spark, bases, plan.table.window) as names:
            queries = [
                alone(plan.query, name, index=0) if plan.one_by_one else plan.together.replace(_PLACEHOLDER, name)
                for name in names
            ]
            yield spark.sql("\nUNION ALL\n".join(as_results(plan.results, query) for query in queries))

    return run_job(spark, (plan, manifest.tasks, whole_windows), open_frame, manifest)


def _one_by_one(spark: SparkSession, plan: SqlPlan, windows: JobWindows, first: int) -> pa.Table:
    readers = [RowReader(manifest_of(window, whole_windows=True), plan.table.columns) for window in windows.each()]
    with _views(spark, [_rows(spark, plan, reader, 0, 1) for reader in readers], plan.table.window) as names:
        statements = [
            as_results(plan.results, alone(plan.query, name, index=index))
            for index, name in enumerate(names, start=first)
        ]
        return spark.sql("\nUNION ALL\n".join(f"({statement})" for statement in statements)).toArrow()


def _rows(spark: SparkSession, plan: SqlPlan, reader: RowReader, start: int, stop: int) -> DataFrame:
    return spark.range(start, stop, 1, stop - start).mapInArrow(reader, plan.table.rows)


@contextmanager
def _views(spark: SparkSession, bases: Sequence[DataFrame], window: Sequence[str]) -> Iterator[list[str]]:
    """Each of `bases` as a table `window`, with its own name."""
    names = [f"__rows_{next(_names)}" for _ in bases]
    try:
        for name, base in zip(names, bases, strict=True):
            base.selectExpr(*window).createOrReplaceTempView(name)
        yield names
    finally:
        for name in names:
            spark.catalog.dropTempView(name)


@contextmanager
def _view(spark: SparkSession, base: DataFrame, window: Sequence[str]) -> Iterator[str]:
    with _views(spark, [base], window) as (name,):
        yield name


def _check_text(spark: SparkSession, query: str) -> None:
    """Check it before Spark looks up any name in it. Raises `QueryError`."""
    try:
        safety.check_text(spark, query, TABLE)
    except ParseException as error:
        raise QueryError(errors.sentence(str(error))) from error
    except safety.UnsafeQueryError as error:
        raise QueryError(str(error)) from error


def _analyse(spark: SparkSession, statement: str, query: str) -> tuple[ResultColumn, ...]:
    try:
        schema = spark.sql(statement).schema
    except ParseException as error:
        raise QueryError(_syntax_fault(spark, query)) from error
    except PySparkException as error:
        text = str(error)
        message = errors.sentence(text, QUERY_LINE)
        if "UNRESOLVED_ROUTINE" in text:
            message = errors.with_suggestion(message, [row[0] for row in spark.sql("SHOW FUNCTIONS").collect()])
        raise QueryError(message) from error
    return tuple(ResultColumn(field.name, field.dataType) for field in schema)


def _syntax_fault(spark: SparkSession, query: str) -> str:
    """What Spark says about the text alone: users should not read about the statement around it."""
    try:
        spark.sql(f"EXPLAIN\n{query}")
    except ParseException as error:
        return errors.sentence(str(error), QUERY_LINE)
    except PySparkException:
        pass
    return "it is not a query: write one SELECT"


def _check_results(results: Sequence[ResultColumn]) -> None:
    seen: set[str] = set()
    for column in results:
        name = column.name.lower()
        if name in seen:
            raise QueryError(f"two result columns are named {column.name}: give one another name with AS")
        if name.startswith(WINDOW):
            raise QueryError(f"the name {column.name} is taken: give the column another one with AS")
        seen.add(name)
        if name == "headers" and not isinstance(column.kind, spark_types.MapType):
            raise QueryError("the result column headers is a MAP<STRING, BINARY>: give it another name with AS")
        if name in _LISTS and not _is_list(column.kind):
            raise QueryError(
                f"the result column {name} is a list of texts, and here it is {column.kind.simpleString()}: write "
                f"array(…) AS {name}, or give it another name with AS"
            )


def _is_list(kind: spark_types.DataType) -> bool:
    """Of what can be written as a text, or NULL for none."""
    if not isinstance(kind, spark_types.ArrayType):
        return isinstance(kind, spark_types.NullType)
    return not isinstance(
        kind.elementType, (spark_types.ArrayType, spark_types.MapType, spark_types.StructType, spark_types.BinaryType)
    )


def _declared(spark: SparkSession, value: engine_pb2.ValueSchema) -> spark_types.StructType:
    try:
        if value.format == "avro":
            return fields_of_avro(parse_json(value.avro_schema))
        return parse_fields(spark, value.fields) if value.fields else spark_types.StructType()
    except PySparkException as error:
        raise QueryError(f"value.fields: {errors.sentence(str(error))}") from error
    except ValueError as error:
        raise QueryError(f"value: {error}") from error


def _table(
    value: engine_pb2.ValueSchema,
    declared: spark_types.StructType,
    names: Sequence[str],
    fields: Sequence[str],
    *,
    raw: bool = True,
) -> ReadTable:
    """The table `window` with these columns and these fields of the value (raw: with the value itself)."""
    raw = raw and value.format in ("", "raw")
    needed = [field for field in declared if field.name in fields]
    decoder = _decoder(value, declared, fields) if needed else None
    kinds = {WINDOW: spark_types.IntegerType(), **{name: _TYPES[name] for name in names}}
    if raw:
        kinds["value"] = spark_types.BinaryType()
    window = list(kinds)
    if needed:
        column_of = {field_column(index): field for index, field in enumerate(needed)}
        kinds |= {column: field.dataType for column, field in column_of.items()}
        window.append(_value({column: field.name for column, field in column_of.items()}))
    return ReadTable(Columns(tuple(names), raw=raw, decoder=decoder), _struct(kinds), tuple(window))


def _value(members: Mapping[str, str]) -> str:
    """The column `value` of the table `window`, as an expression: the names of its members, by their columns."""
    return f"named_struct({', '.join(f'{text(name)}, {column}' for column, name in members.items())}) AS value"


def _struct(kinds: Mapping[str, spark_types.DataType]) -> spark_types.StructType:
    return spark_types.StructType([spark_types.StructField(name, kind) for name, kind in kinds.items()])


def _partial_table(
    value: engine_pb2.ValueSchema, declared: spark_types.StructType, of: Preaggregation
) -> tuple[ReadTable, Partials]:
    """The table `window` that a rewritten query reads, and how it is filled."""
    places = of.places()
    of_fields = {ColumnPlace(field.name.lower(), is_field=True): field for field in declared}
    needed = {place: field for place, field in of_fields.items() if place in places}
    column_of = {place: field_column(index) for index, place in enumerate(needed)}
    kind_of = {place: field.dataType for place, field in needed.items()}
    for place in places:
        if not place.is_field:
            column_of[place], kind_of[place] = place.name, _TYPES[place.name]
    spans = tuple(place.name for place in of.groups if place.name in SPAN_COLUMNS and not place.is_field)
    by = [place for place in of.groups if place.is_field or place.name not in spans]
    kinds = {WINDOW: spark_types.IntegerType(), **{column_of[place]: kind_of[place] for place in by}}
    kept = []
    for index, partial in enumerate(of.partials):
        column, kind = "", _PARTIAL_TYPES.get(partial.function)
        if partial.of is not None:
            column, kind = column_of[partial.of], kind or kind_of[partial.of]
        assert kind is not None
        kinds[partial_name(index)] = kind
        kept.append(PartialColumn(partial_name(index), partial.function, column, arrow_type(kind)))
    kinds |= {name: _TYPES[name] for name in spans}
    window = [column for column in kinds if column not in column_of.values() or column in COLUMNS]
    if members := {column_of[place]: place.name for place in by if place.is_field}:
        window.append(_value(members))
    decoder = _decoder(value, declared, [field.name for field in needed.values()]) if needed else None
    read = tuple(place.name for place in places if not place.is_field and place.name not in spans)
    partials = Partials((WINDOW, *(column_of[place] for place in by)), tuple(kept), spans)
    return ReadTable(Columns(read, decoder=decoder), _struct(kinds), tuple(window)), partials


def _decoder(value: engine_pb2.ValueSchema, declared: spark_types.StructType, names: Sequence[str]) -> Decoder:
    fields = tuple(Field(field.name, arrow_type(field.dataType)) for field in declared)
    needed = tuple(field for field in fields if field.name in names)
    match value.format:
        case "json":
            return JsonDecoder(needed)
        case "csv":
            return CsvDecoder(needed, fields, value.delimiter or ",")
        case "avro":
            return AvroDecoder(needed, value.avro_schema)
    raise QueryError(f"values cannot be decoded as {value.format!r}: json, csv, avro or raw")
