"""Real sidecars in every language that is at hand, and frames to call them with."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import pytest_asyncio

from millstream.frame import Frame, build_frame
from millstream.spec.protocols import FunctionKind
from millstream.udf.answers import MapAnswer
from millstream.udf.function import LocalFunction, open_local_function
from millstream.udf.protocol import StreamName
from millstream.udf.sidecar import SidecarSpec, python_command
from millstream.udf.streams import MapStream
from millstream_udf import columns
from tests.support.go_programs import toolchain

HERE = Path(__file__).parent
GO_EXAMPLE = HERE.parents[2] / "examples" / "udf-go"
NAME = StreamName("flights", "clean", "in-clean.0", 0)

Lines = list[tuple[str, str]]
Open = Callable[[Sequence[str]], AbstractAsyncContextManager[LocalFunction]]


@pytest.fixture(scope="session")
def go() -> str:
    """The Go toolchain."""
    found = toolchain()
    if found is None:
        pytest.skip("no Go toolchain on the PATH: that the protocol works without Python is not tested here")
    return found


@pytest.fixture(scope="session")
def go_command(go_programs: Path) -> list[str]:
    """The Go functions."""
    return [str(go_programs / "conformance")]


@pytest.fixture(params=["python", "go"])
def command(request: pytest.FixtureRequest) -> list[str]:
    """The function of the suite, in each language."""
    if request.param == "go":
        built: list[str] = request.getfixturevalue("go_command")
        return built
    return python_command(f"{HERE / 'conformance.py'}:obey")


@pytest.fixture(params=["python", "go"])
def reduce_command(request: pytest.FixtureRequest) -> list[str]:
    """The reduce function of the suite, in each language."""
    if request.param == "go":
        built: list[str] = request.getfixturevalue("go_command")
        return [*built, "reduce"]
    return python_command(f"{HERE / 'conformance_reduce.py'}:obey")


@pytest.fixture
def lines() -> Lines:
    """What sidecars print."""
    return []


@pytest.fixture
def open_function(lines: Lines) -> Open:
    """Opens a sidecar of a command."""

    def opened(command: Sequence[str]) -> AbstractAsyncContextManager[LocalFunction]:
        spec = SidecarSpec(command, "udf", NAME.pipeline, NAME.vertex, start_timeout_s=30, stop_timeout_s=10)
        return open_local_function(spec, log=lambda stream, line: lines.append((stream, line)))

    return opened


@pytest_asyncio.fixture
async def sidecar(command: list[str], open_function: Open) -> AsyncIterator[LocalFunction]:
    """The function of the suite, running."""
    async with open_function(command) as running:
        yield running


@pytest_asyncio.fixture
async def stream(sidecar: LocalFunction) -> AsyncIterator[MapStream]:
    """An open map stream of it."""
    async with sidecar.open_map(FunctionKind.MAP, NAME) as opened:
        yield opened


def frame_of(
    values: Sequence[bytes],
    *,
    keys: Sequence[Sequence[bytes]] | None = None,
    headers: Sequence[Mapping[str, bytes]] | None = None,
    ids: Sequence[bytes] | None = None,
) -> Frame:
    """A frame."""
    times = array("q", range(1000, 1000 + len(values)))
    return build_frame(values, times, ingest_time_us=1, keys=keys, headers=headers, ids=ids)


def values_of(answer: MapAnswer) -> list[bytes]:
    """Values of the outputs."""
    return columns.unpack_bytes(answer.values)


def parents_of(answer: MapAnswer) -> list[int]:
    """Input of each output."""
    return columns.unpack_offsets(answer.parents).tolist() if answer.parents else list(range(answer.records))
