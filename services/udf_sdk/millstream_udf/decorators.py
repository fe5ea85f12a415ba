"""The decorators `@udf.map`, `@udf.source_transform`, `@udf.sink`, `@udf.source` and `@udf.reduce`.

They leave their options on the function and return it unchanged, so it can still be called and tested as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from millstream_udf import definition

if TYPE_CHECKING:
    import pyarrow as pa

_F = TypeVar("_F", bound=Callable[..., Any])
_C = TypeVar("_C", bound=type)


@overload
def map(function: _F, /) -> _F: ...
@overload
def map(
    *,
    batch: bool = False,
    arrow: bool = False,
    schema: pa.Schema | None = None,
    decode: Any = None,
    encode: Callable[[Any], bytes] | None = None,
    concurrency: int | None = None,
    threads: int = 0,
) -> Callable[[_F], _F]: ...
def map(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """A function from a record to none, one or many outputs.

    `batch=True`: it takes a list of records and returns a list with the output of each (an exception in place of an
    output is that record's outcome). `arrow=True`: it takes and returns a pyarrow.RecordBatch; with `schema` the values
    are JSON objects with these fields, decoded into columns. `concurrency`: how many records of a stream an async
    function works on at a time (1,000). `threads`: run a function that blocks in so many threads; without it, no two
    calls of a function that is not async overlap.

    `decode`: the type that values are decoded to, from JSON (a dataclass, a model of pydantic or msgspec, a TypedDict,
    `dict`, ...), or a function from bytes; by default what the first parameter is annotated with. `encode`: a function
    from what is returned to bytes; by default dictionaries, dataclasses and models become JSON.
    """
    return _decorate(definition.MAP, function, options)


@overload
def source_transform(function: _F, /) -> _F: ...
@overload
def source_transform(
    *,
    batch: bool = False,
    arrow: bool = False,
    schema: pa.Schema | None = None,
    decode: Any = None,
    encode: Callable[[Any], bytes] | None = None,
    concurrency: int | None = None,
    threads: int = 0,
) -> Callable[[_F], _F]: ...
def source_transform(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """As `map`, run right behind a source, before the watermark is taken: it may also set event times."""
    return _decorate(definition.SOURCE_TRANSFORM, function, options)


@overload
def sink(function: _F, /) -> _F: ...
@overload
def sink(
    *, batch: bool = False, decode: Any = None, concurrency: int | None = None, threads: int = 0
) -> Callable[[_F], _F]: ...
def sink(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """A function that writes a record somewhere and returns nothing. `record.id` is the same at every attempt.

    `batch=True`: it takes a list of records and returns nothing, or a list that has None or an exception for each.
    `decode`: as for a map.
    """
    return _decorate(definition.SINK, function, options)


@overload
def source(cls: _C, /) -> _C: ...
@overload
def source(*, encode: Callable[[Any], bytes] | None = None) -> Callable[[_C], _C]: ...
def source(cls: type | None = None, /, **options: Any) -> Any:
    """A class with `async def read(self, context, records_max, timeout) -> Batch`; one instance for each lane.

    Optional, all async: `open(self, position, partition, partitions)`, `committed(self, position)`, `close(self)`.
    `encode`: a function from a record's value to bytes; by default dictionaries, dataclasses and models become JSON.
    """
    return _decorate(definition.SOURCE, cls, options)


@overload
def reduce(function: _F, /) -> _F: ...
@overload
def reduce(
    *,
    arrow: bool = False,
    pandas: bool = False,
    schema: pa.Schema | None = None,
    decode: Any = None,
    encode: Callable[[Any], bytes] | None = None,
    concurrency: int | None = None,
) -> Callable[[_F], _F]: ...
def reduce(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """A function from the records of a window (keyed: of one key in a window) to none, one or many results.

    Its parameters are given by name: `keys`, `window`, `context`; the one that is called otherwise gets the records.
    A class with `add(record)` and `result()` has an instance for each group. `arrow=True`: the records are a
    pyarrow.Table, and for a class `add` gets one pyarrow.RecordBatch after another. `pandas=True`: a DataFrame.
    `schema`: the values are JSON objects with these fields, decoded into columns. `concurrency`: how many groups an
    async function works on at a time (1,000). `decode` and `encode`: as for a map; a value that does not fit fails its
    group.
    """
    return _decorate(definition.REDUCE, function, options)


def _decorate(kind: Any, function: Callable[..., Any] | None, options: dict[str, Any]) -> Any:
    if function is not None:
        definition.mark(kind, function)
        return function

    def decorate(target: Any) -> Any:
        definition.mark(kind, target, **options)
        return target

    return decorate
