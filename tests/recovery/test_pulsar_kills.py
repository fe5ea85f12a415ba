"""A pipeline between two topics of Pulsar, and all that it needs, killed at random."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from string import Template

import pytest

from tests.mesh.running import start
from tests.recovery.kills import OUTSIDE, kill_in_turn
from tests.support.pulsar_server import EXACT, PulsarServer

PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
  - name: in
    source:
      pulsar: $source
      guarantee: exactlyOnce
    partitions: 2
  - name: same
    udf: {builtin: {name: cat}}
  - name: out
    sink:
      pulsar: $target
      guarantee: exactlyOnce
  edges:
  - {from: in, to: same}
  - {from: same, to: out}
"""
_EACH = 500


@pytest.mark.guarantee("I1", "I2", "I9")
@pytest.mark.timeout(900)
@pytest.mark.sweep
async def test_each_message_counts_once_though_everything_is_killed(pulsar: PulsarServer, tmp_path: Path) -> None:
    source, target = pulsar.topic(2), pulsar.topic(2, EXACT)
    settings = {**pulsar.settings, "topic": source, "subscriptionName": "totals"}
    written = {**pulsar.settings, "topic": target}
    text = Template(PIPELINE).substitute(source=json.dumps(settings), target=json.dumps(written))
    (tmp_path / "pipeline.yaml").write_text(text)
    victims = ("out-0", OUTSIDE, "in-0")

    async def feed(part: int) -> None:
        values = [b"%d" % n for n in range(_EACH * part, _EACH * part + _EACH)]
        await asyncio.to_thread(pulsar.send, source, values)

    async def restart() -> None:
        # Not in a thread: the server ends with the one that started it.
        pulsar.kill()
        pulsar.start()

    async with start(tmp_path, "run", "pipeline.yaml") as run:
        await kill_in_turn(run, victims, restart, feed=feed)
        await run.until(lambda: run.records("out") >= _EACH * len(victims))
        run.interrupt()
        ended = await run.ended()
    assert ended.exit_code == 0, ended.err
    assert "account: BALANCED" in ended.out
    assert sorted(int(value) for value in pulsar.values(target)) == [*range(_EACH * len(victims))]
