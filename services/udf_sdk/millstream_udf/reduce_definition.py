"""The definition of a user's reduce function: which parameters get what. Determined once, when it is loaded.

Above it: `definition`. Below it: users' functions. It does not run anything.

Cases:
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
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from millstream_udf.definition import (
    COLUMNS,
    Definition,
    Flavour,
    ReduceShape,
    Takes,
    check_schema,
    flavour_of,
    gives_of,
    positional_parameters,
    takes_of,
)
from millstream_udf.function_types import hints_of

GIVEN = ("keys", "window", "context")
"""What a parameter of this name gets."""
BY_PLACE = ("keys", "records", "window")
"""What parameters with other names get."""


def shaped(definition: Definition) -> Definition:
    """Raises `TypeError` with what to change."""
    target, name = definition.target, definition.name
    check_schema(definition, COLUMNS)
    if not inspect.isclass(target):
        if not callable(target):
            raise TypeError(f"{name} is not a function but {type(target).__name__}")
        return _function(definition, target, 0)
    process = getattr(target, "process", None)
    if callable(process):
        return _function(definition, process, 1)
    for method in ("add", "result"):
        if not callable(getattr(target, method, None)):
            raise TypeError(
                f"class {name} needs the methods add(self, record) and result(self), with one instance for each "
                "group, or the method process(self, keys, records, window)"
            )
    return _per_group(definition)


def _function(definition: Definition, function: Any, skip: int) -> Definition:
    parameters = _parameters(function, definition.name)[skip:]
    roles = [_role(parameter) for parameter in parameters]
    if roles.count(None) > 1:
        free = iter(role for role in BY_PLACE if role not in roles)
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
    made_with = [] if target.__init__ is object.__init__ else _parameters(target.__init__, definition.name)[1:]
    roles = [_role(parameter) for parameter in made_with]
    if None in roles:
        raise TypeError(
            f"{definition.name}.__init__ takes {_listed(made_with)}; an instance is created for each group, with "
            "keys, window and context if its parameters have these names"
        )
    added = _parameters(target.add, definition.name)[1:]
    if len(added) != 1:
        raise TypeError(f"{definition.name}.add takes {_listed(added)}; it must take one record: add(self, record)")
    if len(_parameters(target.result, definition.name)) != 1:
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
    if parameter.name in GIVEN:
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


def _parameters(function: Any, name: str) -> list[inspect.Parameter]:
    """Parameters that need an argument."""
    # A parameter with a default belongs to the author, unless it has one of our names.
    return [p for p in positional_parameters(function, name) if p.default is p.empty or p.name in GIVEN]


def _listed(parameters: list[inspect.Parameter]) -> str:
    return f"({', '.join(parameter.name for parameter in parameters)})"
