"""Bounds the outputs of one record, so that an iterator without an end does not take the memory of the process.

Above it: what collects the results of maps. Below it: the environment. The vertex checks the number of outputs of a
whole answer, which a generator that never ends would not reach.
"""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from typing import TypeVar

from millstream_udf.misfits import BadOutput

OUTPUTS_VARIABLE = "MILLSTREAM_UDF_OUTPUTS_MAX"
"""Environment variable with the `outputsMax` of the vertex, if the pipeline sets it."""
OUTPUTS_MAX = 500_000
"""Without it."""

_T = TypeVar("_T")


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
        raise _too_many(most)
    return found


async def collected_async(outputs: AsyncIterator[_T]) -> list[_T]:
    """The same for an asynchronous iterator."""
    most = outputs_max()
    found = []
    async for output in outputs:
        found.append(output)
        if len(found) > most:
            raise _too_many(most)
    return found


def _too_many(most: int) -> BadOutput:
    return BadOutput(
        f"the function produced more than {most:,} outputs for one record (`outputsMax`): does its iterator end?"
    )
