"""The sink of a NATS server outside, killed at every durable step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.recovery.killed_sinks import EXPECTED, kill_at
from tests.support.children import together
from tests.support.nats_outside import open_outside_nats

POINTS = [
    f"jetstream_sink.{step}:{side}#{time}"
    for step, time in (("take_over", 1), ("commit", 5))
    for side in ("before", "after")
]


@pytest.mark.guarantee("I1")
async def test_a_sink_is_killed_at_every_durable_step(tmp_path: Path) -> None:
    async with open_outside_nats(tmp_path / "nats") as nats:
        specs: dict[str, dict[str, Any]] = {}
        for index, point in enumerate(POINTS):
            name = f"s{index}"
            await nats.create(name, f"{name}.>", allow_atomic=True)
            specs[point] = {"jetstream": {**nats.settings, "subject": f"{name}.n", "positions": f"{name}.at"}}
        await together(*(kill_at(spec, point) for point, spec in specs.items()))
        for index, point in enumerate(POINTS):
            found = [json.loads(value)["n"] for value in await nats.values(f"s{index}", f"s{index}.n")]
            assert found == EXPECTED, point
