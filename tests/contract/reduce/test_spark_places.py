"""The driver with Spark elsewhere: a real standalone cluster, a real Spark Connect server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millstream_reduce.spark.wire import SparkClient, open_spark_client
from tests.contract.reduce.spark_requests import expected_totals, request, sql, totals, until_running, write_windows
from tests.contract.reduce.spark_servers import open_cluster, open_connect_server
from tests.contract.reduce.test_spark_driver import SLEEPS
from tests.security.test_queries import HARMLESS, TRICKS, program
from tests.spark_driver import open_spark_driver

LIMIT_S = 500.0
SECRET = "known-to-this-test"
ON_LOOPBACK = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
}

pytestmark = pytest.mark.timeout(900)


async def check_jobs(client: SparkClient, directory: Path) -> None:
    """Results are those of a Spark on this machine; a job without a caller stops."""
    numbers = [[1, 2, 3], [4], [5, 5]]
    windows = write_windows(directory, *numbers)
    table, _ = await client.run(request(directory, windows))
    assert totals(table) == expected_totals(*numbers)
    assert not (await client.check(sql())).faults
    sleeps = sql(SLEEPS, unsafe=True)
    long = write_windows(directory / "long", [600_000])
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(client.run(request(directory / "long", long, sleeps)))
        await until_running(client)
        waiting = tasks.create_task(client.run(request(directory, windows[1:2], sleeps)))
        assert (await asyncio.wait((waiting,), timeout=1.0))[0] == set()
        running.cancel()
        await waiting


async def check_queries(client: SparkClient) -> None:
    """A query is data there as well, and those that only compute are taken."""
    taken = [trick for trick in TRICKS if not (await client.check(program(trick))).faults]
    refused = [query for query in HARMLESS if (await client.check(program(query))).faults]
    assert (taken, refused) == ([], [])
    [fault] = (await client.check(program("SELECT cuont(*) AS n FROM window"))).faults
    assert "it calls `cuont`" in fault
    assert "did you mean count?" in fault


@pytest.mark.sweep
async def test_a_standalone_cluster(tmp_path: Path) -> None:
    conf = ON_LOOPBACK | {"spark.authenticate.secret": SECRET}
    async with asyncio.timeout(LIMIT_S), open_cluster(tmp_path / "cluster", SECRET) as master:
        with open_spark_driver(master=master, conf=conf, encryption=True) as driver:
            assert (await driver.ready()).master == master
            async with open_spark_client(driver.address) as client:
                await check_jobs(client, tmp_path / "log")


@pytest.mark.sweep
async def test_a_spark_connect_server(tmp_path: Path) -> None:
    async with asyncio.timeout(LIMIT_S), open_connect_server(tmp_path / "server", SECRET) as remote:
        with open_spark_driver(remote=remote, token=SECRET) as driver:
            answer = await driver.ready()
            assert (answer.master, answer.java_version) == (remote, "")
            async with open_spark_client(driver.address) as client:
                await check_jobs(client, tmp_path / "log")
                await check_queries(client)
