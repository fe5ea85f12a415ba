"""Pipelines into a stand-in for BigQuery, killed at random; and the sink at every durable step."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.sinks.sink_targets import NUMBERS, bigquery_numbers, bigquery_spec
from tests.recovery.killed_sinks import EXPECTED, kill_at
from tests.recovery.kills import OUTSIDE, killed_in_turn
from tests.support.bigquery_server import BigQueryServer, open_bigquery

PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
  - name: in
    source: {generator: {rpu: 250, keyCount: 20}}
  - name: out
    partitions: 2
    sink:
      bigquery: SETTINGS
      guarantee: exactlyOnce
  edges:
  - {from: in, to: out}
"""
POINTS = [
    f"bigquery_sink.{step}:{side}#{time}"
    for step, times in (("create", (1,)), ("claim", (1,)), ("note", (1, 4)), ("append", (1, 4)))
    for side in ("before", "after")
    for time in times
]
SOME = ("note:before#4", "append:after#1")
"""Where rows and position differ; a kill at any other step is tried by `make test-all`."""


@pytest.fixture
def server() -> Iterator[BigQueryServer]:
    with open_bigquery() as opened:
        yield opened


@pytest.mark.guarantee("I1", "I2", "I9")
@pytest.mark.timeout(900)
@pytest.mark.sweep
async def test_each_record_is_there_once_though_everything_is_killed(server: BigQueryServer, tmp_path: Path) -> None:
    table = server.create({"number": "INT64"})
    options = {"table": table, "positionTable": f"{table}_positions", "columns": [{"name": "number"}]}

    async def restart() -> None:
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(server.start)

    text = PIPELINE.replace("SETTINGS", json.dumps({**server.settings, **options}))
    made = await killed_in_turn(tmp_path, text, ("out-0", OUTSIDE, "broker", "out-0"), restart)
    assert sorted(row["number"] for row in server.rows(table)) == [*range(made)]


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize(
    "point", [pytest.param(point, marks=() if point.endswith(SOME) else pytest.mark.sweep) for point in POINTS]
)
async def test_killed_at_a_step_each_record_is_there_once(server: BigQueryServer, point: str) -> None:
    table = server.create(NUMBERS)
    await kill_at(bigquery_spec(server, table).as_written(given_only=True), point)
    assert bigquery_numbers(server, table) == EXPECTED


@pytest.mark.sweep
@pytest.mark.guarantee("I1")
@pytest.mark.parametrize("side", ["before", "after"])
async def test_killed_while_the_stream_of_another_is_finalized(server: BigQueryServer, side: str) -> None:
    table = server.create(NUMBERS)
    spec = bigquery_spec(server, table).as_written(given_only=True)
    await kill_at(spec, "bigquery_sink.append:after#3")
    await kill_at(spec, f"bigquery_sink.finalize:{side}#1", epochs=(3, 4))
    assert bigquery_numbers(server, table) == EXPECTED
