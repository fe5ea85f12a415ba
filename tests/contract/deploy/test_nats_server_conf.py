"""The broker configuration of a deployment, as a real server understands it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import psutil
import pytest

from millstream import codes, limits
from millstream.buffers.jetstream.access_file import load_access
from millstream.buffers.jetstream.durability import ask_server_settings
from millstream.buffers.jetstream.server import find_nats_server, open_nats_server
from millstream.buffers.jetstream.server_config import PENDING_BYTES_MAX
from millstream.nats.connection import open_connection
from millstream_runner.cli.main import main
from tests.nats_process import open_nats_process
from tests.support.errors import raises

CONF = Path(__file__).resolve().parents[3] / "deploy" / "nats" / "nats-server.conf"
PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices: [{name: in, source: {generator: {rpu: 1}}}, {name: out, sink: {log: {}}}]
  edges: [{from: in, to: out}]
"""


def replaced(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1
    return text.replace(old, new)


def local(directory: Path) -> Path:
    """The file with other places, and nothing else changed: loopback, free ports, a store of its own."""
    text = replaced(CONF.read_text(), '"0.0.0.0:4222"', '"127.0.0.1:-1"')
    text = replaced(text, '"/data/jetstream"', f'"{directory / "store"}"')
    conf = directory / "nats-server.conf"
    conf.write_text(text)
    make_users(directory)
    return conf


def make_users(directory: Path) -> None:
    (directory / "p.yaml").write_text(PIPELINE)
    assert main(["broker", "config", str(directory / "p.yaml"), "--to", str(directory / "users")]) == 0


def check(conf: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [find_nats_server(), "-t", "-c", str(conf)], capture_output=True, text=True, timeout=30, check=False
    )


def test_the_server_accepts_the_file_and_does_not_start_without_users(tmp_path: Path) -> None:
    conf = tmp_path / "nats-server.conf"
    conf.write_text(CONF.read_text())
    closed = check(conf)
    assert closed.returncode != 0
    assert "accounts.conf" in closed.stderr
    make_users(tmp_path)
    accepted = check(conf)
    assert accepted.returncode == 0, accepted.stderr
    conf.write_text(replaced(CONF.read_text(), "sync_interval: always", "sync_intervall: always"))
    assert check(conf).returncode != 0


async def test_the_server_has_the_durability_and_the_sizes_of_the_design(tmp_path: Path) -> None:
    async with open_nats_process(tmp_path, local(tmp_path)) as server:
        access = load_access(tmp_path / "users" / "p" / "in.yaml", server.url)
        async with open_connection(access) as connection:
            settings, where = await ask_server_settings(connection)
        listening = [one for one in psutil.Process(server.pid).net_connections() if one.status == psutil.CONN_LISTEN]
    assert settings is not None, where
    jetstream = settings["jetstream"]["config"]
    assert jetstream["sync_always"] is True
    assert Path(jetstream["store_dir"]).is_relative_to(tmp_path)
    assert jetstream["max_storage"] >= 24 * limits.LEDGER_BYTES_MAX
    assert settings["max_payload"] == limits.MESSAGE_BYTES_MAX
    assert settings["max_pending"] == PENDING_BYTES_MAX
    assert len(listening) == 1, "nothing but the port of the clients"


def test_the_file_says_what_a_commit_may_hold() -> None:
    settings = dict(re.findall(r"^ +(max_msgs|max_inflight_\w+): (\d+)$", CONF.read_text(), flags=re.MULTILINE))
    assert int(settings["max_msgs"]) == limits.COMMIT_MESSAGES_MAX
    assert int(settings["max_inflight_per_stream"]) <= int(settings["max_inflight_total"])


def test_every_setting_has_a_comment() -> None:
    """Settings are in groups, and each group begins with the reason for it."""
    for group in re.split(r"\n\s*\n", CONF.read_text()):
        first = group.strip().splitlines()[0].strip()
        assert first.startswith("#") or first.endswith("{"), first


async def test_the_program_can_be_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "another-nats-server"
    monkeypatch.setenv("MILLSTREAM_NATS_SERVER", str(other))
    with raises(codes.BROKER_PROGRAM, match="another-nats-server, which cannot be executed"):
        find_nats_server()
    ran = tmp_path / "ran"
    monkeypatch.delenv("MILLSTREAM_NATS_SERVER")
    other.write_text(f'#!/bin/sh\ntouch "{ran}"\nexec "{find_nats_server()}" "$@"\n')
    other.chmod(0o755)
    monkeypatch.setenv("MILLSTREAM_NATS_SERVER", str(other))
    async with open_nats_server(tmp_path / "broker"):
        assert ran.exists()
