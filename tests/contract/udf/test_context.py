"""What a function is given and counts, in processes of their own: those that Millstream starts, and others."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from millstream import codes
from millstream.spec.protocols import FunctionKind
from millstream.udf.function import LocalFunction, open_local_function, open_remote_function
from millstream.udf.protocol import UdfClient
from millstream.udf.settings import FunctionSettings
from millstream.udf.sidecar import SidecarSpec, python_command
from millstream_udf.version import SDK_VERSION
from tests.contract.udf.conftest import NAME, Lines, Open, frame_of, values_of
from tests.support.children import started
from tests.support.errors import raises

FUNCTIONS = Path(__file__).parent / "context_functions.py"
GIVEN = FunctionSettings('{"threshold":2}', {"key": "k"})


@asynccontextmanager
async def local(
    function: str, lines: Lines, given: FunctionSettings = GIVEN, *, command: Sequence[str] = ()
) -> AsyncIterator[LocalFunction]:
    """A function that Millstream has started, with its settings in the environment. `command`: of one in another
    language."""
    spec = SidecarSpec(
        command or python_command(f"{FUNCTIONS}:{function}"),
        "udf",
        NAME.pipeline,
        NAME.vertex,
        env=given.environment(),
        start_timeout_s=30,
        stop_timeout_s=10,
    )
    async with open_local_function(spec, log=lambda stream, line: lines.append((stream, line))) as running:
        yield running


@asynccontextmanager
async def by_hand(function: str, *, command: Sequence[str] = (), **environment: str) -> AsyncIterator[str]:
    """The address of a function that was started by hand. `command`: see `local`."""
    with tempfile.TemporaryDirectory(prefix="ms-") as short:
        socket = Path(short) / "udf.sock"
        command = command or (sys.executable, "-P", "-m", "millstream_udf", f"{FUNCTIONS}:{function}")
        async with started(*command, env={**os.environ, "MILLSTREAM_UDF_SOCKET": str(socket), **environment}):
            yield f"unix:{socket}"


async def mapped(function: UdfClient, value: bytes = b"x", *, attempt: int = 0, watermark_us: int = 0) -> str:
    """What a map gives for a record."""
    async with function.open_map(FunctionKind.MAP, NAME) as stream:
        (output,) = values_of(await stream.call(frame_of([value]), attempt=attempt, watermark_us=watermark_us))
    return output.decode()


def counted(function: UdfClient) -> Mapping[str, float]:
    return {" ".join((one.name, *one.labels.values())): one.value for one in function.metrics.snapshot()}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  # no event says that a message of metrics has arrived
            await asyncio.sleep(0.01)


async def test_a_function_has_its_settings_from_setup_on_and_again_after_a_kill(lines: Lines) -> None:
    told = f"2.0 k 1 0 {SDK_VERSION} | 2.0 k {SDK_VERSION}"
    async with local("Told", lines) as function:
        assert await mapped(function, attempt=1) == told
        pid = function.statistics().pid
        assert pid is not None
        # Its environment has no secrets for what it may start.
        os.kill(pid, signal.SIGKILL)
        await until(lambda: function.statistics().pid not in (pid, None))
        assert await mapped(function, attempt=1) == told
    assert not lines


async def test_what_is_counted_adds_up_over_restarts_and_to_the_last_record(lines: Lines) -> None:
    async with local("Told", lines) as function:
        await mapped(function, b"first")
        await until(lambda: counted(function) == {"set_up": 1, "records first": 1})
        pid = function.statistics().pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await mapped(function, b"second")
        await until(lambda: counted(function).get("set_up") == 2)
        for _ in range(3):
            await mapped(function, b"last")
    # Its last numbers came before its end.
    assert counted(function) == {"set_up": 2, "records first": 1, "records second": 1, "records last": 3}


async def test_a_function_without_metrics_has_none_in_any_language(command: list[str], open_function: Open) -> None:
    async with open_function(command) as function:
        assert await mapped(function, b"x") == "X"
    assert function.metrics.snapshot() == ()


async def test_a_function_that_something_else_started_gets_its_settings_with_each_stream() -> None:
    async with by_hand("Told") as address:
        async with open_remote_function(address, settings=GIVEN) as function:
            assert await mapped(function) == f"2.0 k 0 0 {SDK_VERSION} | "
            await until(lambda: counted(function) == {"set_up": 1, "records x": 1})
        async with open_remote_function(
            address, settings=FunctionSettings('{"threshold":3}', {"key": "l"})
        ) as function:
            assert await mapped(function) == f"3.0 l 0 0 {SDK_VERSION} | "
            # What another has been told is not told again.
            await until(lambda: counted(function) == {"records x": 1})


async def test_a_function_in_go_has_settings_and_counts(lines: Lines, go_command: list[str]) -> None:
    command = [*go_command, "told"]
    async with local("", lines, command=command) as function:
        assert await mapped(function, b"first") == "2 k"
        await until(lambda: counted(function) == {"records first": 1})
        for _ in range(3):
            await mapped(function, b"last")
    # Its last numbers came before its end.
    assert counted(function) == {"records first": 1, "records last": 3}
    async with by_hand("", command=command) as address:
        async with open_remote_function(address, settings=GIVEN) as remote:
            assert await mapped(remote) == "2 k"
        async with open_remote_function(address, settings=FunctionSettings('{"threshold":3}', {"key": "l"})) as remote:
            assert await mapped(remote) == "3 l"


async def test_settings_in_the_environment_hold_where_the_pipeline_has_none() -> None:
    async with (
        by_hand("Told", MILLSTREAM_UDF_CONFIG='{"threshold": 5}', MILLSTREAM_UDF_SECRETS='{"key": "own"}') as address,
        open_remote_function(address) as function,
    ):
        assert (await mapped(function)).startswith("5.0 own ")


async def test_a_config_that_does_not_fit_is_refused_where_it_arrives(lines: Lines) -> None:
    says = 'does not fit Settings: field `threshold` is "high", where a number'
    misfit = FunctionSettings('{"threshold":"high"}')
    with raises(codes.FUNCTION_NOT_STARTED, match=says):
        async with local("Told", lines, misfit):
            pass
    async with by_hand("Told") as address, open_remote_function(address, settings=misfit) as function:
        with raises(codes.FUNCTION_REFUSES, match=says):
            await mapped(function)


@pytest.mark.parametrize("remote", [False, True], ids=["local", "by hand"])
async def test_sinks_and_sources_have_theirs(lines: Lines, remote: bool) -> None:
    @asynccontextmanager
    async def opened(name: str) -> AsyncIterator[UdfClient]:
        if not remote:
            async with local(name, lines) as function:
                yield function
            return
        async with by_hand(name) as address, open_remote_function(address, settings=GIVEN) as other:
            yield other

    async with opened("sink") as function, function.open_sink(NAME) as sink:
        (outcome,) = (await sink.call(frame_of([b"x"]), id_prefix="a/", first_index=0, attempt=3)).outcomes
        assert outcome.reason == "2.0 k 3"
    async with opened("Kept") as function, function.open_position_sink(NAME) as kept:
        assert await kept.open("lane", 1) == b"2.0 k"
    async with (
        opened("Source") as function,
        function.open_source(NAME, position=b"", partition=0, partitions=1) as source,
    ):
        batch = await source.read(1, 1000, 1.0)
        assert batch.frame is not None
        assert batch.frame.values() == [b"2.0 k 0"]


async def test_records_of_a_batch_have_their_attempt_and_watermark(lines: Lines) -> None:
    async with local("batches", lines) as function:
        assert await mapped(function, attempt=2, watermark_us=0) == "2 1970-01-01 00:00:00+00:00"
