"""A function that raises `CancelledError` itself, over both transports: every call is answered, and no stream hangs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from millstream.spec.protocols import FunctionKind
from millstream.udf.function import LocalFunction
from millstream.udf.sidecar import python_command
from millstream_udf.calls_socket import SUFFIX
from tests.contract.udf.conftest import HERE, NAME, Open, frame_of, values_of

TIMEOUT_S = 90


@pytest.fixture(params=["socket", "grpc"])
def transport(request: pytest.FixtureRequest) -> str:
    """Of the calls."""
    return str(request.param)


@asynccontextmanager
async def serving(open_function: Open, name: str, transport: str) -> AsyncIterator[LocalFunction]:
    """A function of this suite."""
    command = python_command(f"{HERE / 'cancelled_functions.py'}:{name}")
    async with asyncio.timeout(TIMEOUT_S), open_function(command) as sidecar:
        if transport == "grpc":
            Path(sidecar.address.removeprefix("unix:") + SUFFIX).unlink()
        yield sidecar


@pytest.mark.parametrize("name", ["plain", "waiting", "waiting_for_many", "threaded"])
async def test_a_call_whose_decoding_raises_it_once_is_answered(
    open_function: Open, tmp_path: Path, name: str, transport: str
) -> None:
    values = [os.fsencode(tmp_path / "once")]
    async with (
        serving(open_function, name, transport) as sidecar,
        sidecar.open_map(FunctionKind.MAP, NAME) as stream,
    ):
        assert values_of(await stream.call(frame_of(values), watermark_us=0)) == values
        assert sidecar.statistics().restarts == 0


async def test_a_source_that_raises_it_is_opened_again(open_function: Open, tmp_path: Path) -> None:
    once = os.fsencode(tmp_path / "once")
    async with (
        serving(open_function, "Feed", "grpc") as sidecar,
        sidecar.open_source(NAME, position=once, partition=0, partitions=1) as stream,
    ):
        failed = await stream.read(1, 1 << 20, 1.0)
        assert failed.error.startswith("in open: ")
        # A stream that is not open yet has nothing ready.
        while not (batch := await stream.read(1, 1 << 20, 1.0)).ended:
            assert not batch.error
        assert sidecar.statistics().restarts == 0
