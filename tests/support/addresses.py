"""Settings of each kind of source and sink that reaches a server, for one at a port of this machine."""

from __future__ import annotations

from typing import Any

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
