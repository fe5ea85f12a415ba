"""The definition of a user's function: determined once, when it is loaded, so that nothing is decided per record.

Above it: the decorators and the loader. Below it: users' functions. It does not run anything.

Cases, for a function with parameters p1 and maybe p2:
 1. p1 annotated `bytes`: it takes the value. Annotated `Record`: the record. Annotated with another type, or with
    `decode=` in the decorator: the value as that type. `Record[T]`, or `Record` and `decode=T`: the record with such a
    value.
 2. p1 without annotation: an undecorated function takes the value; a decorated one the record, unless p1 is called
    `value`, or there is a `decode=` and p1 is not called `record`.
 3. p2, when there is one: the context. A map's parameter called `state` (with `batch=True`: `states`) or annotated
    `State`: what a plain function remembers for the key; in a batch, for each record.
 4. `batch=True`: p1 is the list of them (`list[bytes]`, `list[Record]`, `list[T]`, or by the name `values`).
 5. `arrow=True`: p1 is a pyarrow.RecordBatch.

Reduce functions have parameters of their own: see `defining`.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from millstream_udf.function_types import UNKNOWN, Gives, RecordsAnnotation, given, taken
from millstream_udf.json_types import UnsupportedType, name_of
from millstream_udf.returned_values import refuse_returned
from millstream_udf.state_specs import StateSpec
from millstream_udf.states import Declaration
from millstream_udf.tables import TableSpec
from millstream_udf.typed_values import JSON, Decoder, Encoder, decoder
from millstream_udf.wire.udf.v1 import udf_pb2

if TYPE_CHECKING:
    import pyarrow as pa

ATTRIBUTE = "__millstream_udf__"
"""Attribute in which a decorator stores its options on the function."""

MAP, SOURCE_TRANSFORM = udf_pb2.KIND_MAP, udf_pb2.KIND_SOURCE_TRANSFORM
SINK, SOURCE, REDUCE = udf_pb2.KIND_SINK, udf_pb2.KIND_SOURCE, udf_pb2.KIND_REDUCE
KIND_NAMES = {MAP: "map", SOURCE_TRANSFORM: "source transform", SINK: "sink", SOURCE: "source", REDUCE: "reduce"}
DECORATORS = {
    MAP: "@udf.map",
    SOURCE_TRANSFORM: "@udf.source_transform",
    SINK: "@udf.sink",
    SOURCE: "@udf.source",
    REDUCE: "@udf.reduce",
}

CONCURRENCY_VARIABLE = "MILLSTREAM_UDF_CONCURRENCY"
CONCURRENCY = 1000
"""Default number of records of a stream that an async function processes concurrently."""


class Takes(enum.Enum):
    """The kind of the first parameter."""

    VALUE = "value"
    RECORD = "record"
    VALUES = "list of values"
    RECORDS = "list of records"
    ARROW = "record batch"
    FRAME = "data frame"


class Flavour(enum.Enum):
    """How the function is called."""

    SYNC = "def"
    GENERATOR = "def with yield"
    ASYNC = "async def"
    ASYNC_GENERATOR = "async def with yield"


@dataclass(frozen=True, slots=True)
class Options:
    """The arguments of a decorator."""

    kinds: tuple[udf_pb2.Kind.ValueType, ...]
    batch: bool = False
    arrow: bool = False
    concurrency: int | None = None
    threads: int = 0
    pandas: bool = False
    schema: pa.Schema | None = None
    decode: Any = None
    encode: Callable[[Any], bytes] | None = None
    on_timer: Callable[..., Any] | None = None


@dataclass(frozen=True, slots=True)
class ReduceShape:
    """How a reduce function is called."""

    arguments: tuple[str, ...]
    """Which of keys, records, window and context it takes, in this order; for a class, those of its constructor."""
    per_group: bool = False
    """Whether it is a class with `add` and `result`, with one instance for each group."""
    add_is_async: bool = False


@dataclass(frozen=True, slots=True)
class Definition:
    """A function and how to run it."""

    name: str
    kinds: tuple[udf_pb2.Kind.ValueType, ...]
    target: Any
    """The user's function, or class that is instantiated at the start (a source: once per lane)."""
    options: Options
    takes: Takes = Takes.RECORD
    wants_context: bool = False
    flavour: Flavour = Flavour.SYNC
    reduce: ReduceShape | None = None
    """Parameters of a reduce function. For a class with `result`, `flavour` is that of `result`."""
    decode: Decoder | None = None
    """Decodes the values for the function; None if it gets the bytes."""
    encode: Encoder = JSON
    """Encodes returned objects that are neither bytes nor text."""
    gives: Any = UNKNOWN
    """The type of such objects, if its annotation has one."""
    keeps_positions: bool = False
    """A class with open, write and flush, a sink: its target stores how far it is. (The parameter is that of write.)"""
    states: tuple[StateSpec, ...] = ()
    """What a map remembers for each key."""
    declarations: Mapping[str, Declaration] | None = None
    """The states as a class declares them; None for those of a plain function."""
    tables: Mapping[str, TableSpec] = field(default_factory=dict)
    """The tables that a class declares, by name."""
    arguments: tuple[str, ...] = ()
    """Which of context and state follow the first argument, in this order."""
    on_timer: Definition | None = None
    """The function that gets the timers of this one. Its first parameter is the timer."""

    @property
    def is_async(self) -> bool:
        return self.flavour in (Flavour.ASYNC, Flavour.ASYNC_GENERATOR)

    @property
    def is_lazy(self) -> bool:
        """Whether it has states that it reads while a call is in progress."""
        return any(spec.lazy for spec in self.states)

    @property
    def threads(self) -> int:
        """How many threads run it; 0: the one with the event loop. That one cannot wait for what a function reads."""
        return self.options.threads or int(self.is_lazy and not self.is_async)

    @property
    def waits(self) -> bool:
        """Whether a call may wait for something: for an async function, or for its threads."""
        return self.is_async or bool(self.threads)

    @property
    def for_sinks(self) -> bool:
        """Whether it can only be a sink, which need not return an output."""
        return self.kinds == (SINK,)

    @property
    def checks(self) -> bool:
        """It keeps positions, and may refuse records."""
        return self.decode is not None or callable(getattr(self.target, "check", None))

    @property
    def streams(self) -> bool:
        """Its outputs can be sent as it makes them."""
        takes_one = MAP in self.kinds and self.takes in (Takes.VALUE, Takes.RECORD)
        return takes_one and not self.states and not self.tables

    @property
    def takes_arrow(self) -> bool:
        """It takes columns, so another Arrow function need not write their values as JSON."""
        return MAP in self.kinds and self.takes is Takes.ARROW and self.options.schema is not None

    @property
    def concurrency(self) -> int:
        """Number of records (in a reduce, groups) of one stream that are processed concurrently."""
        if self.reduce is not None:
            return (self.options.concurrency or CONCURRENCY) if self.is_async else 1
        if self.keeps_positions:
            return 1
        if self.takes in (Takes.VALUE, Takes.RECORD):
            return (self.options.concurrency or CONCURRENCY) if self.is_async else max(1, self.options.threads)
        return self.options.concurrency or 1


