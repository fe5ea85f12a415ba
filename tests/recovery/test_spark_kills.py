"""What happens to a request when the driver, its JVM or the memory of both gives out under it."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from millstream.errors import InfrastructureError
from millstream.limits import MIB
from millstream.wire.reduce.v1 import engine_pb2
from millstream_reduce.spark.wire import open_spark_client
from tests.contract.reduce.spark_requests import request, sql, write_windows
from tests.spark_driver import open_spark_driver
from tests.support.children import started

if TYPE_CHECKING:
    from tests.spark_driver import SparkDriver

LIMIT_S = 600.0
FUNCTION = """\
import pathlib, time

HERE = pathlib.Path(__file__).parent


def held(keys, records, window):
    (HERE / "begun").touch()
    while not (HERE / "let-go").exists():
        time.sleep(0.01)
    return str(len(list(records)))
"""
NOTHING_ASKED = """\
import asyncio, pathlib, sys
import psutil
from millstream_reduce.spark.session import open_session
from millstream_reduce.spark.settings import SparkSettings


async def main() -> None:
    async with open_session(SparkSettings(pathlib.Path(sys.argv[1]))) as session:
        frame = session.spark.range(1)
        jvm = next(child for child in psutil.Process().children() if "java" in child.name())
        jvm.suspend()
        # It is given back to a JVM that does not read any more.
        del frame
        await asyncio.sleep(1)
        jvm.kill()
        print(await session.lost())
        await asyncio.sleep(1)


asyncio.run(main())
"""
HUNG = "was stopped by a signal"
LARGE = "SELECT max(size(sequence(0L, 400000000L + value.n))) AS n FROM window"

pytestmark = pytest.mark.timeout(900)


async def until_there(path: Path) -> None:
    while not path.exists():
        await asyncio.sleep(0.01)
        assert path.parent.exists()


async def jvm_of(driver: SparkDriver) -> psutil.Process:
    """Spark's, as soon as it is there, or its launcher's."""
    while True:
        for process in psutil.Process(driver.pid).children():
            # What replaces itself by Java has another name for a moment.
            with suppress(psutil.NoSuchProcess):
                if "java" in process.name():
                    return process
        await asyncio.sleep(0.01)


@pytest.mark.guarantee("I9")
@pytest.mark.sweep
async def test_a_request_is_answered_although_driver_and_jvm_hang_and_are_killed_under_its_job(tmp_path: Path) -> None:
    (tmp_path / "held.py").write_text(FUNCTION)
    program = engine_pb2.Program(python=engine_pb2.PythonProgram(target="held.py:held", directory=str(tmp_path)))
    message = request(tmp_path / "log", write_windows(tmp_path / "log", [1, 2, 3]), program)

    with open_spark_driver() as driver:

        async def again_under_the_job() -> None:
            (tmp_path / "begun").unlink(missing_ok=True)
            driver.start()
            await until_there(tmp_path / "begun")

        def last_line() -> str:
            return driver.log_file.read_text().splitlines()[-1]

        async with asyncio.timeout(LIMIT_S), open_spark_client(driver.address) as client, asyncio.TaskGroup() as tasks:
            # It may be asked before it is there.
            answer = tasks.create_task(client.run(message))
            (await jvm_of(driver)).suspend()
            assert await driver.ended() == -signal.SIGKILL
            assert HUNG in last_line()

            await again_under_the_job()
            driver.jvm().suspend()
            assert await driver.ended() == -signal.SIGKILL
            assert HUNG in last_line()

            await again_under_the_job()
            jvm = driver.jvm()
            driver.kill()
            # Nothing of it stays behind.
            await asyncio.to_thread(jvm.wait, 20)

            await again_under_the_job()
            driver.jvm().kill()
            assert await driver.ended() == -signal.SIGKILL
            assert "Spark's JVM ended (killed" in last_line()
            assert not answer.done()

            (tmp_path / "let-go").touch()
            driver.start()
            table, summary = await answer
            assert table["value"].to_pylist() == [b"3"]
            assert not summary.failures


@pytest.mark.sweep
async def test_a_jvm_that_ends_while_objects_are_given_back_to_it_leaves_no_noise(tmp_path: Path) -> None:
    async with started(
        sys.executable,
        "-c",
        NOTHING_ASKED,
        str(tmp_path / "spark"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    ) as process:
        out, err = await asyncio.wait_for(process.communicate(), LIMIT_S)
    assert err.decode() == ""
    assert out.decode().startswith("Spark's JVM ended (killed")


@pytest.mark.sweep
async def test_a_spark_that_is_out_of_memory_ends_and_says_so(tmp_path: Path) -> None:
    message = request(tmp_path, write_windows(tmp_path, [1]), sql(LARGE))
    with open_spark_driver(driver_memory_bytes=512 * MIB) as driver:
        async with asyncio.timeout(LIMIT_S), open_spark_client(driver.address) as client, asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(client.run(message))
            assert await driver.ended() == InfrastructureError.exit_code
            last = driver.log_file.read_text().splitlines()[-1]
            assert "Spark ran out of memory (512 MiB): raise `spec.spark.driverMemory`" in last
            assert not asking.done()
            asking.cancel()
    assert not [
        process for process in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(process.info["cmdline"])
    ]
