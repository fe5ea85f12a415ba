"""A real Spark driver, asked by its client: answers, shared jobs, faults by kind, requests that are taken back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from millstream.errors import DamageError, InfrastructureError
from millstream.wire.reduce.v1 import engine_pb2
from millstream_reduce.engine import RESULT_SCHEMA
from millstream_reduce.group_keys import join_key
from millstream_reduce.log.entries import segment_name
from millstream_reduce.spark.wire import SparkClient, open_spark_client
from tests.contract.reduce.spark_requests import expected_totals, request, sql, totals, until_running, write_windows
from tests.spark_driver import open_spark_driver
from tests.support.children import together

if TYPE_CHECKING:
    from tests.spark_driver import SparkDriver

LIMIT_S = 270.0
SLEEPS = "SELECT value.n AS n, reflect('java.lang.Thread', 'sleep', value.n) AS slept FROM window"
"""For as many milliseconds as the values say."""

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
async def client(spark: SparkDriver) -> AsyncIterator[SparkClient]:
    async with asyncio.timeout(LIMIT_S), open_spark_client(spark.address) as client:
        yield client


async def test_it_says_what_it_is(client: SparkClient, spark: SparkDriver) -> None:
    answer = await client.describe()
    assert answer.pid == spark.pid
    assert answer.master == "local[2,4]"
    assert answer.spark_version.startswith("4.")
    assert int(answer.java_version.partition(".")[0]) >= 17
    assert answer.start_s > 0


async def test_requests_that_come_together_share_jobs_and_get_their_own_results(
    client: SparkClient, tmp_path: Path
) -> None:
    numbers = {f"log-{lane}": [[lane, 2 * window, window + 7] for window in range(lane % 4)] for lane in range(24)}
    requests = [request(tmp_path / name, write_windows(tmp_path / name, *lists)) for name, lists in numbers.items()]
    answers = await together(*(client.run(message) for message in requests))
    for (table, summary), lists in zip(answers, numbers.values(), strict=True):
        assert table.schema.equals(RESULT_SCHEMA)
        assert totals(table) == expected_totals(*lists)
        assert not summary.failures
        assert summary.job_s > 0
    assert max(summary.job_requests for _, summary in answers) > 1


async def test_a_window_that_fails_says_why_and_its_neighbours_have_results(
    client: SparkClient, tmp_path: Path
) -> None:
    windows = write_windows(tmp_path, [1, 2], [3, 0], [4])
    query = (
        "SELECT key, count(*) AS n, sum(12 DIV value.n) AS total, window_start FROM window GROUP BY key, window_start"
    )
    table, summary = await client.run(request(tmp_path, windows, sql(query)))
    assert set(totals(table)) == {(0, "odd"), (0, "even"), (2, "even")}
    (failure,) = summary.failures
    assert failure.window == 1
    assert "zero" in failure.reason


@pytest.mark.guarantee("I3")
async def test_different_lists_of_keys_are_different_groups(client: SparkClient, tmp_path: Path) -> None:
    keys = [[], [""], ["", ""], ["a\x1fb"], ["a", "b"], ["a\x1f"], ["a", ""], ["a/b"], ["\x1f"]]
    (tmp_path / "counting.py").write_text(
        "import json\nimport millstream_udf as udf\n\n\n@udf.reduce\ndef count(keys, records, window):\n"
        "    return json.dumps([list(keys), len(list(records))])\n",
        encoding="utf-8",
    )
    function = engine_pb2.PythonProgram(target="counting.py:count", directory=str(tmp_path))
    windows = write_windows(tmp_path / "log", range(3 * len(keys)), key_of=lambda n: keys[n % len(keys)])
    counting = engine_pb2.Program(python=function, keyed=True)
    table, summary = await client.run(request(tmp_path / "log", windows, counting))
    assert not summary.failures
    results = [json.loads(row["value"]) for row in table.to_pylist()]
    assert sorted(results) == sorted([key, 3] for key in keys)
    assert sorted(key or [] for key in table.column("keys").to_pylist()) == sorted(keys)
    # Windows of one key each, whose results have that key.
    numbers = [[place] for place in range(len(keys))]
    written = write_windows(tmp_path / "own", *numbers, key_of=keys.__getitem__)
    windows = [
        replace(one, window=replace(one.window, key=join_key([part.encode() for part in key])))
        for one, key in zip(written, keys, strict=True)
    ]
    for program, value_of in ((counting, None), (sql("SELECT count(*) AS n FROM window"), {"n": 1})):
        table, _ = await client.run(request(tmp_path / "own", windows, program))
        rows = sorted(table.to_pylist(), key=lambda row: row["window"])
        assert [row["keys"] or [] for row in rows] == keys
        assert [json.loads(row["value"]) for row in rows] == [value_of or [key, 1] for key in keys]


async def test_a_program_is_checked_without_running_it(client: SparkClient, spark: SparkDriver) -> None:
    good = await client.check(sql())
    assert (list(good.faults), good.one_by_one) == ([], "")
    assert "`total` bigint" in good.columns
    (fault,) = (await client.check(sql("SELECT cuont(*) AS n FROM window"))).faults
    assert "cuont" in fault
    (fault,) = (await client.check(sql("SELECT max(rand()) AS n FROM window"))).faults
    assert "rand()" in fault
    # The caller knows now; PySpark's own log of it would come in another form.
    assert "QueryContextLogger" not in spark.log_file.read_text()


@pytest.mark.guarantee("I10")
async def test_damage_of_a_log_is_told_as_what_it_is_and_hurts_nobody_else(client: SparkClient, tmp_path: Path) -> None:
    logs = {name: write_windows(tmp_path / name, [1, 2, 3]) for name in ("good", "bad")}
    segment = tmp_path / "bad" / segment_name(1)
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    answers = await asyncio.gather(
        *(client.run(request(tmp_path / name, windows)) for name, windows in logs.items()), return_exceptions=True
    )
    good, bad = answers
    assert not isinstance(good, BaseException)
    assert totals(good[0]) == expected_totals([1, 2, 3])
    assert isinstance(bad, DamageError)
    assert segment_name(1) in str(bad)


async def test_a_request_that_is_taken_back_stops_its_job(client: SparkClient, tmp_path: Path) -> None:
    program = sql(SLEEPS, unsafe=True)
    short, long = write_windows(tmp_path, [1], [600_000])
    await client.run(request(tmp_path, [short], program))
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(client.run(request(tmp_path, [long], program)))
        await until_running(client)
        # Jobs of one program run one after another, so this one waits for the one before.
        jobs = (await client.describe()).jobs
        waiting = tasks.create_task(client.run(request(tmp_path, [short], program)))
        assert (await asyncio.wait((waiting,), timeout=0.5))[0] == set()
        assert (await client.describe()).jobs == jobs
        running.cancel()
        table, _ = await waiting
    assert [json.loads(row["value"])["n"] for row in table.to_pylist()] == [1]


@pytest.mark.sweep
@pytest.mark.parametrize("functions", [True, False])
async def test_only_workers_of_functions_have_pandas(functions: bool, tmp_path: Path) -> None:
    """It takes each process half a second to import, while a caller waits for results."""
    async with asyncio.timeout(LIMIT_S):
        with open_spark_driver(functions=functions) as driver:
            async with open_spark_client(driver.address) as client:
                table, _ = await client.run(request(tmp_path, write_windows(tmp_path, [1, 2, 3])))
            assert totals(table) == expected_totals([1, 2, 3])
            workers = driver.jvm().children(recursive=True)
            assert workers
            assert {_has_pandas(worker) for worker in workers} == {functions}
            assert not _has_pandas(psutil.Process(driver.pid))


def _has_pandas(process: psutil.Process) -> bool:
    return any("/pandas/_libs/" in mapped.path for mapped in process.memory_maps())


@pytest.mark.sweep
async def test_a_python_that_is_not_there_is_named() -> None:
    async with asyncio.timeout(LIMIT_S):
        with open_spark_driver(conf={"spark.pyspark.python": "/no/such/python"}) as driver:
            assert await driver.ended() == InfrastructureError.exit_code
            said = json.loads(driver.tail().splitlines()[-1])["message"]
    assert 'Cannot run program "/no/such/python"' in said
    assert "No such file or directory" in said
    assert "`spark.pyspark.python` (`spec.spark.conf`)" in said
