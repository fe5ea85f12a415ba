"""Whose fault it is that a job fails: a window's, a lost worker's, a function's that ends its process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.wire.reduce.v1 import engine_pb2
from millstream_reduce.spark.jobs import FAILURES_MAX, LOSSES_MAX
from millstream_reduce.spark.wire import SparkClient, open_spark_client
from tests.contract.reduce.spark_requests import request, sql, write_windows

if TYPE_CHECKING:
    from tests.spark_driver import SparkDriver

TASK_ATTEMPTS = 4
"""Of the driver's master, local[2,4]."""
FUNCTIONS = """\
import json, os, pathlib, sys, time

HERE = pathlib.Path(__file__).parent


def numbers(records):
    return [json.loads(record.value)["n"] for record in records]


def held(keys, records, window):
    (HERE / f"begun-{os.getpid()}").touch()
    while not (HERE / "let-go").exists():
        time.sleep(0.01)
    return str(sum(numbers(records)))


def ends_its_process(keys, records, window):
    of_group = numbers(records)
    if 13 in of_group:
        with open(HERE / "ends", "a") as ends:
            ends.write(".")
        os._exit(3)
    return str(sum(of_group))


def calls_exit(keys, records, window):
    if 13 in numbers(records):
        sys.exit(3)
    return "well"


class Panic(BaseException):
    pass


def panics(keys, records, window):
    if 13 in numbers(records):
        raise Panic("index out of bounds\\nmore")
    return "well"


def speaks_of_workers(keys, records, window):
    raise ValueError("Python worker exited unexpectedly: SIGSEGV, crashed")
"""

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
async def client(spark: SparkDriver) -> AsyncIterator[SparkClient]:
    async with open_spark_client(spark.address) as client:
        yield client


def python(directory: Path, function: str) -> engine_pb2.Program:
    (directory / "functions.py").write_text(FUNCTIONS)
    program = engine_pb2.PythonProgram(target=f"functions.py:{function}", directory=str(directory))
    return engine_pb2.Program(python=program)


async def failure_of(client: SparkClient, directory: Path, program: engine_pb2.Program) -> engine_pb2.WindowFailure:
    """Of the second of two windows, the only one."""
    message = request(directory / "log", write_windows(directory / "log", [1, 2], [13]), program)
    table, summary = await client.run(message)
    assert set(table["window"].to_pylist()) == {0}
    (failure,) = summary.failures
    assert failure.window == 1
    return failure


async def worker_that_has_begun(directory: Path, but: set[int]) -> int:
    """Process id of a worker that runs the function, other than those of `but`."""
    while True:
        for path in directory.glob("begun-*"):
            if (pid := int(path.name.partition("-")[2])) not in but:
                return pid
        await asyncio.sleep(0.01)


@pytest.mark.sweep
@pytest.mark.guarantee("I3", "I9")
async def test_a_window_whose_workers_are_killed_again_and_again_is_computed_and_has_not_failed(
    client: SparkClient, tmp_path: Path
) -> None:
    message = request(tmp_path / "log", write_windows(tmp_path / "log", [1, 2, 3]), python(tmp_path, "held"))
    killed: set[int] = set()
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(client.run(message))
        # More than a job survives.
        while len(killed) <= TASK_ATTEMPTS:
            pid = await worker_that_has_begun(tmp_path, killed)
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        await worker_that_has_begun(tmp_path, killed)
        (tmp_path / "let-go").touch()
        table, summary = await asking
    assert table["value"].to_pylist() == [b"6"]
    assert not summary.failures


async def test_a_function_that_ends_its_process_fails_its_window_after_as_many_jobs_as_is_said(
    client: SparkClient, tmp_path: Path
) -> None:
    failure = await failure_of(client, tmp_path, python(tmp_path, "ends_its_process"))
    assert failure.reason.startswith(f"computing this window alone has ended its Python workers, in {LOSSES_MAX} jobs")
    # Both windows together, then the one alone.
    jobs = 1 + LOSSES_MAX
    assert len((tmp_path / "ends").read_text()) == jobs * TASK_ATTEMPTS


async def test_a_function_that_calls_exit_is_told_so(client: SparkClient, tmp_path: Path) -> None:
    failure = await failure_of(client, tmp_path, python(tmp_path, "calls_exit"))
    assert failure.reason == "the function called sys.exit(3): raise an exception instead"
    assert "in calls_exit" in failure.detail
    assert "millstream" not in failure.detail


