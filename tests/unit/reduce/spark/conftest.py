"""A Spark session in this process, for tests that look at one from inside: one for all of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING

import pytest

from millstream_reduce.spark.session import open_session
from millstream_reduce.spark.settings import SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_TIMEOUT_S = 270.0
STOP_TIMEOUT_S = 30.0


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`make check` starts no Spark."""
    for item in items:
        if "spark_session" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def spark_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two tasks at a time, each tried twice."""
    settings = SparkSettings(
        directory=tmp_path_factory.mktemp("spark"),
        master="local[2,2]",
        conf={"spark.sql.shuffle.partitions": "2"},
    )
    opened: Future[SparkSession] = Future()
    closing: Future[None] = Future()

    async def keep_open() -> None:
        async with open_session(settings) as session:
            opened.set_result(session.spark)
            await asyncio.wrap_future(closing)

    def serve() -> None:
        try:
            asyncio.run(keep_open())
        except BaseException as error:
            if not opened.done():
                opened.set_exception(error)
            raise

    thread = threading.Thread(target=serve, name="session")
    thread.start()
    try:
        yield opened.result(START_TIMEOUT_S)
    finally:
        closing.set_result(None)
        thread.join(STOP_TIMEOUT_S)
