"""A quick look at the SQL of reduces, with sqlglot where it is installed. It runs nothing and starts nothing.

Its word is a doubt, not a fault: sqlglot reads nearly all of Spark's SQL and some that is none. What a query is worth
only Spark knows.
"""

import logging
from collections.abc import Iterator

from millstream.spec.faults import Path
from millstream.spec.models import Pipeline

_DIALECT = "spark"


def doubts_of(pipeline: Pipeline) -> Iterator[tuple[Path, str]]:
    """Places of queries that may be no SQL, and where in them."""
    for index, vertex in enumerate(pipeline.spec.vertices):
        if vertex.udf is None or vertex.udf.sql is None:
            continue
        doubt = doubt_of(vertex.udf.sql.query)
        if doubt is not None:
            yield ("spec", "vertices", index, "udf", "sql", "query"), doubt


def doubt_of(query: str) -> str | None:
    """What seems wrong with a query; None when nothing does, or nobody is there to ask."""
    try:
        # Imported here because only pipelines with SQL need it, and it is not always there.
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
        return f"the query may be no SQL{near} (its line {place.get('line', 1)}, column {place.get('col', 1)})"
    except SqlglotError:
        return "the query may be no SQL: a text or a comment in it may have no end"
    found = [statement for statement in statements if statement is not None]
    if len(found) != 1:
        return f"the query may be {len(found)} statements instead of one"
    if not isinstance(found[0], sqlglot.exp.Query | sqlglot.exp.Values | sqlglot.exp.Alias):
        return f"the query may be a {found[0].key.upper()} instead of a SELECT"
    return None
