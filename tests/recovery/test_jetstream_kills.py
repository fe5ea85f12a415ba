"""A pipeline between streams of a NATS server outside, and all that it needs, killed at random; and its sink at every
durable step."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.mesh.running import start
from tests.recovery.killed_sinks import EXPECTED, kill_at
from tests.support.nats_outside import OutsideNats, open_outside_nats

PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
  - name: in
    source: {jetstream: {stream: numbers, SERVER}}
  - name: same
    udf: {builtin: {name: cat}}
  - name: out
    sink: {jetstream: {subject: seen.all, positions: positions, SERVER}}
  edges:
  - {from: in, to: same}
  - {from: same, to: out}
"""
POINTS = [
    f"jetstream_sink.{step}:{side}#{time}"
    for step, time in (("take_over", 1), ("commit", 5))
    for side in ("before", "after")
]


def settings(nats: OutsideNats) -> str:
    return ", ".join(f"{name}: {json.dumps(value)}" for name, value in nats.settings.items())


@pytest.mark.guarantee("I1", "I2", "I9")
@pytest.mark.timeout(240)
async def test_a_stream_that_is_read_into_another_is_there_once_though_everything_is_killed(tmp_path: Path) -> None:
    async with open_outside_nats(tmp_path / "nats") as nats:
        await nats.create("numbers")
        await nats.create("seen", "seen.>", "positions.>", allow_atomic=True, allow_rollup_hdrs=True)
        (tmp_path / "pipeline.yaml").write_text(PIPELINE.replace("SERVER", settings(nats)))
        async with start(tmp_path, "run", "pipeline.yaml") as run:
            for kill, victim in enumerate(("in-0", "nats", "broker", "out-0", "nats")):
                await nats.publish("numbers.n", *(b"%d" % n for n in range(400 * kill, 400 * kill + 400)))
                seen = run.records("out")
                await run.until(lambda seen=seen: run.records("out") > seen)  # type: ignore[misc]
                if victim == "nats":
                    await nats.server.restart()
                    await nats.connection.connected()
                else:
                    with suppress(ProcessLookupError, KeyError):
                        os.kill(run.pids()[victim], signal.SIGKILL)
            await run.until(lambda: len(nats.values_at_once("seen", "seen.all")) >= 2000)
            run.interrupt()
            ended = await run.ended()
        assert ended.exit_code == 0, ended.err
        assert "account: BALANCED" in ended.out
        assert [int(value) for value in await nats.values("seen", "seen.all")] == [*range(2000)]


@pytest.mark.guarantee("I1")
async def test_a_sink_is_killed_at_every_durable_step(tmp_path: Path) -> None:
    async with open_outside_nats(tmp_path / "nats") as nats:
        specs: dict[str, dict[str, Any]] = {}
        for index, point in enumerate(POINTS):
            name = f"s{index}"
            await nats.create(name, f"{name}.>", allow_atomic=True)
            specs[point] = {"jetstream": {**nats.settings, "subject": f"{name}.n", "positions": f"{name}.at"}}
        await asyncio.gather(*(kill_at(spec, point) for point, spec in specs.items()))
        for index, point in enumerate(POINTS):
            found = [json.loads(value)["n"] for value in await nats.values(f"s{index}", f"s{index}.n")]
            assert found == EXPECTED, point
