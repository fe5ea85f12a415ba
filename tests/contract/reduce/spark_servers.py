"""Spark as others run it: a standalone cluster and a Spark Connect server, real ones, on loopback."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import MappingProxyType

from millstream.die_with_parent import dying_with_parent
from millstream.ports import free_ports
from millstream_reduce.spark import aot
from millstream_reduce.spark.java import find_java, spark_home
from tests.support.children import started

START_TIMEOUT_S = 270.0
_POLL_S = 0.02


@asynccontextmanager
async def open_cluster(directory: Path, secret: str) -> AsyncIterator[str]:
    """A master and a worker with one core, which talk to who knows the secret. Gives the master's address."""
    master, web = f"spark://127.0.0.1:{free_ports()}", ("--webui-port", "0")
    _, _, port = master.rpartition(":")
    classes = "org.apache.spark.deploy"
    conf = {"spark.authenticate": "true", "spark.authenticate.secret": secret, "spark.network.crypto.enabled": "true"}
    protected = {"SPARK_DAEMON_JAVA_OPTS": " ".join(f"-D{name}={value}" for name, value in conf.items())}
    master_command = [f"{classes}.master.Master", "--host", "127.0.0.1", "--port", port, *web]
    worker_command = [
        *(f"{classes}.worker.Worker", "--host", "127.0.0.1", *web, "--cores", "1", "--memory", "1g"),
        *("--work-dir", str(directory / "work"), master),
    ]
    async with (
        _server(directory, "master", master_command, "I have been elected leader", protected),
        _server(directory, "worker", worker_command, "Successfully registered with master", protected),
    ):
        yield master


@asynccontextmanager
async def open_connect_server(directory: Path, token: str) -> AsyncIterator[str]:
    """A Spark Connect server that asks for a token. Gives its address."""
    port = free_ports()
    conf = {
        "spark.master": "local[2,4]",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": " ".join(["-XX:+UseSerialGC", *aot.use_options(aot.find_cache(find_java()))]),
        "spark.local.dir": str(directory),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.connect.authenticate.token": token,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.python.unix.domain.socket.enabled": "true",
    }
    options = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    server = [
        "org.apache.spark.deploy.SparkSubmit",
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
    ]
    async with _server(directory, "connect", [*server, *options, "spark-internal"], "Spark Connect server started"):
        # PySpark sends an unencrypted token nowhere else.
        yield f"sc://localhost:{port}"


@asynccontextmanager
async def _server(
    directory: Path,
    name: str,
    arguments: Sequence[str],
    ready: str,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[None]:
    """One process of Spark's, which has said that it is ready."""
    # Of its own, with a name that is short enough for the sockets in it.
    with tempfile.TemporaryDirectory(prefix="spark-", ignore_cleanup_errors=True) as temporary:
        async with _server_in(directory, temporary, name, arguments, ready, variables):
            yield


@asynccontextmanager
async def _server_in(
    directory: Path, temporary: str, name: str, arguments: Sequence[str], ready: str, variables: Mapping[str, str]
) -> AsyncIterator[None]:
    directory.mkdir(exist_ok=True)
    log = directory / f"{name}.log"
    environment = (
        os.environ
        | dict(variables)
        | {
            "JAVA_HOME": str(find_java().home),
            "SPARK_HOME": str(spark_home()),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            # Of a Connect server it is the heap, which has to be this large at least.
            "SPARK_DAEMON_MEMORY": "512m",
            # Also of the executors that a worker starts: they are killed, and remove nothing.
            "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={temporary}",
        }
    )
    with log.open("wb") as file:
        starting = started(
            *dying_with_parent([str(spark_home() / "bin" / "spark-class"), *arguments]),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            cwd=directory,
            env=environment,
            start_new_session=True,
        )
        async with starting as process:
            try:
                await _await_text(process, log, ready)
                yield
            finally:
                # With the executors that a worker has started.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


async def _await_text(process: asyncio.subprocess.Process, log: Path, text: str) -> None:
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while text not in log.read_text(errors="replace"):
                assert process.returncode is None, f"{log.name}: {log.read_text(errors='replace')[-2000:]}"
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise AssertionError(f"{log.name} does not say {text!r}: {log.read_text(errors='replace')[-2000:]}") from None
