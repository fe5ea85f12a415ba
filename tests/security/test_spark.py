"""Spark answers no stranger: every port and socket of a driver, its JVM and its workers, and what they write."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import psutil
import pytest

from millstream import codes
from millstream.errors import UserError
from millstream.ports import free_ports
from millstream.wire.reduce.v1 import engine_pb2, spark_pb2, spark_pb2_grpc
from millstream_reduce.spark.settings import TOKEN_VARIABLE
from millstream_reduce.spark.wire import open_spark_client
from tests.contract.reduce.spark_requests import request, sql, write_windows
from tests.security.conftest import Stranger
from tests.spark_driver import open_spark_driver
from tests.support.errors import raises

if TYPE_CHECKING:
    from tests.spark_driver import SparkDriver

LIMIT_S = 500.0
TOKEN = "of-this-run"
CALLS = """
body = b"hello, stranger"
calls = (
    struct.pack("!QBQI", 21 + len(body), 3, 1, len(body)) + body,
    b"c\\nz:java.lang.System\\nlineSeparator\\ne\\n",
)
for call in calls:
    with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=10) as connection:
        connection.sendall(call)
        try:
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # It has been refused and closed already; the answer is still to be read.
        print(connection.recv(65536).decode(errors="replace"))
"""
"""A call as Spark's processes make them of each other, and one as PySpark makes them of its JVM."""
REFUSALS = (
    # Of Spark's RPC and block transfer: nothing but the beginning of an authentication is read.
    "Expected SaslMessage",
    # Of py4j.
    "Authentication error",
)
CONNECT = """
with socket.socket(socket.AF_UNIX) as connection:
    try:
        connection.connect(sys.argv[1])
    except PermissionError:
        print("refused")
"""

pytestmark = pytest.mark.timeout(900)


def family(driver: SparkDriver) -> list[psutil.Process]:
    process = psutil.Process(driver.pid)
    return [process, *process.children(recursive=True)]


def unix_sockets(process: psutil.Process) -> set[str]:
    return {str(one.laddr) for one in process.net_connections("unix") if str(one.laddr).startswith("/")}


@pytest.fixture
def umask() -> Iterator[None]:
    """Files are open to all, unless their mode says otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


async def test_whatever_listens_refuses_a_stranger(
    stranger: Stranger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: None
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    windows = write_windows(tmp_path, [1, 2])
    address = f"127.0.0.1:{free_ports()}"
    with open_spark_driver(address=address) as driver:
        # Others may look into the directory around: what protects is Spark's own.
        driver.log_file.parent.chmod(0o755)
        async with asyncio.timeout(LIMIT_S), open_spark_client(address, TOKEN) as client:
            await client.run(request(tmp_path, windows, sql()))
        await check_service(address)

        ports = {
            one.laddr.port
            for process in family(driver)
            for one in process.net_connections("tcp")
            if one.status == psutil.CONN_LISTEN
        } - {int(address.rpartition(":")[2])}
        assert len(ports) == 3, "py4j, the RPC of the driver and its block manager"
        for port in ports:
            answer = stranger.run(CALLS, str(port))
            assert any(refusal in answer.stdout for refusal in REFUSALS), (answer.stdout, answer.stderr)
        for path in {path for process in family(driver) for path in unix_sockets(process)}:
            assert stranger.run(CONNECT, path).stdout == "refused\n", path

        work = driver.log_file.parent / "work"
        assert (work.stat().st_mode & 0o777) == 0o700
        made = [path for path in work.rglob("*") if stat.S_IFMT(path.lstat().st_mode) in (stat.S_IFREG, stat.S_IFDIR)]
        assert len(made) > 10
        # Other than where a worker, which has the umask of the run, would write its stack after a crash.
        wide = [path for path in made if path.lstat().st_mode & 0o077]
        assert {path.parent.name.partition("-")[0] for path in wide} <= {"faulthandler"}
        assert stranger.reads(work / "java-arguments") is None
        shown = " ".join(" ".join(process.cmdline()) for process in family(driver))
        assert TOKEN not in shown
        assert "--conf" not in shown


async def check_service(address: str) -> None:
    """What the driver says to who does not know its token."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub = spark_pb2_grpc.SparkDriverStub(channel)
        for metadata in ((), (("authorization", "Bearer another"),)):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Describe(spark_pb2.DescribeRequest(), metadata=metadata)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async for _ in stub.Run(engine_pb2.RunRequest(), metadata=metadata):
                    pass
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    async with asyncio.timeout(LIMIT_S), open_spark_client(address, "another") as client:
        with raises(codes.SPARK_TOKEN):
            await client.check(sql())


async def test_a_driver_without_a_token_does_not_listen_at_a_port() -> None:
    with open_spark_driver(address=f"127.0.0.1:{free_ports()}") as driver:
        assert await driver.ended() == UserError.exit_code
        assert f"give it and its vertices the same secret in the environment variable {TOKEN_VARIABLE}" in driver.tail()