def with_concurrency(definition: Definition, setting: str | None) -> Definition:
    """The definition with the pipeline's own concurrency (`setting`), which overrides the decorator's.

    Raises `TypeError` with what to change if the function does not support it. A reduce has no such setting.
    """
    if not setting or definition.reduce is not None:
        return definition
    if not setting.isdecimal() or int(setting) < 1:
        raise TypeError(f"{CONCURRENCY_VARIABLE} is {setting!r}, but must be a whole number of at least 1")
    number = int(setting)
    if definition.keeps_positions:
        if number > 1:
            raise TypeError(
                f"the pipeline has `concurrency: {number}`, but {definition.name} keeps positions, so it writes one "
                "record after another: give its vertex `concurrency: 1`, or leave it out"
            )
        return definition
    if definition.is_async:
        timer = definition.on_timer
        if timer is not None:
            timer = replace(timer, options=replace(timer.options, concurrency=number))
        return replace(definition, options=replace(definition.options, concurrency=number), on_timer=timer)
    if definition.options.threads:
        return replace(definition, options=replace(definition.options, threads=number))
    if number > 1:
        one = "record" if definition.takes in (Takes.VALUE, Takes.RECORD) else "batch"
        raise TypeError(
            f"the pipeline has `concurrency: {number}`, but {definition.name} is not async and processes one {one} "
            f"at a time. Make it async, or, for single records, let it run in threads (threads={number} in its "
            "decorator), or give its vertex `concurrency: 1`"
        )
    return definition


