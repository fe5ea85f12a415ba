"""How a user's function is defined: inspected once, when it is loaded, so that nothing is decided per record.

Above it: the loader, and tests of functions. Below it: `definition` (what is found out). It does not run anything.

Reduce functions have parameters of their own:

 1. Parameters called `keys`, `window` and `context` (or annotated `Window`, `Context`) get these, in whatever order,
    and the one that is left gets the records.
 2. More than one is left: they are, in this order, keys, records, window.
 3. The records are a `Table` with `arrow=True`, a `DataFrame` with `pandas=True`; otherwise an iterable: of values,
    when the parameter is called `values` or its annotation says bytes or another type of values, and of `Record`s when
    not.
 4. A class with `process` is instantiated once per process, and `process` is the function; one with `add` and
    `result` is instantiated once per group. Its constructor may take keys, window and context, by these names.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from millstream_udf.definition import (
    ATTRIBUTE,
    COLUMNS,
    MAP,
    REDUCE,
    SINK,
    SOURCE,
    SOURCE_TRANSFORM,
    Definition,
    Flavour,
    Options,
    ReduceShape,
    Takes,
    check_schema,
    flavour_of,
    gives_of,
    positional_parameters,
    takes_of,
)
from millstream_udf.function_types import hints_of
from millstream_udf.state_specs import TIMER, TIMERS_NAME, StateSpec
from millstream_udf.states import Declaration, KeyStates, declarations_of, plain_specs
from millstream_udf.tables import tables_of
from millstream_udf.timers import NO_HANDLER, sets_timers
from millstream_udf.typed_values import encoder


def define(target: Any, name: str) -> Definition:
    """Inspect `target` once. Raises `TypeError` with what to change."""
    options: Options | None = getattr(target, ATTRIBUTE, None)
    decorated = options is not None
    if options is None:
        kinds = (REDUCE,) if _reduces(target) else (SINK,) if _keeps(target) else (MAP, SOURCE_TRANSFORM, SINK)
        options = Options(kinds=kinds)
    definition = Definition(name, options.kinds, target, options, encode=encoder(options.encode))
    _check_installed(definition)
    declarations = declarations_of(target, name)
    if tables := tables_of(target, name):
        if MAP not in options.kinds:
            raise _tables_refused(definition, tables)
        definition = replace(definition, kinds=(MAP,), tables=tables)
    if declarations and MAP not in options.kinds:
        raise _states_refused(definition, f"has states ({', '.join(declarations)})")
    if inspect.isclass(target) and hasattr(target, "on_timer") and MAP not in options.kinds:
        raise _states_refused(definition, "has timers")
    if SOURCE in options.kinds:
        _check_source(target, name)
        return definition
    if REDUCE in options.kinds:
        return _reduce_function(definition)
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
    return _with_states(_shaped(definition, function, skip, decorated=decorated), declarations)


def _with_states(definition: Definition, declarations: Mapping[str, Declaration]) -> Definition:
    """The definition of a map with its states, if it has any. Raises `TypeError` with what to change."""
    name, on_timer = definition.name, _timer_function(definition)
    definition = replace(definition, on_timer=on_timer)
    takes_state = "state" in definition.arguments
    timer_takes_state = on_timer is not None and "state" in on_timer.arguments
    if not declarations and not takes_state and on_timer is None:
        return definition
    what = (
        f"has states ({', '.join(declarations)})" if declarations else "takes a state" if takes_state else "has timers"
    )
    if MAP not in definition.kinds or definition.options.arrow:
        raise _states_refused(definition, what)
    if definition.options.batch and not takes_state:
        first = next(iter(declarations), "timer(...)")
        raise TypeError(
            f"{name} takes batches and {what}: give it a second parameter `states`, which has the states of record i "
            f"as states[i].{first}"
        )
    if declarations and ((takes_state and not definition.options.batch) or timer_takes_state):
        raise TypeError(f"{name} {what}, so it needs no parameter `state`: use self.{next(iter(declarations))}")
    if on_timer is not None and TIMERS_NAME in declarations:
        raise TypeError(f"{name} has timers, so none of its states can be called {TIMERS_NAME}")
    if definition.options.batch and (taken := sorted(set(dir(KeyStates)).intersection(declarations))):
        raise TypeError(f"{name} takes batches, so none of its states can be called {' or '.join(taken)}")
    specs: tuple[StateSpec, ...] = ()
    if declarations:
        specs = tuple(one.spec() for one in declarations.values())
    elif takes_state or timer_takes_state:
        specs = plain_specs()
    if on_timer is not None:
        specs += (StateSpec(TIMERS_NAME, TIMER),)
    return replace(definition, kinds=(MAP,), states=specs, declarations=declarations or None)


def _timer_function(definition: Definition) -> Definition | None:
    """What gets the timers of a function; None if it has none. Raises `TypeError` with what to change."""
    name, target, skip = definition.name, definition.target, 0
    function: Any = definition.options.on_timer
    if inspect.isclass(target):
        if function is not None:
            raise TypeError(f"{name} is a class, so what gets its timers is a method: on_timer(self, timer)")
        function, skip = getattr(target, "on_timer", None), 1
    if function is None:
        if any(map(sets_timers, _functions_of(target))):
            raise TypeError(f"{name} sets timers, and {NO_HANDLER}")
        return None
    if not callable(function) or isinstance(
        inspect.getattr_static(target, "on_timer", None), (staticmethod, classmethod)
    ):
        raise TypeError(f"{name}: on_timer must be an ordinary {'method' if skip else 'function'}")
    parameters = _parameters(function, f"{name}.on_timer")[skip:]
    options = replace(definition.options, batch=False, decode=None, on_timer=None)
    shaped = replace(
        definition, name=f"{name}.on_timer", target=function, options=options, takes=Takes.RECORD, decode=None
    )
    arguments = tuple(_argument(shaped, parameter) for parameter in parameters[1:])
    if not parameters or len(set(arguments)) != len(arguments):
        raise TypeError(
            f"{name}.on_timer takes {len(parameters)} arguments; it takes the timer, and may take the "
            "context, and the state if the function has a parameter for it"
        )
    flavour = flavour_of(function)
    shaped = replace(shaped, flavour=flavour, arguments=arguments, wants_context="context" in arguments)
    if shaped.is_async != definition.is_async:
        one, other = ("async", "not") if definition.is_async else ("not async", "is")
        raise TypeError(
            f"{name} is {one} and its on_timer {other}: they run in the same way, so make both async, or neither"
        )
    return replace(shaped, gives=gives_of(shaped, hints_of(function)))


def _functions_of(target: Any) -> list[Any]:
    if not inspect.isclass(target):
        return [target]
    return [one for base in target.__mro__ for one in vars(base).values() if inspect.isfunction(one)]


def _states_refused(definition: Definition, what: str) -> TypeError:
    kinds = definition.kinds
    if definition.options.arrow:
        why = "an Arrow function sees no keys: use @udf.map(batch=True)"
    elif SOURCE in kinds:
        why = "a source remembers by its position: return it with each Batch"
    elif REDUCE in kinds:
        why = "a reduce function remembers by its window: use a class with add and result, or @udf.map"
    elif SINK in kinds:
        why = "a sink remembers in its target (a sink that keeps positions, or an upsert): put a @udf.map before it"
    else:
        why = "a source transform runs before the records have keys in a buffer: put a @udf.map after it"
    return TypeError(f"{definition.name} {what}, which only maps can have; {why}")


def _tables_refused(definition: Definition, tables: Collection[str]) -> TypeError:
    return TypeError(
        f"{definition.name} reads {'table' if len(tables) == 1 else 'tables'} {', '.join(tables)}, which only maps "
        "can; put a @udf.map before or after it that adds to each record what it needs"
    )


def _reduces(target: Any) -> bool:
    """Whether an undecorated function can only be a reduce function: other functions take the value and the context."""
    if inspect.isclass(target):
        return all(callable(getattr(target, name, None)) for name in ("add", "result"))
    if not inspect.isfunction(target):
        return False
    required = [p for p in inspect.signature(target).parameters.values() if p.default is p.empty and not _is_state(p)]
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
    arguments = tuple(_argument(definition, parameter) for parameter in parameters[1:])
    if not parameters or len(set(arguments)) != len(arguments):
        raise TypeError(
            f"{definition.name} takes {len(parameters)} arguments; a function takes the value or the record, and "
            "optionally the context, and a map its state"
        )
    hints = hints_of(function)
    if options.arrow:
        takes = Takes.ARROW
        check_schema(definition, (*COLUMNS, "parent"))
    else:
        by_name = decorated and parameters[0].name not in ("value", "values")
        whole, decode = takes_of(definition, parameters[0], hints, many=options.batch, unless_said=by_name)
        definition = replace(definition, decode=decode)
        takes = _TAKES[bool(options.batch), whole]
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
    return replace(
        definition,
        takes=takes,
        wants_context="context" in arguments,
        flavour=flavour,
        gives=gives_of(definition, hints),
        arguments=arguments,
    )


_STATE_NAMES = ("state", "states")


def _is_state(parameter: inspect.Parameter) -> bool:
    """Whether a parameter that is not the first one gets the state."""
    text = str(parameter.annotation)
    if "Context" in text:
        return False
    return parameter.name in _STATE_NAMES or text.rpartition(".")[2].strip("'\"> ") == "State"


def _argument(definition: Definition, parameter: inspect.Parameter) -> str:
    """What a parameter after the first one gets."""
    if not _is_state(parameter):
        return "context"
    wanted = _STATE_NAMES[definition.options.batch]
    if parameter.name in _STATE_NAMES and parameter.name != wanted:
        one = "batches" if definition.options.batch else "single records"
        raise TypeError(
            f"{definition.name} takes {one}, so its parameter {parameter.name} has to be called `{wanted}`; another "
            "name is the context's"
        )
    return "state"


def _check_installed(definition: Definition) -> None:
    for package, asked in (("pyarrow", definition.options.arrow), ("pandas", definition.options.pandas)):
        if asked and find_spec(package) is None:
            raise TypeError(
                f"{definition.name} has {'arrow' if package == 'pyarrow' else 'pandas'}=True, but {package} is not "
                f"installed where it runs: pip install {'millstream-udf[arrow]' if package == 'pyarrow' else package}"
            )


def _parameters(function: Any, name: str) -> list[inspect.Parameter]:
    try:
        given = positional_parameters(function, name)
    except ValueError:
        # A function written in C may not have a signature; it then takes one argument.
        return [inspect.Parameter("value", inspect.Parameter.POSITIONAL_ONLY)]
    if not given and any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(function).parameters.values()):
        return [inspect.Parameter("value", inspect.Parameter.POSITIONAL_ONLY)]
    # A second parameter with a default belongs to the author (def f(value, factor=2)), unless it is named or annotated
    # as the context or the state.
    return given[:1] + [
        p
        for p in given[1:]
        if p.default is p.empty or p.name == "context" or "Context" in str(p.annotation) or _is_state(p)
    ]


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


_GIVEN = ("keys", "window", "context")
"""What a parameter of this name gets."""
_BY_PLACE = ("keys", "records", "window")
"""What parameters with other names get."""


def _reduce_function(definition: Definition) -> Definition:
    """The definition of a reduce function. Raises `TypeError` with what to change."""
    target, name = definition.target, definition.name
    check_schema(definition, COLUMNS)
    if not inspect.isclass(target):
        if not callable(target):
            raise TypeError(f"{name} is not a function but {type(target).__name__}")
        return _of_groups(definition, target, 0)
    process = getattr(target, "process", None)
    if callable(process):
        return _of_groups(definition, process, 1)
    for method in ("add", "result"):
        if not callable(getattr(target, method, None)):
            raise TypeError(
                f"class {name} needs the methods add(self, record) and result(self), with one instance for each "
                "group, or the method process(self, keys, records, window)"
            )
    return _per_group(definition)


def _of_groups(definition: Definition, function: Any, skip: int) -> Definition:
    parameters = _reduce_parameters(function, definition.name)[skip:]
    if any(parameter.name in _STATE_NAMES for parameter in parameters):
        raise _states_refused(definition, "takes a state")
    roles = [_role(parameter) for parameter in parameters]
    if roles.count(None) > 1:
        free = iter(role for role in _BY_PLACE if role not in roles)
        roles = [role if role is not None else next(free, None) for role in roles]
    else:
        roles = ["records" if role is None else role for role in roles]
    if None in roles or "records" not in roles or len(set(roles)) != len(roles):
        raise TypeError(
            f"{definition.name} takes {_listed(parameters)}; a reduce function takes the records, and optionally "
            "keys, window and context, by these names: def process(keys, records, window)"
        )
    flavour = flavour_of(function)
    arguments = tuple(role for role in roles if role is not None)
    hints = hints_of(function)
    definition = _taking(definition, parameters[arguments.index("records")], hints, many=True)
    definition = replace(definition, flavour=flavour, reduce=ReduceShape(arguments), gives=gives_of(definition, hints))
    return _checked(definition)


def _per_group(definition: Definition) -> Definition:
    target = definition.target
    made_with = [] if target.__init__ is object.__init__ else _reduce_parameters(target.__init__, definition.name)[1:]
    roles = [_role(parameter) for parameter in made_with]
    if None in roles:
        raise TypeError(
            f"{definition.name}.__init__ takes {_listed(made_with)}; an instance is created for each group, with "
            "keys, window and context if its parameters have these names"
        )
    added = _reduce_parameters(target.add, definition.name)[1:]
    if len(added) != 1:
        raise TypeError(f"{definition.name}.add takes {_listed(added)}; it must take one record: add(self, record)")
    if len(_reduce_parameters(target.result, definition.name)) != 1:
        raise TypeError(f"{definition.name}.result must take no arguments: result(self)")
    flavour, adding = flavour_of(target.result), flavour_of(target.add)
    if adding in (Flavour.GENERATOR, Flavour.ASYNC_GENERATOR):
        raise TypeError(f"{definition.name}.add yields, but results must come from result(self)")
    if adding is Flavour.ASYNC and flavour in (Flavour.SYNC, Flavour.GENERATOR):
        raise TypeError(f"{definition.name}.add is async, so result must be: async def result(self)")
    shape = ReduceShape(
        tuple(role for role in roles if role is not None), per_group=True, add_is_async=adding is Flavour.ASYNC
    )
    definition = _taking(definition, added[0], hints_of(target.add), many=False)
    return _checked(
        replace(definition, flavour=flavour, reduce=shape, gives=gives_of(definition, hints_of(target.result)))
    )


def _checked(definition: Definition) -> Definition:
    if definition.options.concurrency is not None and not definition.is_async:
        raise TypeError(f"{definition.name} is not async: concurrency=n is for async functions")
    return definition


def _role(parameter: inspect.Parameter) -> str | None:
    if parameter.name in _GIVEN:
        return parameter.name
    text = str(parameter.annotation)
    for name, role in (("Window", "window"), ("Context", "context")):
        if text.rpartition(".")[2].strip("'\"> ") == name:
            return role
    return None


def _taking(
    definition: Definition, parameter: inspect.Parameter, hints: Mapping[str, Any], *, many: bool
) -> Definition:
    """The definition with the type of the records' parameter; `many`: it gets all records."""
    if definition.options.arrow:
        return replace(definition, takes=Takes.ARROW)
    if definition.options.pandas:
        return replace(definition, takes=Takes.FRAME)
    by_name = parameter.name not in ("value", "values")
    whole, decode = takes_of(definition, parameter, hints, many=many, unless_said=by_name)
    return replace(definition, takes=Takes.RECORD if whole else Takes.VALUE, decode=decode)


def _reduce_parameters(function: Any, name: str) -> list[inspect.Parameter]:
    """Parameters that need an argument."""
    # A parameter with a default belongs to the author, unless it has one of our names.
    return [p for p in positional_parameters(function, name) if p.default is p.empty or p.name in _GIVEN]


def _listed(parameters: list[inspect.Parameter]) -> str:
    return f"({', '.join(parameter.name for parameter in parameters)})"
