"""The delta and iceberg sinks, killed at each of their durable steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.sinks.sink_targets import delta_numbers, delta_spec, iceberg_numbers, iceberg_spec
from tests.recovery.killed_sinks import EXPECTED, kill_at
from tests.support import sizes

COMMITS = {"commitEvery": "1h", "maxRecords": 20}
MORE = ("open_catalog", "create_namespace", "write") if sizes.ALL else ()


def points(sink: str, once: tuple[str, ...], twice: tuple[str, ...]) -> list[str]:
    """Both sides of each step; of those that come again, also the second time."""
    times = [(step, (1,)) for step in once] + [(step, (1, 2)) for step in twice]
    return [
        f"{sink}.{step}:{side}#{time}" for step, numbers in times for side in ("before", "after") for time in numbers
    ]


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize("point", points("delta_sink", ("create", "take_over"), ("commit",)))
async def test_killed_at_a_step_each_record_is_there_once(tmp_path: Path, point: str) -> None:
    spec = delta_spec(str(tmp_path / "table"), **COMMITS)
    await kill_at(spec.as_written(given_only=True), point)
    assert delta_numbers(tmp_path / "table") == EXPECTED


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize("point", points("iceberg_sink", ("create", "take_over", *MORE), ("commit",)))
async def test_killed_at_a_step_of_iceberg_each_record_is_there_once(tmp_path: Path, point: str) -> None:
    spec = iceberg_spec(tmp_path, **COMMITS)
    await kill_at(spec.as_written(given_only=True), point)
    assert iceberg_numbers(tmp_path) == EXPECTED
