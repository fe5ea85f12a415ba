"""Objects in tests: inputs of a function as records, and its outputs as objects again. A part of the test kit.

Above it: `testing` and `testing_reduce`. Below it: `typed_values`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millstream_udf.function_types import UNKNOWN
from millstream_udf.misfits import Misfit
from millstream_udf.typed_values import JSON, decoder
from millstream_udf.values import Record


def record_of(item: Any, event_time_us: int = 0) -> Record[Any]:
    """An input: a record unchanged, or a record with this value."""
    match item:
        case Record():
            return item
        case str():
            return Record(item.encode(), event_time_us)
        case bytes():
            return Record(item, event_time_us)
    if JSON.takes(type(item)) or isinstance(item, list):
        return Record(JSON.one(item), event_time_us)
    raise TypeError(
        f"inputs must be bytes, str, objects that can be written as JSON, or Records, not {type(item).__name__}"
    )


def objects_of(values: Sequence[bytes], kind: Any) -> list[Any]:
    """Decoded outputs; UNKNOWN for any JSON. Raises `ValueError` for one that does not fit."""
    decode = decoder(Any if kind is UNKNOWN else kind)
    objects: list[Any] = []
    for number, value in enumerate(values):
        try:
            objects.append(decode.one(value))
        except Misfit as misfit:
            raise ValueError(f"output {number}: {misfit}") from None
    return objects
