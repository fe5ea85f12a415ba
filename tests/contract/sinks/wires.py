"""How a sink's commit and its answer look on the wire, for a path that loses them."""

from __future__ import annotations

from millstream_connectors.jetstream.sink import GUARD
from millstream_connectors.redis_streams.sink.script import COMMIT
from millstream_runner.chaos.lossy_path import Wire

POSTGRES = Wire("postgres", b"COMMIT;", b"COMMIT\0")
# A connection carries one command at a time: what comes back is its answer.
MARIADB = Wire("mariadb+pymysql", b"\x03COMMIT", b"")
REDIS = Wire("redis", COMMIT.sha.encode(), b"")
JETSTREAM = Wire("nats", f"{GUARD}:".encode(), b'"stream":')
