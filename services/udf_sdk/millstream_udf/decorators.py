"""The decorators `@udf.map`, `@udf.source_transform`, `@udf.sink`, `@udf.source` and `@udf.reduce`.

They store their options on the function and return it unchanged, so it can still be called and tested directly.
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
    on_timer: Callable[..., Any] | None = None,
) -> Callable[[_F], _F]: ...
def map(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Marks a function that turns a record into no output, one output or several.

    `batch=True`: the function takes a list of records and returns a list with an output for each; an exception in
    place of an output is the outcome of that record. `arrow=True`: it takes and returns a pyarrow.RecordBatch; with
    `schema`, values are JSON objects with these fields, decoded into columns. `concurrency`: the number of records
    that an async function may work on at a time (default 1,000). `threads`: the number of threads for a function that
    blocks; without it, calls of a function that is not async never overlap.

    `decode`: the type to which JSON values are decoded (a dataclass, a model of pydantic or msgspec, a TypedDict,
    `dict`, ...), or a function that takes bytes. Default: the annotation of the first parameter. `encode`: a function
    that turns a returned value into bytes. Default: dictionaries, dataclasses and models become JSON.

    `on_timer`: the function that gets the timers which this one sets (`millstream_udf.timer`) when their time has come.
    A class has a method of this name.
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
    """As `map`, but runs right after a source, before the watermark is computed, so it may also set event times."""
    return _decorate(definition.SOURCE_TRANSFORM, function, options)


@overload
def sink(function: _F, /) -> _F: ...
@overload
def sink(
    *, batch: bool = False, decode: Any = None, concurrency: int | None = None, threads: int = 0
) -> Callable[[_F], _F]: ...
def sink(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Marks a function that writes a record and returns nothing. `record.id` is the same at every attempt.

    `batch=True`: the function takes a list of records and returns nothing, or a list with None or an exception for
    each. `decode`: as for a map.

    A class with these methods, async or not, keeps positions, so that each record counts exactly once:
    `open(self, lane)` stores `lane.epoch` in the target under `lane.name`, unless the target has this epoch or a
    higher one (raise `Fenced`), and returns the position that the target has; `write(self, record)` adds a record to
    a transaction; `flush(self, position)` stores the position, if the target still has `lane.epoch` (otherwise raise
    `Fenced`), and commits both together. Optional: `check(self, record)` raises to refuse a record before anything is
    written; `close(self)` discards what was not flushed. Each opening of a lane has an instance.
    """
    return _decorate(definition.SINK, function, options)


@overload
def source(cls: _C, /) -> _C: ...
@overload
def source(*, encode: Callable[[Any], bytes] | None = None) -> Callable[[_C], _C]: ...
def source(cls: type | None = None, /, **options: Any) -> Any:
    """Marks a class with `async def read(self, context, records_max, timeout) -> Batch`. Each lane has one instance.

    Optional, all async: `open(self, position, partition, partitions)`, `committed(self, position)`, `close(self)`.
    `encode`: a function that turns a record's value into bytes. Default: dictionaries, dataclasses and models become
    JSON.
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
    """Marks a function that turns the records of a window (if keyed, of one key in it) into any number of results.

    Parameters named `keys`, `window` and `context` get these; a parameter with any other name gets the records. A
    class with `add(record)` and `result()` has one instance for each group. `arrow=True`: the records are a
    pyarrow.Table; the `add` of a class gets one pyarrow.RecordBatch after another. `pandas=True`: the records are a
    DataFrame. `schema`: the values are JSON objects with these fields, decoded into columns. `concurrency`: the
    number of groups that an async function may work on at a time (default 1,000). `decode` and `encode`: as for a
    map; a value that does not fit makes its group fail.
    """
    return _decorate(definition.REDUCE, function, options)


def _decorate(kind: Any, function: Callable[..., Any] | None, options: dict[str, Any]) -> Any:
    def decorate(target: Any) -> Any:
        definition.mark(kind, target, **options)
        return target

    return decorate if function is None else decorate(function)
