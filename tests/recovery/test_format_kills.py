"""A worker that is killed at each request to a schema registry, between two topics of Kafka, and a registry that dies.

Every record is in the target once, encoded with the schema that the registry has for it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fastavro import parse_schema, schemaless_reader, schemaless_writer

from tests.mesh.conftest import PipelineFiles
from tests.mesh.running import Running, start
from tests.support.kafka_server import KafkaServer
from tests.support.registry_server import RegistryServer, open_registry_server

PART = 300
"""Records before the registry dies, and after it."""
NEWER = {"type": "long", "default": 0}


def schema_of(encoding: str, name: str, *, newer: bool = False) -> dict[str, Any]:
    """Of a number; `newer`: with a member that has a default."""
    if encoding == "json":
        more = {"more": {"type": "integer"}} if newer else {}
        return {"title": name, "type": "object", "properties": {"n": {"type": "integer"}, **more}, "required": ["n"]}
    fields: list[dict[str, Any]] = [{"name": "n", "type": "long"}]
    return {"type": "record", "name": name, "fields": [*fields, *([{"name": "more", **NEWER}] if newer else [])]}


def encoded(encoding: str, schema: dict[str, Any], schema_id: int, numbers: Sequence[int]) -> list[bytes]:
    """As another program writes them."""
    found = []
    for n in numbers:
        value = {"n": n, "more": 0} if "more" in json.dumps(schema) else {"n": n}
        stream = BytesIO()
        if encoding == "json":
            stream.write(json.dumps(value).encode())
        else:
            schemaless_writer(stream, parse_schema(schema), value)
        found.append(b"\0" + schema_id.to_bytes(4) + stream.getvalue())
    return found


class Killer:
    """Kills the worker the first time that each request arrives, and the first time that each is answered."""

    def __init__(self, registry: RegistryServer, run: Running) -> None:
        self.moments: list[tuple[str, str]] = []
        """At which it was killed."""
        self._run = run
        registry.heard = self._heard

    def _heard(self, request: str, moment: str) -> None:
        if (request, moment) in self.moments:
            return
        with suppress(KeyError, ProcessLookupError):
            os.kill(self._run.pids()["in-0"], signal.SIGKILL)
            self.moments.append((request, moment))


@pytest.mark.sweep
@pytest.mark.guarantee("I1", "I2", "I9")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("encoding", ["avro", "json"])
async def test_killed_at_each_request_to_the_registry_each_record_is_there_once(
    kafka: KafkaServer, tmp_path: Path, encoding: str
) -> None:
    given, taken = kafka.create(f"given-{uuid4()}"), kafka.create(f"taken-{uuid4()}")
    files = PipelineFiles(tmp_path)
    written = schema_of(encoding, "Written", newer=True)
    async with open_registry_server() as registry:
        older, newer = (schema_of(encoding, "Given", newer=newer) for newer in (False, True))
        older_id = registry.register(f"{given}-value", older, encoding.upper())
        kafka.produce(given, encoded(encoding, older, older_id, range(PART)))
        form = {"encoding": encoding, "registry": {"url": registry.url, "timeout": "2s"}}
        source = {"kafka": {"brokers": [kafka.brokers], "topic": given, "start": "earliest"}, "format": form}
        sink_form = {**form, "schema": json.dumps(written), "autoRegister": True}
        sink = {"kafka": {"brokers": [kafka.brokers], "topic": taken}, "format": sink_form, "guarantee": "exactlyOnce"}
        vertices = f"- name: in\n  source: {json.dumps(source)}\n- name: out\n  sink: {json.dumps(sink)}\n"
        files.write(vertices, ["in -> out"])
        async with start(tmp_path, "run", "pipeline.yaml", "--quiet", "--workers", "1", "-o", "json") as run:
            killer = Killer(registry, run)
            await run.until(lambda: run.records("out") >= PART)
            await registry.stop()
            newer_id = registry.register(f"{given}-value", newer, encoding.upper())
            kafka.produce(given, encoded(encoding, newer, newer_id, range(PART, 2 * PART)))
            await run.until(lambda: "retrying" in run.err() or "registry" in run.err())
            await registry.start()
            await run.until(lambda: run.records("out") >= 2 * PART)
            run.interrupt()
            ended = await run.ended()
        written_id = registry.versions[f"{taken}-value", 1]["id"]
        assert registry.newest(f"{taken}-value") == 1
    assert ended.exit_code == 0, ended.err
    assert json.loads(ended.out.splitlines()[-1])["account"]["balanced"]
    fetched = [f"GET /schemas/ids/{number}" for number in (older_id, newer_id, written_id)]
    requests = [*fetched, f"POST /subjects/{taken}-value/versions"]
    assert sorted(killer.moments) == sorted((request, moment) for request in requests for moment in ("before", "after"))
    values = await asyncio.to_thread(kafka.values, taken)
    assert {value[:5] for value in values} == {b"\0" + written_id.to_bytes(4)}
    assert [number_of(encoding, written, value[5:]) for value in values] == [*range(2 * PART)]


def number_of(encoding: str, schema: dict[str, Any], value: bytes) -> int:
    found: Any = (
        json.loads(value) if encoding == "json" else schemaless_reader(BytesIO(value), parse_schema(schema), None)
    )
    return int(found["n"])
