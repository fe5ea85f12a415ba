"""The types that are texts in JSON, and that Arrow does not read in the forms in which `json_rows` writes them.

    dates, times                     a text
    timestamps in s or ms            a text with six digits after the seconds
    bytes                            a text in base64

Above it: `arrow_json`. Below it: pyarrow, imported only if a function uses it.
"""

from __future__ import annotations

import base64
import binascii
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_DAY = "1970-01-01T"
"""Before a time, which Arrow reads only together with a date."""


@lru_cache(maxsize=64)
def written(schema: pa.Schema) -> pa.Schema:
    """The same fields with the types that Arrow reads."""
    import pyarrow as pa

    return pa.schema([field.with_type(_written(field.type)) for field in schema])


def _written(kind: Any) -> Any:
    import pyarrow as pa

    types = pa.types
    if types.is_date(kind) or types.is_time(kind) or _is_bytes(kind):
        return pa.string()
    if types.is_timestamp(kind) and kind.unit in ("s", "ms"):
        return pa.timestamp("us", kind.tz)
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_written(kind.value_type)))
    if types.is_struct(kind):
        return pa.struct([field.with_type(_written(field.type)) for field in kind])
    return kind


def _is_bytes(kind: Any) -> bool:
    import pyarrow as pa

    return any(of(kind) for of in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary))


def read(column: Any, kind: Any) -> Any:
    """A column of a type of `written` as one of its own type. Raises `pyarrow.ArrowInvalid` if a text is not a value of
    it, or has more digits."""
    import pyarrow as pa
    import pyarrow.compute as pc

    types = pa.types
    if column.type == kind:
        return column
    if types.is_list(kind):
        values = read(column.values, kind.value_type)
        return pa.ListArray.from_arrays(column.offsets, values, type=kind, mask=column.is_null())
    if types.is_struct(kind):
        members = [read(column.field(at), field.type) for at, field in enumerate(kind)]
        return pa.StructArray.from_arrays(members, fields=list(kind), mask=column.is_null())
    if _is_bytes(kind):
        return pa.array([None if text is None else _decoded(text) for text in column.to_pylist()], kind)
    if types.is_time(kind):
        day, nothing = pa.scalar(_DAY), pa.scalar("")
        whole: Any = pc.binary_join_element_wise(day, column, nothing)
        return whole.cast(pa.timestamp("ns")).cast(pa.time64("ns")).cast(kind)
    return column.cast(kind)


def _decoded(text: str) -> bytes:
    import pyarrow as pa

    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise pa.ArrowInvalid(str(error)) from None
