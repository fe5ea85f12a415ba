"""What is collected of the results of a function: not more outputs than a record may have, and everything that a
generator gives.

An iterator without an end must not take the memory of the process. The vertex checks the number of outputs of a whole
answer, which a generator that never ends would not reach.

A value that a generator function returns beside those that it yields would get lost:

    if ...: return [b"x"]      # lost: iterating over a generator gives what it yields
    yield value

Such a function is refused at its start, as far as its code shows it; otherwise the record fails. Above it: the
inspection of functions, and everything that iterates over results. Below it: the environment, and Python's bytecode.
"""

from __future__ import annotations

import dis
import functools
import inspect
import os
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from itertools import islice
from types import CodeType
from typing import Any, TypeVar

from millstream_udf.misfits import BadOutput

OUTPUTS_VARIABLE = "MILLSTREAM_UDF_OUTPUTS_MAX"
"""Environment variable with the `outputsMax` of the vertex, if the pipeline sets it."""
OUTPUTS_MAX = 500_000
"""Without it."""

_T = TypeVar("_T")
_AFTER_YIELD = {"RESUME", "JUMP_BACKWARD_NO_INTERRUPT", "END_SEND"}
"""What precedes the `return` of `return (yield ...)` and `return (yield from ...)`: that value is mostly None."""
_LOST = "yields outputs and also returns {what}, which would be lost"


def refuse_returned(function: Callable[..., Any]) -> None:
    """Raises `TypeError` if the code of a generator function returns a value."""
    code = _code_of(function)
    if code is not None and "value" in _returned(code):
        name = getattr(function, "__qualname__", type(function).__name__)
        what = _LOST.format(what="a value")
        raise TypeError(f"{name} {what}: yield it instead, and write `return` alone; or return a list, and never yield")


def returns_nothing(function: Callable[..., Any]) -> bool:
    """Whether the code of a generator function shows that it returns no value."""
    code = _code_of(function)
    return code is not None and _returned(code) == {"nothing"}


def yielded(items: Iterable[_T]) -> Iterator[_T]:
    """Iterates over a result. Raises `BadOutput` at the end of a generator that returns a value."""
    if type(items) is list or not isinstance(items, Generator):
        return iter(items)
    return _yielded(items)


def _yielded(items: Generator[_T, None, Any]) -> Iterator[_T]:
    returned = yield from items
    if returned is not None:
        raise BadOutput(f"the function {_LOST.format(what=type(returned).__name__)}: yield it instead")


def _code_of(function: Callable[..., Any]) -> CodeType | None:
    """The code that runs when a generator function is called; None if it is not known, or another function wraps it,
    which may use what is returned."""
    if not inspect.isroutine(function):
        function = type(function).__call__
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) and code.co_flags & inspect.CO_GENERATOR else None


@functools.cache
def _returned(code: CodeType) -> frozenset[str]:
    """What its `return` statements return: "nothing", a "value", or what was "sent" to it."""
    found: set[str] = set()
    before: dis.Instruction | None = None
    for one in dis.get_instructions(code):
        if one.opname == "RETURN_CONST":
            found.add("nothing" if one.argval is None else "value")
        elif one.opname == "RETURN_VALUE":
            assert before is not None, "a value was loaded"
            if before.opname == "LOAD_CONST" and before.argval is None and not one.is_jump_target:
                found.add("nothing")
            else:
                found.add("sent" if before.opname in _AFTER_YIELD else "value")
        if one.opname != "NOP":
            before = one
    return frozenset(found)


@functools.cache
def outputs_max() -> int:
    """The most outputs of one record."""
    text = os.environ.get(OUTPUTS_VARIABLE, "")
    return int(text) if text.isdecimal() and int(text) else OUTPUTS_MAX


def collected(outputs: Iterator[_T]) -> list[_T]:
    """The outputs as a list. Raises `BadOutput` if there are more than `outputs_max`; the rest is not produced."""
    most = outputs_max()
    found = list(islice(outputs, most + 1))
    if len(found) > most:
        raise too_many(most)
    return found


async def collected_async(outputs: AsyncIterator[_T]) -> list[_T]:
    """The same for an asynchronous iterator."""
    most = outputs_max()
    found = []
    async for output in outputs:
        found.append(output)
        if len(found) > most:
            raise too_many(most)
    return found


def too_many(most: int) -> BadOutput:
    """The error for a record with more outputs than it may have."""
    return BadOutput(
        f"the function produced more than {most:,} outputs for one record (`outputsMax`): does its iterator end?"
    )
