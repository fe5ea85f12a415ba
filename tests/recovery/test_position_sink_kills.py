"""A user-defined sink that keeps positions, in pipelines in which workers, functions and the broker are killed."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from millstream import codes
from millstream.errors import UdfError
from tests.mesh.conftest import PipelineFiles
from tests.mesh.running import Running, start
from tests.recovery.killed_sinks import EXPECTED, kill_at
from tests.recovery.test_unbuffered_kills import POSITION_VALUES, kill, position_sink, position_sink_rows
from tests.support.pipelines import open_pipeline

PART = 300
"""Records between two kills."""
FLUSHES = [f"udsink.flush:{side}{time}" for side in ("before", "after") for time in ("", "#7")]
SOME = ("udsink.flush:before", "udsink.flush:after#7")
POINTS = [
    pytest.param(point, marks=() if point in SOME else pytest.mark.sweep)
    for point in ("udsink.open:before", "udsink.open:after", *FLUSHES)
]


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize("point", POINTS)
async def test_a_vertex_that_is_killed_at_a_step_is_followed_by_one_that_writes_what_is_missing(
    tmp_path: Path, point: str
) -> None:
    await kill_at(position_sink(tmp_path).sink, point)
    assert [row["n"] for row in position_sink_rows(tmp_path / "values")] == EXPECTED


@pytest.mark.sweep
@pytest.mark.guarantee("I1", "I2")
@pytest.mark.timeout(900)
async def test_each_record_is_there_once_though_everything_is_killed(tmp_path: Path) -> None:
    files, place = PipelineFiles(tmp_path), position_sink(tmp_path)
    sink = json.dumps({**place.sink, "guarantee": "exactlyOnce"})
    files.write(f"{files.fed_source()}- name: out\n  sink: {sink}\n", ["in -> out"])
    files.feed(range(PART))
    kills: list[Callable[[Running], object]] = [
        lambda run: kill(run, "out-0"),
        kill_functions,
        lambda run: kill(run, "broker"),
        lambda run: kill(run, "out-0", "broker"),
        kill_functions,
    ]
    async with start(tmp_path, "run", "pipeline.yaml", "--quiet", "-o", "json") as run:
        for number, one in enumerate(kills, 1):
            await run.until(lambda number=number: run.records("out") > (number - 1) * PART)  # type: ignore[misc]
            one(run)
            files.feed(range(number * PART, (number + 1) * PART))
        records = (len(kills) + 1) * PART
        await run.until(lambda: run.records("out") >= records)
        run.interrupt()
        ended = await run.ended()
    assert ended.exit_code == 0, ended.err
    account = json.loads(ended.out.splitlines()[-1])["account"]
    assert account["balanced"]
    counts = {one["vertex"]: (one["inputs"], one["processed"]) for one in account["vertices"]}
    assert counts["out"] == (records, records)
    assert [row["number"] for row in place.rows()] == [*range(records)]


def kill_functions(run: Running) -> None:
    """Children of the worker that has the sink."""
    with suppress(KeyError, psutil.NoSuchProcess):
        for child in psutil.Process(run.pids()["out-0"]).children(recursive=True):
            child.kill()


async def test_a_function_that_keeps_no_positions_is_refused_where_exactly_once_is_required(tmp_path: Path) -> None:
    files = PipelineFiles(tmp_path)
    sink = {"udsink": {"python": f"{POSITION_VALUES}:keep_nothing"}, "guarantee": "exactlyOnce"}
    path = files.write(f"{files.generator(10)}- name: out\n  sink: {json.dumps(sink)}\n", ["in -> out"])
    async with open_pipeline(path, tmp_path / "broker") as run:
        with pytest.raises(BaseExceptionGroup) as caught:
            await run.run()
        assert (await run.account("out")).inputs == 0
    assert caught.group_contains(UdfError, match="needs a function that keeps positions")
    refused = caught.value.subgroup(UdfError)
    assert refused is not None
    assert [error.code for error in leaves(refused) if isinstance(error, UdfError)] == [codes.FUNCTION_POSITIONS]


def leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """Errors that are not groups."""
    found: list[BaseException] = []
    for error in group.exceptions:
        found += leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
