"""Arrow columns in place of values, between functions in their own processes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pyarrow as pa

from millstream.frame import Frame
from millstream.spec.protocols import FunctionKind
from millstream.udf.answers import MapAnswer
from millstream.udf.function import LocalFunction
from millstream.udf.sidecar import python_command
from millstream_udf import arrow_values, columns
from tests.contract.udf.conftest import HERE, NAME, Open, frame_of

FRAME = frame_of([b'{"number":%d}' % number for number in range(3)])


@asynccontextmanager
async def served(open_function: Open, name: str) -> AsyncIterator[LocalFunction]:
    async with open_function(python_command(f"{HERE / 'arrow_functions.py'}:{name}")) as function:
        yield function


async def answer(function: LocalFunction, frame: Frame = FRAME, *, may_return_arrow: bool = False) -> MapAnswer:
    async with function.open_map(FunctionKind.MAP, NAME, may_return_arrow=may_return_arrow) as stream:
        return await stream.call(frame, watermark_us=0)


async def test_columns_go_from_one_function_to_another(open_function: Open) -> None:
    async with served(open_function, "twice") as function:
        assert function.description.takes_arrow
        first = await answer(function, may_return_arrow=True)
        assert (first.values, first.error) == (b"", "")
        assert arrow_values.as_json(first.arrow, 3) == [b'{"number":0}', b'{"number":2}', b'{"number":4}']
        second = await answer(function, replace(FRAME, values_column=b"", arrow_column=first.arrow))
    assert columns.unpack_bytes(second.values) == [b'{"number":0}', b'{"number":4}', b'{"number":8}']


async def test_a_function_without_a_schema_does_not_take_them_but_reads_them(open_function: Open) -> None:
    async with served(open_function, "values") as function:
        assert not function.description.takes_arrow
        rows = pa.RecordBatch.from_pydict({"number": [1, 1, 1]})
        given = replace(FRAME, values_column=b"", arrow_column=arrow_values.packed(rows))
        assert columns.unpack_bytes((await answer(function, given)).values) == [b'{"number":1}'] * 3


async def test_what_is_not_columns_fails_the_call(open_function: Open) -> None:
    async with served(open_function, "twice") as function:
        failed = await answer(function, replace(FRAME, values_column=b"", arrow_column=b"not Arrow"))
    assert "the values are not Arrow columns" in failed.error
