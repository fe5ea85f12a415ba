"""One real Spark driver for all tests that need one: its start costs seconds, its jobs tenths of one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from millstream.die_with_parent import dying_with_parent
from millstream.wire.reduce.v1 import spark_pb2
from millstream_reduce.spark.settings import SparkSettings
from millstream_reduce.spark.wire import open_spark_client

START_TIMEOUT_S = 270.0
STOP_TIMEOUT_S = 30.0


class SparkDriver:
    """A driver process that can be killed and started again at the same address. Made by `open_spark_driver`."""

    def __init__(self, directory: Path, settings: SparkSettings, address: str | None = None) -> None:
        """`address`: where it listens; by default at a socket in `directory`."""
        self._directory = directory
        self.address = address or f"unix:{directory / 'driver.sock'}"
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log_file(self) -> Path:
        return self._directory / "driver.log"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        assert self._process is not None
        return self._process.poll() is None

    def start(self) -> None:
        """Start it; it is not ready yet."""
        settings = self._directory / "settings.json"
        settings.write_text(self._settings.to_json())
        driver = (sys.executable, "-m", "millstream_reduce.spark.driver", "--log-level", "WARNING")
        command = [*driver, "--address", self.address, "--settings", str(settings)]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                dying_with_parent(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._directory
            )

    async def ready(self) -> spark_pb2.DescribeResponse:
        """Wait until it runs jobs."""
        try:
            async with asyncio.timeout(START_TIMEOUT_S), open_spark_client(self.address) as client:
                return await client.describe()
        except TimeoutError:
            raise AssertionError(f"Spark is not ready after {START_TIMEOUT_S:.0f} s: {self.tail()}") from None

    def jvm(self) -> psutil.Process:
        """The process that is Spark."""
        (jvm,) = psutil.Process(self.pid).children()
        return jvm

    async def ended(self) -> int:
        """Wait until it has ended. Gives the exit code."""
        assert self._process is not None
        return await asyncio.to_thread(self._process.wait, START_TIMEOUT_S)

    def kill(self) -> None:
        """As `kill -9`."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(STOP_TIMEOUT_S)

    def stop(self) -> None:
        """Let it finish."""
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        finally:
            self.kill()

    def tail(self) -> str:
        """What it wrote last."""
        return self.log_file.read_text(errors="replace")[-2000:].strip() or "it wrote nothing"


@contextmanager
def open_spark_driver(*, address: str | None = None, **members: Any) -> Iterator[SparkDriver]:
    """A driver that is starting, in a directory of its own whose name is short enough for a socket.

    `address`: where it listens, if not there. `members`: of its settings.
    """
    with tempfile.TemporaryDirectory(prefix="spark-") as name:
        members = {"master": None if members.get("remote") else "local[2,4]"} | members
        driver = SparkDriver(Path(name), SparkSettings(directory=Path(name) / "work", **members), address)
        driver.start()
        try:
            yield driver
        finally:
            driver.stop()
