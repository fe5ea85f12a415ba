"""Records as rows of PostgreSQL's binary COPY, for tables whose columns have the types that JSON has. Pure.

The parser knows the types of the columns, so it builds only these members and immediately notices a value of another
type. A frame with such a value, or with anything that is not plain JSON, is written as text lines (`rows`), which
accept more values and report errors. Both forms write the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from millstream.json_text import structs_reader
from millstream_connectors.shared.tables.settings import TableColumn


def _whole(bits: int) -> Any:
    return Annotated[int, msgspec.Meta(ge=-(2 ** (bits - 1)), le=2 ** (bits - 1) - 1)]


_KINDS: Mapping[str, Any] = {
    "int2": _whole(16),
    "int4": _whole(32),
    "int8": _whole(64),
    # Not float4: the float nearest to a text may differ from the float nearest to its double.
    "float8": float,
    "text": str,
    "varchar": str,
    "bool": bool,
}

Row = msgspec.Struct
"""Its fields are the values of the columns."""


TypedRows = Callable[[Sequence[bytes]], Sequence[Row] | None]
"""A row for each value; None if one of them does not have these types, or is not JSON."""


def typed_rows(
    columns: Sequence[TableColumn], types: Mapping[str, str], keys: Container[str] = (), *, whole: bool = False
) -> TypedRows | None:
    """The converter for these columns, with `types` by name; None if text lines are required. Rows of the converter
    have a value in each column of `keys`. `whole`: their records have every member, which may be null."""
    members: dict[str, Any] = {}
    required: list[str] = []
    for column in columns:
        member, kind = column.field or column.name, types.get(column.name, "")
        if column.part is not None or "." in member or member in members or kind not in _KINDS:
            return None
        members[member] = _KINDS[kind]
        if column.name in keys:
            required.append(member)
    return structs_reader(members, required, whole=whole)
