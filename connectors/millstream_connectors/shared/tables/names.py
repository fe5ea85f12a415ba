"""How pipeline files name tables, their columns and types, whatever the database. Pure."""

from __future__ import annotations

import re
from typing import Annotated

from millstream import codes
from millstream.spec.values import After, Text, problem, text_check

NAME_BYTES_MAX = 63
"""Maximum length of names. PostgreSQL truncates longer names, so two could become the same; MySQL refuses them."""

_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9_ ]*(\([0-9, ]+\))?( with(out)? time zone)?(\[\])*")


def _checked_name(written: str) -> str:
    if "\0" in written or len(written.encode()) > NAME_BYTES_MAX:
        raise problem(
            codes.VALUE_MALFORMED, f"{written[:80]!r} is not a name in a database", f"at most {NAME_BYTES_MAX} bytes"
        )
    return written


def _checked_table(written: str) -> str:
    parts = written.split(".")
    if len(parts) > 2 or not all(parts):
        raise problem(codes.VALUE_MALFORMED, f"{written!r} is not the name of a table", "`table` or `schema.table`")
    for part in parts:
        _checked_name(part)
    return written


def _checked_query(written: str) -> str:
    text = written.strip().removesuffix(";").rstrip()
    if not text:
        raise problem(codes.VALUE_MALFORMED, f"{written[:80]!r} is not a query", "a SELECT")
    return text


ColumnName = Annotated[Text, After(_checked_name)]
"""A name in the database; it is case-sensitive if the database is."""
TableName = Annotated[Text, After(_checked_table)]
"""`table` or `schema.table`, as in the database."""
ColumnTypeName = Annotated[
    Text, text_check(_TYPE.fullmatch, "is not the type of a column", "such as `bigint`, `numeric(12, 2)` or `text`")
]
"""A type, as the database names it."""
Query = Annotated[Text, After(_checked_query)]
"""A SELECT, without a semicolon at its end."""


def table_parts(table: str) -> tuple[str | None, str]:
    """Schema and name."""
    schema, _, name = table.rpartition(".")
    return schema or None, name
