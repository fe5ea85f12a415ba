"""A pipeline between two queues of an emulated SQS, killed at random. The emulator forgets all when it is killed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from string import Template

import pytest

from tests.mesh.running import start
from tests.recovery.kills import kill_in_turn
from tests.support.sqs_server import SqsServer

PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
  - name: in
    source:
      sqs: $source
      guarantee: exactlyOnce
  - name: same
    udf: {builtin: {name: cat}}
  - name: out
    sink: {sqs: $target}
  edges:
  - {from: in, to: same}
  - {from: same, to: out}
"""
_EACH = 40


@pytest.mark.sweep
@pytest.mark.guarantee("I1", "I2", "I9")
@pytest.mark.timeout(900)
async def test_each_message_counts_once_though_everything_is_killed(sqs: SqsServer, tmp_path: Path) -> None:
    source, target = sqs.queue(), sqs.queue(fifo=True)
    read = {**sqs.settings(source), "visibilityTimeout": "3s"}
    settings = {"source": json.dumps(read), "target": json.dumps(sqs.settings(target))}
    text = Template(PIPELINE).substitute(settings)
    (tmp_path / "pipeline.yaml").write_text(text)
    victims = ("in-0", "broker", "in-0")

    async def feed(part: int) -> None:
        await asyncio.to_thread(sqs.send, source, [b"%d" % n for n in range(_EACH * part, _EACH * part + _EACH)])

    async with start(tmp_path, "run", "pipeline.yaml") as run:
        await kill_in_turn(run, victims, feed=feed)
        await run.until(lambda: run.records("out") >= _EACH * len(victims))
        run.interrupt()
        ended = await run.ended()
    assert ended.exit_code == 0, ended.err
    assert "account: BALANCED" in ended.out
    found = [int(message["Body"]) for message in await asyncio.to_thread(sqs.taken, target)]
    # The FIFO queue leaves out what the sink sends again.
    assert sorted(found) == [*range(_EACH * len(victims))]