def positional_parameters(function: Any, name: str) -> list[inspect.Parameter]:
    """The parameters of a function that can be passed by their place. Raises `TypeError` for one that has to be passed
    by name, and `ValueError` for a function written in C without a signature."""
    found = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            raise TypeError(f"{name} has a keyword-only argument {parameter.name}, which is never passed")
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            found.append(parameter)
    return found


def takes_of(
    definition: Definition, parameter: inspect.Parameter, hints: Mapping[str, Any], *, many: bool, unless_said: bool
) -> tuple[bool, Decoder | None]:
    """Whether a parameter gets whole records (`unless_said`: if neither its annotation nor the decorator says), and the
    decoder of their values. Raises `TypeError`."""
    wanted, name = definition.options.decode, f"parameter {parameter.name} of {definition.name}"
    try:
        found = taken(hints.get(parameter.name, parameter.annotation), many=many)
    except UnsupportedType as error:
        if wanted is None:
            raise TypeError(f"{name}: {error}") from None
        found = RecordsAnnotation()
    if wanted is None:
        if found.kind in (UNKNOWN, bytes):
            return unless_said if found.whole is None else found.whole, None
        wanted = found.kind
    elif found.kind is bytes:
        raise TypeError(
            f"{name} is annotated bytes, but its decorator has decode={name_of(wanted)}: use one of the two"
        )
    elif found.whole is None:
        unless_said = parameter.name in ("record", "records")
    try:
        return unless_said if found.whole is None else found.whole, decoder(wanted)
    except UnsupportedType as error:
        raise TypeError(
            f"{name} takes {name_of(wanted)}, and values cannot be decoded to that: {error}. Annotate it bytes, or "
            "give a function that creates it from bytes: decode=..."
        ) from None


def gives_of(definition: Definition, hints: Mapping[str, Any]) -> Any:
    """The type of the objects that it returns, from its annotation. Raises `TypeError` if it cannot be sent."""
    options = definition.options
    return given(
        hints.get("return", inspect.Parameter.empty),
        Gives(
            nothing=definition.for_sinks,
            many=options.batch,
            table=options.arrow or options.pandas,
            anything=options.encode is not None,
        ),
        definition.name,
    )


COLUMNS = ("event_time", "keys", "headers")
"""Columns of a table besides those of the value."""


def check_schema(definition: Definition, columns: Sequence[str]) -> None:
    """Raises `TypeError` if the schema has a name in `columns`."""
    schema = definition.options.schema
    if schema is None:
        return
    if not hasattr(schema, "names") or not hasattr(schema, "field"):
        raise TypeError(f"{definition.name}: schema must be a pyarrow.Schema, not {type(schema).__name__}")
    taken = sorted(set(schema.names).intersection(columns))
    if taken:
        raise TypeError(
            f"{definition.name}: {', '.join(taken)} in the schema would hide the column of that name; rename the "
            "field in the function that writes the value"
        )


def flavour_of(function: Any) -> Flavour:
    """How the function is called. Raises `TypeError` for a generator function that also returns a value."""
    unwrapped = inspect.unwrap(function)
    if not inspect.isroutine(unwrapped):
        unwrapped = type(unwrapped).__call__
    if inspect.isasyncgenfunction(unwrapped):
        return Flavour.ASYNC_GENERATOR
    if inspect.iscoroutinefunction(unwrapped):
        return Flavour.ASYNC
    if not inspect.isgeneratorfunction(unwrapped):
        return Flavour.SYNC
    refuse_returned(function)
    return Flavour.GENERATOR


def mark(kind: udf_pb2.Kind.ValueType, target: Callable[..., Any], **given: Any) -> None:
    """Store a decorator's options on `target`."""
    options = Options(kinds=(kind,), **given)
    as_table = options.arrow or options.pandas
    faults = {
        "batch or arrow, not both": options.batch and options.arrow,
        "arrow or pandas, not both": options.arrow and options.pandas,
        "decode is for single values; with arrow=True or pandas=True use schema=": (
            options.decode is not None and as_table
        ),
        "schema is for functions with arrow=True or pandas=True": options.schema is not None and not as_table,
        f"concurrency must be at least 1, not {options.concurrency}": (
            options.concurrency is not None and options.concurrency < 1
        ),
        f"threads must be at least 0, not {options.threads}": options.threads < 0,
        "threads is for functions of single records, not for batch or arrow": (
            options.threads and (options.batch or options.arrow)
        ),
    }
    for fault, is_there in faults.items():
        if is_there:
            raise TypeError(f"{DECORATORS[kind]}: {fault}")
    setattr(target, ATTRIBUTE, options)
