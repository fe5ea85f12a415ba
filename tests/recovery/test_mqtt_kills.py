"""A pipeline between two topics of MQTT, and all that it needs, killed at random.

Mosquitto stores its sessions when it ends, and loses them when it is killed, so it is stopped and started again.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from string import Template

import pytest

from tests.mesh.running import start
from tests.recovery.kills import OUTSIDE, kill_in_turn
from tests.support.mqtt_broker import PASSWORD, MqttServer, carried

PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
  - name: in
    source:
      mqtt: $source
      guarantee: exactlyOnce
  - name: same
    udf: {builtin: {name: cat}}
  - name: out
    sink: {mqtt: $target}
  edges:
  - {from: in, to: same}
  - {from: same, to: out}
"""
_EACH = 500


@pytest.mark.sweep
@pytest.mark.guarantee("I1", "I2", "I9")
@pytest.mark.timeout(900)
async def test_each_message_counts_once_though_everything_is_killed(mqtt: MqttServer, tmp_path: Path) -> None:
    source, target = mqtt.topic(), mqtt.topic()
    (tmp_path / "password").write_text(PASSWORD)
    settings = {**mqtt.settings, "password": {"file": "password"}}
    read, written = {**settings, "topic": source, "session": f"s-{source}"}, {**settings, "topic": target}
    text = Template(PIPELINE).substitute(source=json.dumps(read), target=json.dumps(written))
    (tmp_path / "pipeline.yaml").write_text(text)
    victims = ("in-0", OUTSIDE, "in-0", "broker", "in-0")
    mqtt.keep(target)

    async def feed(part: int) -> None:
        values = [b"%d" % n for n in range(_EACH * part, _EACH * part + _EACH)]
        await asyncio.to_thread(mqtt.send, source, values, ids=f"{part}-")

    async def restart() -> None:
        mqtt.stop()
        mqtt.start()

    async with start(tmp_path, "run", "pipeline.yaml") as run:
        await asyncio.to_thread(mqtt.until_subscribed, source)
        await kill_in_turn(run, victims, restart, feed=feed)
        await run.until(lambda: run.records("out") >= _EACH * len(victims))
        run.interrupt()
        ended = await run.ended()
    assert ended.exit_code == 0, ended.err
    assert "account: BALANCED" in ended.out
    # The sink may send a message again after a failure, with the same id; by its id each is there once.
    by_id: dict[str, int] = {}
    for message in await asyncio.to_thread(mqtt.kept, target):
        number = json.loads(message.payload)
        assert by_id.setdefault(carried(message)["Millstream-Id"], number) == number
    assert sorted(by_id.values()) == [*range(_EACH * len(victims))]
