"""A quick check of the SQL of reduces, with sqlglot if it is installed. It runs nothing and starts nothing.

Its findings are doubts, not problems: sqlglot reads nearly all of Spark's SQL and some text that is not SQL. Only Spark
can tell whether a query is valid.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from millstream.spec.problems import Path

if TYPE_CHECKING:
    from millstream.spec.models import Pipeline

_DIALECT = "spark"

_CALLS_JAVA = "which can run any Java code with the permissions of the runner"
_READS_FILES = "whose options can name files and addresses to read"
_FETCHES = "which fetches the addresses of document types that are named in the records"
UNSAFE_FUNCTIONS = {
    "reflect": _CALLS_JAVA,
    "try_reflect": _CALLS_JAVA,
    "java_method": _CALLS_JAVA,
    "from_avro": _READS_FILES,
    "to_avro": _READS_FILES,
    "schema_of_avro": _READS_FILES,
    "from_protobuf": _READS_FILES,
    "to_protobuf": _READS_FILES,
    "from_xml": _READS_FILES,
    "schema_of_xml": _READS_FILES,
    "xpath": _FETCHES,
    "xpath_boolean": _FETCHES,
    "xpath_double": _FETCHES,
    "xpath_float": _FETCHES,
    "xpath_int": _FETCHES,
    "xpath_long": _FETCHES,
    "xpath_number": _FETCHES,
    "xpath_short": _FETCHES,
    "xpath_string": _FETCHES,
}
"""Spark functions that a query may not call, and why."""
_TABLE = "window"


def doubts_of(pipeline: Pipeline) -> Iterator[tuple[Path, str]]:
    """Queries that may not be SQL: their places in the file, and the doubt with its place in the query."""
    for index, vertex in enumerate(pipeline.spec.vertices):
        sql = vertex.sql
        if sql is None:
            continue
        doubt = doubt_of(sql.query) or (None if sql.unsafe else unsafe_part(sql.query))
        if doubt is not None:
            yield ("spec", "vertices", index, vertex.key, "sql", "query"), doubt


def doubt_of(query: str) -> str | None:
    """What seems wrong with a query; None if nothing does, or if sqlglot is not installed."""
    try:
        # Imported here because only pipelines with SQL need it, and it may not be installed.
        import sqlglot
        from sqlglot.errors import ParseError, SqlglotError
    except ImportError:
        return None
    logging.getLogger("sqlglot").setLevel(logging.CRITICAL)
    try:
        statements = sqlglot.parse(query, dialect=_DIALECT)
    except ParseError as problem:
        place = problem.errors[0] if problem.errors else {}
        near = f" near `{place['highlight']}`" if place.get("highlight") else ""
        return (
            f"the query may not be valid SQL{near} (line {place.get('line', 1)}, column {place.get('col', 1)} of "
            "the query)"
        )
    except SqlglotError:
        return "the query may not be valid SQL: a text or comment in it may not be closed"
    found = [statement for statement in statements if statement is not None]
    if len(found) != 1:
        return f"the query may contain {len(found)} statements instead of one"
    if not isinstance(found[0], sqlglot.exp.Query | sqlglot.exp.Values | sqlglot.exp.Alias):
        return f"the query may be a {found[0].key.upper()} instead of a SELECT"
    return None


def unsafe_part(query: str) -> str | None:
    """What a query does beyond computing over its window, as far as its text shows; None if nothing is found."""
    try:
        import sqlglot
        from sqlglot import exp
        from sqlglot.errors import SqlglotError
    except ImportError:
        return None
    try:
        statements = sqlglot.parse(query, dialect=_DIALECT)
    except (SqlglotError, RecursionError):
        return None
    for statement in statements:
        if statement is None:
            continue
        known = {_TABLE, *(common.alias.lower() for common in statement.find_all(exp.CTE))}
        for function in statement.find_all(exp.Anonymous):
            if (name := function.name.lower()) in UNSAFE_FUNCTIONS:
                return f"the query calls `{name}`, {UNSAFE_FUNCTIONS[name]}"
        for table in statement.find_all(exp.Table):
            if table.name and (table.db or table.name.lower() not in known):
                read = ".".join(part.name for part in table.parts)
                return f"the query reads `{read}`, but the query of a reduce reads only the records of its window"
        if statement.find(exp.QueryTransform) is not None:
            return "the query runs an external program (TRANSFORM)"
    return None
