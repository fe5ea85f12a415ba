"""The delta sink, killed at each of its durable steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.sinks.file_target import COLUMNS
from tests.contract.sinks.sink_targets import delta_numbers
from tests.recovery.killed_sinks import EXPECTED, kill_at

POINTS = [
    f"delta_sink.{step}:{side}#{time}"
    for step, times in (("create", (1,)), ("take_over", (1,)), ("commit", (1, 2)))
    for side in ("before", "after")
    for time in times
]


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize("point", POINTS)
async def test_killed_at_a_step_each_record_is_there_once(tmp_path: Path, point: str) -> None:
    spec = {"path": str(tmp_path / "table"), "columns": COLUMNS, "commitEvery": "1h", "maxRecords": 20}
    await kill_at({"delta": spec}, point)
    assert delta_numbers(tmp_path / "table") == EXPECTED
