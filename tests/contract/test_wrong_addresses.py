"""Addresses where nothing listens: what `validate --online` says about each kind of source and sink."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from millstream import codes
from millstream.ports import free_ports
from millstream.spec.connectors import SINKS, SOURCES
from millstream_runner.cli.main import main

LOCAL = {"generator", "log", "blackhole", "udsource", "udsink"}
"""Kinds that reach no server by themselves."""
COLUMNS = [{"name": "n", "type": "int"}]


def sources(port: int) -> dict[str, Any]:
    """Settings of each kind of source, for a server at that port."""
    at = f"127.0.0.1:{port}"
    server = {"host": "127.0.0.1", "port": port, "database": "d", "user": "u"}
    store = {"endpoint": f"http://{at}", "accessKey": "a", "secretKey": "b", "timeout": "1s"}
    return {
        "file": {"paths": ["s3://bucket/in/*"], "store": store, "follow": True},
        "httpPoll": {"url": f"http://{at}/"},
        "sse": {"url": f"http://{at}/"},
        "websocket": {"url": f"ws://{at}/"},
        "kafka": {"brokers": [at], "topic": "t", "timeout": "2s"},
        "jetstream": {"url": f"nats://{at}", "stream": "s", "timeout": "1s"},
        "nats": {"url": f"nats://{at}", "subject": "s", "timeout": "1s"},
        "postgres": {**server, "query": "SELECT 1 AS n", "cursor": ["n"]},
        "delta": {"path": "s3://bucket/table", "store": store},
        "iceberg": {"catalog": {"rest": f"http://{at}"}, "table": "a.b", "store": store},
        "mqtt": {"url": f"mqtt://{at}", "topic": "t", "session": "s", "timeout": "1s"},
        "pubsub": {"project": "shop", "subscription": "orders", "endpoint": f"http://{at}", "timeout": "1s"},
        "pulsar": {"serverAddr": f"pulsar://{at}", "topic": "t", "subscriptionName": "s", "timeout": "1s"},
        "rabbitmq": {"url": f"amqp://{at}", "queue": "q", "timeout": "1s"},
        "redisStreams": {"url": f"redis://{at}", "stream": "s", "timeout": "1s"},
        "sql": {"url": f"mariadb+pymysql://{at}/d", "user": "u", "table": "t", "timeout": "2s"},
        "sqs": {"queueUrl": f"http://{at}/1/q", "accessKey": "a", "secretKey": "b", "timeout": "1s"},
    }


def sinks(port: int) -> dict[str, Any]:
    """The same of each kind of sink."""
    at, same = f"127.0.0.1:{port}", sources(port)
    store = same["delta"]["store"]
    server = {name: same["postgres"][name] for name in ("host", "port", "database", "user")}
    return {
        "file": {"path": "s3://bucket/out", "store": store},
        "http": {"url": f"http://{at}/"},
        "kafka": same["kafka"],
        "jetstream": {"url": f"nats://{at}", "subject": "s", "timeout": "1s"},
        "nats": same["nats"],
        "postgres": {**server, "table": "t", "columns": [{"name": "n"}]},
        "delta": {**same["delta"], "columns": COLUMNS},
        "iceberg": {**same["iceberg"], "columns": COLUMNS},
        "mqtt": {"url": f"mqtt://{at}", "topic": "t", "timeout": "1s"},
        "bigquery": {
            "project": "shop",
            "dataset": "d",
            "table": "t",
            "columns": [{"name": "n"}],
            "endpoint": f"http://{at}",
            "timeout": "1s",
        },
        "opensearch": {"url": f"http://{at}", "index": "i"},
        "pubsub": {"project": "shop", "topic": "orders", "endpoint": f"http://{at}", "timeout": "1s"},
        "pulsar": {"serverAddr": f"pulsar://{at}", "topic": "t", "timeout": "1s"},
        "rabbitmq": {"url": f"amqp://{at}", "routingKey": "q", "timeout": "1s"},
        "redisStreams": same["redisStreams"],
        "sql": {**same["sql"], "columns": [{"name": "n"}]},
        "sqs": same["sqs"],
    }


def test_each_kind_that_reaches_a_server_is_here() -> None:
    assert {*SOURCES.names} - LOCAL - sources(1).keys() == {"http"}, "others connect to it"
    assert {*SINKS.names} - LOCAL - sinks(1).keys() == set()


async def test_an_address_where_nothing_listens_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = free_ports(1)
    ends = [("source", kind, settings) for kind, settings in sources(port).items()]
    ends += [("sink", kind, settings) for kind, settings in sinks(port).items()]
    named = [(f"{end}-{kind.lower()}", end, kind, settings) for end, kind, settings in ends]
    vertices = [{"name": name, end: {kind: settings}} for name, end, kind, settings in named]
    vertices += [{"name": "made", "source": {"generator": {}}}, {"name": "end", "sink": {"blackhole": {}}}]
    edges = [{"from": "made", "to": name} if end == "sink" else {"from": name, "to": "end"} for name, end, *_ in named]
    head = {"apiVersion": "millstream.io/v1alpha1", "kind": "Pipeline", "metadata": {"name": "p"}}
    (tmp_path / "p.yaml").write_text(json.dumps({**head, "spec": {"vertices": vertices, "edges": edges}}))
    # The command has a loop of its own.
    await asyncio.to_thread(main, ["validate", "--online", "-o", "json", str(tmp_path / "p.yaml")])
    problems = json.loads(capsys.readouterr().out)["problems"]
    wrong = []
    for index, (name, end, kind, _) in enumerate(named):
        found = [one for one in problems if one["path"].startswith(f"spec.vertices[{index}].{end}.{kind}")]
        if [one["code"] for one in found] != [str(codes.TARGET_AWAY)] or str(port) not in found[0]["what"]:
            wrong.append((name, [(one["code"], one["what"]) for one in found]))
    assert not wrong
