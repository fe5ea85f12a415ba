"""Random pipelines with two inputs everywhere, disturbed; `benchmarks/two_inputs.py` runs hundreds of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.mesh.two_inputs import Experiment

if TYPE_CHECKING:
    from tests.spark_driver import SparkDriver


@pytest.mark.guarantee("I1", "I2")
async def test_every_sink_holds_the_records_of_all_its_inputs(tmp_path: Path) -> None:
    experiment = Experiment(4, tmp_path, windows=False)
    assert await experiment.run(None) == []


@pytest.mark.sweep
@pytest.mark.guarantee("I1", "I2", "I3")
async def test_windows_and_late_records_hold_the_records_of_all_inputs(tmp_path: Path, spark: SparkDriver) -> None:
    experiment = Experiment(102, tmp_path, windows=True)
    assert await experiment.run(spark.address) == []
    assert experiment.late > 0
