"""What every engine must do: the one in memory, and Spark."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from millstream.errors import DamageError
from millstream.wire.reduce.v1 import engine_pb2
from millstream_reduce.engine import RESULT_SCHEMA, WindowEngine
from millstream_reduce.log.entries import segment_name
from millstream_reduce.memory import MemoryEngine, WindowRow
from millstream_reduce.spark.wire import open_spark_client
from millstream_reduce.values import Piece, Window, WindowContents
from tests.contract.reduce.spark_requests import expected_totals, request, sql, totals, write_windows
from tests.support.children import together

if TYPE_CHECKING:
    from tests.spark_driver import SparkDriver

LIMIT_S = 270.0
PROGRAM = sql(
    "SELECT key, count(*) AS n, sum(value.n DIV (CASE value.n WHEN 13 THEN 0 ELSE 1 END)) AS total "
    "FROM window GROUP BY key"
)
"""Counts and sums up by key. The number 13 fails."""

pytestmark = pytest.mark.timeout(900)


def counted(keys: tuple[str, ...], rows: Sequence[WindowRow]) -> list[bytes]:
    """What `PROGRAM` computes."""
    numbers = [json.loads(row.value)["n"] for row in rows]
    total = sum(n // (0 if n == 13 else 1) for n in numbers)
    return [json.dumps({"key": keys[0], "n": len(numbers), "total": total}).encode()]


@pytest.fixture(params=["memory", "spark"])
def driver(request: pytest.FixtureRequest) -> SparkDriver | None:
    """Spark's; the engine in memory has none."""
    if request.param == "memory":
        return None
    driver: SparkDriver = request.getfixturevalue("spark")
    return driver


@pytest.fixture
async def engine(driver: SparkDriver | None) -> AsyncIterator[WindowEngine]:
    async with asyncio.timeout(LIMIT_S):
        if driver is None:
            yield MemoryEngine(counted)
            return
        async with open_spark_client(driver.address) as client:
            yield client


async def test_every_window_and_group_has_its_results(engine: WindowEngine, tmp_path: Path) -> None:
    numbers = [[1, 2, 3], [4], [5, 7, 9]]
    table, summary = await engine.run(request(tmp_path, write_windows(tmp_path, *numbers), PROGRAM))
    assert table.schema.equals(RESULT_SCHEMA)
    assert totals(table) == expected_totals(*numbers)
    assert not summary.failures
    assert summary.job_tag


@pytest.mark.guarantee("I3")
async def test_it_may_be_asked_again_and_twice_at_once(engine: WindowEngine, tmp_path: Path) -> None:
    message = request(tmp_path, write_windows(tmp_path, [1, 2, 3], [4, 6]), PROGRAM)
    before = sorted(path.name for path in tmp_path.iterdir())
    first, _ = await engine.run(message)
    for table, _ in await together(engine.run(message), engine.run(message)):
        assert totals(table) == totals(first) == expected_totals([1, 2, 3], [4, 6])
    assert sorted(path.name for path in tmp_path.iterdir()) == before


async def test_a_request_that_is_given_up_leaves_nothing_behind(engine: WindowEngine, tmp_path: Path) -> None:
    message = request(tmp_path, write_windows(tmp_path, [1, 2, 3]), PROGRAM)
    given_up = asyncio.ensure_future(engine.run(message))
    await asyncio.sleep(0)
    given_up.cancel()
    table, _ = await engine.run(message)
    assert totals(table) == expected_totals([1, 2, 3])


@pytest.mark.guarantee("I3")
async def test_a_window_has_the_rows_that_its_pieces_name_and_no_others(engine: WindowEngine, tmp_path: Path) -> None:
    """An entry may hold rows of several windows, and a window rows of several entries."""
    first, second = write_windows(tmp_path, [1, 2, 3, 4], [5, 6, 7])
    pieces = [
        Piece(*entry.pieces[0].location, first_row, rows) for entry, first_row, rows in ((first, 1, 2), (second, 2, 1))
    ]
    both = WindowContents(Window(first.window.start_us, second.window.end_us), tuple(pieces))
    table, _ = await engine.run(request(tmp_path, [both, second], PROGRAM))
    assert totals(table) == expected_totals([2, 3, 7], [5, 6, 7])


@pytest.mark.guarantee("I3")
async def test_values_may_be_columns_in_some_entries(engine: WindowEngine, tmp_path: Path) -> None:
    """Those of the declared type, those of another one, and JSON, also in one window."""
    numbers = [[1, 2, 3], [4, 5], [7, 9]]
    windows = write_windows(tmp_path, *numbers, columns={1: pa.int64(), 2: pa.uint8()})
    whole = WindowContents(Window(0, 9_000_000), tuple(window.pieces[0] for window in windows))
    table, summary = await engine.run(request(tmp_path, [*windows, whole], PROGRAM))
    assert not summary.failures
    assert totals(table) == expected_totals(*numbers, [1, 2, 3, 4, 5, 7, 9])


async def test_a_window_that_fails_is_named_and_its_neighbours_have_results(
    engine: WindowEngine, tmp_path: Path
) -> None:
    windows = write_windows(tmp_path, [1, 2], [3, 13], [4])
    table, summary = await engine.run(request(tmp_path, windows, PROGRAM))
    assert totals(table) == expected_totals([1, 2], [], [4])
    (failure,) = summary.failures
    assert failure.window == 1
    assert "zero" in failure.reason
    assert "\n" not in failure.reason


@pytest.mark.guarantee("I10")
@pytest.mark.parametrize("damage", ["a flipped bit", "a segment that is gone"])
async def test_damage_is_raised_with_the_segment(engine: WindowEngine, damage: str, tmp_path: Path) -> None:
    windows = write_windows(tmp_path, [1, 2, 3])
    segment = tmp_path / segment_name(1)
    if damage == "a flipped bit":
        data = bytearray(segment.read_bytes())
        data[len(data) // 2] ^= 1
        segment.write_bytes(data)
    else:
        segment.unlink()
    with pytest.raises(DamageError, match=segment_name(1)):
        await engine.run(request(tmp_path, windows, PROGRAM))


async def test_a_program_is_checked_without_a_window(engine: WindowEngine) -> None:
    assert not (await engine.check(PROGRAM)).faults


async def test_a_program_that_cannot_run_is_refused_with_the_reason(engine: WindowEngine) -> None:
    if isinstance(engine, MemoryEngine):
        engine.faults.refusals.append("cuont is not a function")
    answer: engine_pb2.CheckResponse = await engine.check(sql("SELECT cuont(*) AS n FROM window"))
    assert ["cuont" in fault for fault in answer.faults] == [True]


async def test_the_engine_in_memory_dies_before_its_answer_and_is_asked_again(tmp_path: Path) -> None:
    asked = 0

    def counting(keys: tuple[str, ...], rows: Sequence[WindowRow]) -> list[bytes]:
        nonlocal asked
        asked += 1
        return counted(keys, rows)

    engine = MemoryEngine(counting)
    engine.faults.deaths = 2
    engine.faults.failing.add(0)
    table, summary = await engine.run(request(tmp_path, write_windows(tmp_path, [1], [2]), PROGRAM))
    assert asked == 5
    assert totals(table) == expected_totals([1], [2])
    assert not summary.failures