async def test_what_the_user_says_of_crashes_is_no_crash(client: SparkClient, tmp_path: Path) -> None:
    windows = write_windows(tmp_path / "log", [1])
    for program in (
        python(tmp_path, "speaks_of_workers"),
        sql("SELECT raise_error('Python worker exited unexpectedly: SIGSEGV, crashed') AS n FROM window"),
    ):
        _, summary = await client.run(request(tmp_path / "log", windows, program))
        (failure,) = summary.failures
        assert failure.reason.endswith("Python worker exited unexpectedly: SIGSEGV, crashed")


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT key, (SELECT max(1 DIV (n - 13)) FROM w) AS n FROM w", "Division by zero."),
        pytest.param(
            "SELECT a.key FROM w a JOIN (SELECT CAST(concat('x', n) AS INT) AS n FROM w) b ON a.n = b.n",
            "The value 'x",
            marks=pytest.mark.sweep,
        ),
        ("SELECT /*+ BROADCAST(b) */ a.key FROM w a JOIN (SELECT 1 DIV (n - 13) AS n FROM w) b USING (n)", "Division"),
        pytest.param(
            "SELECT key FROM w WHERE n IN (SELECT n FROM w WHERE raise_error('no') IS NULL)",
            "no",
            marks=pytest.mark.sweep,
        ),
        pytest.param(
            "SELECT key, (SELECT n FROM w) AS n FROM w",
            "More than one row returned by a subquery",
            marks=pytest.mark.sweep,
        ),
    ],
)
async def test_an_error_in_a_subquery_or_the_other_side_of_a_join_is_the_windows(
    client: SparkClient, tmp_path: Path, query: str, reason: str
) -> None:
    windows = write_windows(tmp_path / "log", [12, 13])
    query = f"WITH w AS (SELECT key, value.n AS n FROM window) {query}"
    _, summary = await client.run(request(tmp_path / "log", windows, sql(query)))
    (failure,) = summary.failures
    assert reason in failure.reason
    assert "SQLSTATE" not in failure.reason


async def test_an_exception_of_any_class_is_told_in_its_own_words(client: SparkClient, tmp_path: Path) -> None:
    failure = await failure_of(client, tmp_path, python(tmp_path, "panics"))
    assert failure.reason == "functions.Panic: index out of bounds | more"
    assert "in panics" in failure.detail
    assert "at org.apache" not in failure.detail


@pytest.mark.sweep
async def test_a_job_that_fails_without_a_known_reason_is_not_repeated_without_end(
    client: SparkClient, tmp_path: Path
) -> None:
    windows = write_windows(tmp_path / "log", [1], [13])
    query = "SELECT reflect('java.lang.Integer', 'parseInt', if(value.n = 13, 'x', '7')) AS n FROM window"
    table, summary = await client.run(request(tmp_path / "log", windows, sql(query, unsafe=True)))
    assert table["window"].to_pylist() == [0]
    (failure,) = summary.failures
    assert failure.window == 1
    assert failure.reason.startswith(
        f"computing this window alone has failed in {FAILURES_MAX} jobs one after the other"
    )
    assert "NumberFormatException" in failure.reason


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        pytest.param(
            "SELECT key, 1 / (value.n - 13) AS n FROM window",
            "line 1, column 13: Division by zero.",
            marks=pytest.mark.sweep,
        ),
        ("SELECT\n  key,\n  1 / (value.n - 13) AS n\nFROM window", "line 3, column 3: Division by zero."),
        # Aggregates are written again, so what failed is not in the user's text.
        ("SELECT 1 / (sum(value.n) - 13) AS n FROM window", "Division by zero."),
        pytest.param(
            "SELECT 1/(value.n-13) AS n FROM window WHERE 1/(value.n-13) < 100",
            "in `1/(value.n-13)`: Division by zero.",
            marks=pytest.mark.sweep,
        ),
    ],
)
async def test_a_place_in_a_query_is_that_in_the_users_text(
    client: SparkClient, tmp_path: Path, query: str, reason: str
) -> None:
    failure = await failure_of(client, tmp_path, sql(query))
    assert failure.reason.startswith(reason)


@pytest.mark.parametrize(
    ("query", "fault"),
    [
        (
            "SELECT 1 AS keys FROM window",
            "the result column keys is a list of texts, and here it is int: write array(…)",
        ),
        ("SELECT 'x' AS tags FROM window", "the result column tags is a list of texts, and here it is string"),
        ("SELECT array(array('x')) AS tags FROM window", "the result column tags is a list of texts"),
        ("SELECT * FROM VALUES (1) AS t(n)", "the query does not read the table `window`"),
        ("SELECT 'window' AS n", "the query does not read the table `window`"),
    ],
)
async def test_what_would_vanish_or_says_nothing_of_records_is_refused(
    client: SparkClient, query: str, fault: str
) -> None:
    (found,) = (await client.check(sql(query))).faults
    assert found.startswith(fault)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT array('x') AS tags, array(1, 2) AS keys FROM window",
        "SELECT NULL AS tags, count(*) AS n FROM window",
        "WITH a AS (SELECT key FROM `window`) SELECT * FROM a",
        "SELECT (SELECT count(*) FROM window) AS n",
    ],
)
async def test_lists_and_every_way_to_read_the_window_are_taken(client: SparkClient, query: str) -> None:
    assert not (await client.check(sql(query))).faults
