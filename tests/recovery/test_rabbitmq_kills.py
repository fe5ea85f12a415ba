"""A pipeline between two queues of RabbitMQ, and all that it needs, killed at random."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from string import Template

import pytest

from tests.mesh.running import start
from tests.recovery.kills import OUTSIDE, kill_in_turn
from tests.support.rabbit_server import RabbitServer

PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
  - name: in
    source:
      rabbitmq: {queue: $source, url: $url, stream: $stream}
      guarantee: exactlyOnce
  - name: same
    udf: {builtin: {name: cat}}
  - name: out
    sink: {rabbitmq: {routingKey: $target, url: $url}}
  edges:
  - {from: in, to: same}
  - {from: same, to: out}
"""
_EACH = 500


@pytest.mark.guarantee("I1", "I2", "I9")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("stream", [False, True], ids=["queue", "stream"])
@pytest.mark.sweep
async def test_each_message_counts_once_though_everything_is_killed(
    rabbit: RabbitServer, tmp_path: Path, stream: bool
) -> None:
    source, target = rabbit.stream() if stream else rabbit.queue("quorum"), rabbit.queue()
    names = {"source": source, "target": target, "url": rabbit.settings["url"], "stream": str(stream).lower()}
    text = Template(PIPELINE).substitute(names)
    (tmp_path / "pipeline.yaml").write_text(text)
    victims = ("in-0", OUTSIDE, "in-0", "broker", "in-0")

    async def feed(part: int) -> None:
        values = [b"%d" % n for n in range(_EACH * part, _EACH * part + _EACH)]
        await asyncio.to_thread(rabbit.send, source, values, ids=f"{part}-")

    async def restart() -> None:
        rabbit.kill()
        rabbit.start()
        if stream:
            rabbit.until_there(source)

    async with start(tmp_path, "run", "pipeline.yaml") as run:
        await kill_in_turn(run, victims, restart, feed=feed)
        await run.until(lambda: run.records("out") >= _EACH * len(victims))
        run.interrupt()
        ended = await run.ended()
    assert ended.exit_code == 0, ended.err
    assert "account: BALANCED" in ended.out
    assert stream or rabbit.left(source) == 0
    # The sink may send a message again after a failure, with the same id; by its id each is there once.
    by_id: dict[str, int] = {}
    for message in await asyncio.to_thread(rabbit.taken, target):
        number = json.loads(message.body)
        assert by_id.setdefault(message.header.properties.message_id, number) == number
    assert sorted(by_id.values()) == [*range(_EACH * len(victims))]
