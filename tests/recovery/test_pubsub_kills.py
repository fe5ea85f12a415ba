"""A pipeline between two topics of an emulated Pub/Sub, killed at random. The emulator itself would forget all."""

from __future__ import annotations

import json
from pathlib import Path
from string import Template

import pytest

from tests.contract.sinks.file_target import finished_files
from tests.mesh.running import start
from tests.recovery.kills import kill_in_turn
from tests.support.pubsub_server import PubsubServer

PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
  - name: in
    source:
      pubsub: $source
      guarantee: exactlyOnce
  - name: same
    udf: {builtin: {name: cat}}
  - name: out
    sink:
      file: {path: out, format: jsonl}
  - name: topic
    sink: {pubsub: $target}
  edges:
  - {from: in, to: same}
  - {from: same, to: out}
  - {from: same, to: topic}
"""
_EACH = 40


@pytest.mark.sweep
@pytest.mark.guarantee("I1", "I2", "I9")
@pytest.mark.timeout(900)
async def test_each_message_counts_once_though_everything_is_killed(pubsub: PubsubServer, tmp_path: Path) -> None:
    source, target = pubsub.queue(), pubsub.queue()
    read = {**pubsub.source(source), "ackDeadline": "3s"}
    settings = {"source": json.dumps(read), "target": json.dumps(pubsub.sink(target))}
    text = Template(PIPELINE).substitute(settings)
    (tmp_path / "pipeline.yaml").write_text(text)
    victims = ("in-0", "broker", "topic-0", "in-0")

    async def feed(part: int) -> None:
        pubsub.send(source, [b"%d" % n for n in range(_EACH * part, _EACH * part + _EACH)])

    async with start(tmp_path, "run", "pipeline.yaml") as run:
        await kill_in_turn(run, victims, feed=feed)
        await run.until(lambda: min(run.records("out"), run.records("topic")) >= _EACH * len(victims))
        run.interrupt()
        ended = await run.ended()
    assert ended.exit_code == 0, ended.err
    assert "account: BALANCED" in ended.out
    found = [int(line) for file in finished_files(tmp_path / "out") for line in file.read_text().splitlines()]
    assert sorted(found) == [*range(_EACH * len(victims))]
    assert pubsub.left(source) == 0
    # The sink may publish again, with the same id, by which a reader knows it.
    published = {message.attributes["Millstream-Id"]: int(message.data) for message in pubsub.taken(target)}
    assert sorted(published.values()) == [*range(_EACH * len(victims))]
