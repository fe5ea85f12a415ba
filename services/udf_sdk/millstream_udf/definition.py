"""The definition of a user's function: determined once, when it is loaded, so that nothing is decided per record.

Above it: the decorators and the loader. Below it: users' functions. It does not run anything.

Cases, for a function with parameters p1 and maybe p2:
 1. p1 annotated `bytes`: it takes the value. Annotated `Record`: the record. Annotated with another type, or with
    `decode=` in the decorator: the value as that type. `Record[T]`, or `Record` and `decode=T`: the record with such a
    value.
 2. p1 without annotation: an undecorated function takes the value; a decorated one the record, unless p1 is called
    `value`, or there is a `decode=` and p1 is not called `record`.
 3. p2, when there is one: the context.
 4. `batch=True`: p1 is the list of them (`list[bytes]`, `list[Record]`, `list[T]`, or by the name `values`).
 5. `arrow=True`: p1 is a pyarrow.RecordBatch.

Reduce functions have parameters of their own: see `reduce_definition`.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from millstream_udf.function_types import UNKNOWN, Gives, Taken, given, hints_of, taken
from millstream_udf.json_types import UnsupportedType, name_of
from millstream_udf.returned_values import refuse_returned
from millstream_udf.typed_values import JSON, Decoder, Encoder, decoder, encoder
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

    @property
    def is_async(self) -> bool:
        return self.flavour in (Flavour.ASYNC, Flavour.ASYNC_GENERATOR)

    @property
    def waits(self) -> bool:
        """Whether a call may wait for something: for an async function, or for its threads."""
        return self.is_async or bool(self.options.threads)

    @property
    def for_sinks(self) -> bool:
        """Whether it can only be a sink, which need not return an output."""
        return self.kinds == (SINK,)

    @property
    def checks(self) -> bool:
        """It keeps positions, and may refuse records."""
        return self.decode is not None or callable(getattr(self.target, "check", None))

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
        return replace(definition, options=replace(definition.options, concurrency=number))
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


def define(target: Any, name: str) -> Definition:
    """Inspect `target` once. Raises `TypeError` with what to change."""
    options: Options | None = getattr(target, ATTRIBUTE, None)
    decorated = options is not None
    if options is None:
        kinds = (REDUCE,) if _reduces(target) else (SINK,) if _keeps(target) else (MAP, SOURCE_TRANSFORM, SINK)
        options = Options(kinds=kinds)
    definition = Definition(name, options.kinds, target, options, encode=encoder(options.encode))
    _check_installed(definition)
    if SOURCE in options.kinds:
        _check_source(target, name)
        return definition
    if REDUCE in options.kinds:
        from millstream_udf.reduce_definition import shaped

        return shaped(definition)
    if SINK in options.kinds and _keeps(target):
        return _position_sink(definition)
    function, skip = target, 0
    if inspect.isclass(target):
        function, skip = getattr(target, "process", None), 1
        if function is None:
            raise TypeError(f"class {name} needs a method process(self, record)")
        if isinstance(inspect.getattr_static(target, "process"), (staticmethod, classmethod)):
            raise TypeError(f"{name}.process must be an ordinary method: process(self, record)")
    if not callable(function):
        raise TypeError(f"{name} is not a function but {type(target).__name__}")
    return _shaped(definition, function, skip, decorated=decorated)


def _reduces(target: Any) -> bool:
    """Whether an undecorated function can only be a reduce function: other functions take the value and the context."""
    if inspect.isclass(target):
        return all(callable(getattr(target, name, None)) for name in ("add", "result"))
    if not inspect.isfunction(target):
        return False
    required = [p for p in inspect.signature(target).parameters.values() if p.default is p.empty]
    return len(required) > 2 or any(p.name in ("keys", "records", "window") for p in required)


def _keeps(target: Any) -> bool:
    """Whether it is a class of a sink that keeps positions, or is meant to be one."""
    return inspect.isclass(target) and not hasattr(target, "process") and any(hasattr(target, m) for m in _KEEPING)


_KEEPING = ("open", "write", "flush")
"""The methods of a sink that keeps positions."""


def _position_sink(definition: Definition) -> Definition:
    target, name = definition.target, definition.name
    for method, meant in zip(_KEEPING, ("lane", "record", "position"), strict=True):
        function = inspect.getattr_static(target, method, None)
        if function is None:
            raise TypeError(f"{name} is a sink that keeps positions, and needs a method {method}(self, {meant})")
        if not inspect.isfunction(function):
            raise TypeError(f"{name}.{method} must be an ordinary method: {method}(self, {meant})")
    if definition.options.concurrency is not None or definition.options.threads:
        raise TypeError(f"{name} keeps positions, so it writes one record after another: no concurrency, no threads")
    for method in (*_KEEPING, "check"):
        function = getattr(target, method, None)
        if function is None:
            continue
        parameters = _parameters(function, f"{name}.{method}")[1:]
        if len(parameters) != 1:
            raise TypeError(f"{name}.{method} takes {len(parameters)} arguments beside self, and gets one")
        if flavour_of(function) in (Flavour.GENERATOR, Flavour.ASYNC_GENERATOR):
            raise TypeError(f"{name}.{method} must not yield")
    shaped = _shaped(definition, target.write, 1, decorated=True)
    if (check := getattr(target, "check", None)) is not None:
        one = replace(definition, options=replace(definition.options, batch=False))
        alone = _shaped(one, check, 1, decorated=True)
        if (alone.takes, alone.decode and alone.decode.name) != (
            {Takes.VALUES: Takes.VALUE, Takes.RECORDS: Takes.RECORD}.get(shaped.takes, shaped.takes),
            shaped.decode and shaped.decode.name,
        ):
            raise TypeError(
                f"{name}.check must take what {name}.write takes, one at a time: annotate both parameters alike, or "
                "neither"
            )
    return replace(shaped, keeps_positions=True)


_TAKES = {
    (False, False): Takes.VALUE,
    (False, True): Takes.RECORD,
    (True, False): Takes.VALUES,
    (True, True): Takes.RECORDS,
}
"""The kind of parameter, by whether it is a batch function and whether it takes whole records."""


def _shaped(definition: Definition, function: Any, skip: int, *, decorated: bool) -> Definition:
    options = definition.options
    flavour = flavour_of(function)
    parameters = _parameters(function, definition.name)[skip:]
    if len(parameters) not in (1, 2):
        raise TypeError(
            f"{definition.name} takes {len(parameters)} arguments; a function takes the value or the record, and "
            "optionally the context"
        )
    hints = hints_of(function)
    if options.arrow:
        takes = Takes.ARROW
        check_schema(definition, (*COLUMNS, "parent"))
    else:
        whole, decode = takes_of(definition, parameters[0], hints, many=options.batch)
        if whole is None:
            whole = decorated and parameters[0].name not in ("value", "values")
        definition = replace(definition, decode=decode)
        takes = _TAKES[bool(options.batch), bool(whole)]
    if (options.batch or options.arrow) and flavour in (Flavour.GENERATOR, Flavour.ASYNC_GENERATOR):
        raise TypeError(
            f"{definition.name} takes whole batches, so it must return its outputs instead of yielding them"
        )
    if options.threads and flavour in (Flavour.ASYNC, Flavour.ASYNC_GENERATOR):
        raise TypeError(f"{definition.name} is async: use concurrency=n; threads=n is for functions that block")
    if options.concurrency is not None and flavour in (Flavour.SYNC, Flavour.GENERATOR):
        raise TypeError(
            f"{definition.name} is not async: use threads=n, if it blocks; concurrency=n is for async functions"
        )
    gives = gives_of(definition, hints)
    return replace(definition, takes=takes, wants_context=len(parameters) == 2, flavour=flavour, gives=gives)


def takes_of(
    definition: Definition, parameter: inspect.Parameter, hints: Mapping[str, Any], *, many: bool
) -> tuple[bool | None, Decoder | None]:
    """Whether a parameter gets whole records (None if its annotation does not say), and the decoder of their values.
    Raises `TypeError`."""
    wanted, name = definition.options.decode, f"parameter {parameter.name} of {definition.name}"
    try:
        found = taken(hints.get(parameter.name, parameter.annotation), many=many)
    except UnsupportedType as error:
        if wanted is None:
            raise TypeError(f"{name}: {error}") from None
        found = Taken()
    if wanted is None:
        if found.kind in (UNKNOWN, bytes):
            return found.whole, None
        wanted = found.kind
    elif found.kind is bytes:
        raise TypeError(
            f"{name} is annotated bytes, but its decorator has decode={name_of(wanted)}: use one of the two"
        )
    elif found.whole is None:
        found = found._replace(whole=parameter.name in ("record", "records"))
    try:
        return found.whole, decoder(wanted)
    except UnsupportedType as error:
        raise TypeError(
            f"{name} takes {name_of(wanted)}, and values cannot be decoded to that: {error}. Annotate it bytes, or "
            "give a function that creates it from bytes: decode=..."
        ) from None


def gives_of(definition: Definition, hints: Mapping[str, Any]) -> Any:
    """The type of the objects that it returns, from its annotation. Raises `TypeError` if it cannot be sent."""
    options = definition.options
    gives = Gives(
        nothing=definition.for_sinks,
        many=options.batch,
        table=options.arrow or options.pandas,
        anything=options.encode is not None,
    )
    return given(hints.get("return", inspect.Parameter.empty), gives, definition.name)


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


def _check_installed(definition: Definition) -> None:
    for package, asked in (("pyarrow", definition.options.arrow), ("pandas", definition.options.pandas)):
        if asked and find_spec(package) is None:
            option = "arrow=True" if package == "pyarrow" else "pandas=True"
            raise TypeError(
                f"{definition.name} has {option}, but {package} is not installed where it runs: pip install "
                f"{'millstream-udf[arrow]' if package == 'pyarrow' else package}"
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


def _parameters(function: Any, name: str) -> list[inspect.Parameter]:
    try:
        signature = inspect.signature(function)
    except ValueError:
        # A function written in C may not have a signature; it then takes one argument.
        return [inspect.Parameter("value", inspect.Parameter.POSITIONAL_ONLY)]
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            raise TypeError(f"{name} has a keyword-only argument {parameter.name}, which is never passed")
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            continue
        # A second parameter with a default belongs to the author (def f(value, factor=2)), unless it is named or
        # annotated as the context.
        optional = parameter.default is not parameter.empty
        if parameters and optional and not (parameter.name == "context" or "Context" in str(parameter.annotation)):
            continue
        parameters.append(parameter)
    if not parameters and any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values()):
        return [inspect.Parameter("value", inspect.Parameter.POSITIONAL_ONLY)]
    return parameters


def _check_source(target: Any, name: str) -> None:
    if not inspect.isclass(target):
        raise TypeError(
            f"a source must be a class with async def read(self, context, records_max, timeout), which {name} is not"
        )
    if not callable(getattr(target, "read", None)):
        raise TypeError(f"source {name} needs a method read(self, context, records_max, timeout)")
    for method in ("open", "read", "committed", "close"):
        function = getattr(target, method, None)
        if function is not None and not inspect.iscoroutinefunction(function):
            raise TypeError(f"{name}.{method} must be async: async def {method}(...)")


def mark(kind: udf_pb2.Kind.ValueType, target: Callable[..., Any], **given: Any) -> None:
    """Store a decorator's options on `target`."""
    options = Options(kinds=(kind,), **given)
    if options.batch and options.arrow:
        raise TypeError(f"{DECORATORS[kind]}: batch or arrow, not both")
    if options.arrow and options.pandas:
        raise TypeError(f"{DECORATORS[kind]}: arrow or pandas, not both")
    if options.decode is not None and (options.arrow or options.pandas):
        raise TypeError(f"{DECORATORS[kind]}: decode is for single values; with arrow=True or pandas=True use schema=")
    if options.schema is not None and not (options.arrow or options.pandas):
        raise TypeError(f"{DECORATORS[kind]}: schema is for functions with arrow=True or pandas=True")
    if options.concurrency is not None and options.concurrency < 1:
        raise TypeError(f"{DECORATORS[kind]}: concurrency must be at least 1, not {options.concurrency}")
    if options.threads < 0:
        raise TypeError(f"{DECORATORS[kind]}: threads must be at least 0, not {options.threads}")
    if options.threads and (options.batch or options.arrow):
        raise TypeError(f"{DECORATORS[kind]}: threads is for functions of single records, not for batch or arrow")
    setattr(target, ATTRIBUTE, options)
