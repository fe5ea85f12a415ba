"""The broker configuration of a deployment, as a real server understands it."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from millstream import limits
from millstream.errors import EnvironmentFault
from millstream.testing.nats_server import find_nats_server, open_nats_server
from millstream.tether import tethered
from millstream.wire.nats_config import PENDING_BYTES_MAX

CONF = Path(__file__).resolve().parents[3] / "deploy" / "nats" / "nats-server.conf"
START_TIMEOUT_S = 10


def replaced(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1
    return text.replace(old, new)


def local(directory: Path) -> Path:
    """The file with other places, and nothing else changed: loopback, free ports, a store of its own."""
    text = replaced(CONF.read_text(), '"0.0.0.0:4222"', '"127.0.0.1:-1"')
    text = replaced(text, '"0.0.0.0:8222"', '"127.0.0.1:-1"')
    text = replaced(text, '"/data/jetstream"', f'"{directory / "store"}"')
    conf = directory / "nats-server.conf"
    conf.write_text(text)
    return conf


@asynccontextmanager
async def open_server(directory: Path) -> AsyncIterator[str]:
    """A server with the file; gives the URL of its monitoring endpoint."""
    command = [find_nats_server(), "-c", str(local(directory)), "--ports_file_dir", str(directory)]
    process = await asyncio.create_subprocess_exec(
        *tethered(command), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            ports = directory / f"nats-server_{process.pid}.ports"
            while not ports.exists() or not ports.read_text().endswith("}"):
                assert process.returncode is None
                await asyncio.sleep(0.005)
        yield json.loads(ports.read_text())["monitoring"][0]
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def get(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=5) as answer:
        document: dict[str, Any] = json.load(answer)
    return document


def check(conf: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [find_nats_server(), "-t", "-c", str(conf)], capture_output=True, text=True, timeout=30, check=False
    )


def test_the_server_accepts_the_file(tmp_path: Path) -> None:
    accepted = check(CONF)
    assert accepted.returncode == 0, accepted.stderr
    misspelt = tmp_path / "nats-server.conf"
    misspelt.write_text(replaced(CONF.read_text(), "sync_interval: always", "sync_intervall: always"))
    assert check(misspelt).returncode != 0


async def test_the_server_has_the_durability_and_the_sizes_of_the_design(tmp_path: Path) -> None:
    async with open_server(tmp_path) as url:
        varz = await asyncio.to_thread(get, f"{url}/varz")
        healthz = await asyncio.to_thread(get, f"{url}/healthz")
    jetstream = varz["jetstream"]["config"]
    assert jetstream["sync_always"] is True
    assert Path(jetstream["store_dir"]).is_relative_to(tmp_path)
    assert jetstream["max_storage"] >= 24 * limits.LEDGER_BYTES_MAX
    assert varz["max_payload"] == limits.MESSAGE_BYTES_MAX
    assert varz["max_pending"] == PENDING_BYTES_MAX
    assert healthz == {"status": "ok"}


def test_the_file_says_what_a_commit_may_hold() -> None:
    settings = dict(re.findall(r"^ +(max_msgs|max_inflight_\w+): (\d+)$", CONF.read_text(), flags=re.MULTILINE))
    assert int(settings["max_msgs"]) == limits.COMMIT_MESSAGES_MAX
    assert int(settings["max_inflight_per_stream"]) <= int(settings["max_inflight_total"])


def test_every_setting_has_a_comment() -> None:
    """Settings stand in groups, and each group begins with the reason for it."""
    for group in re.split(r"\n\s*\n", CONF.read_text()):
        first = group.strip().splitlines()[0].strip()
        assert first.startswith("#") or first.endswith("{"), first


async def test_the_program_can_be_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "another-nats-server"
    monkeypatch.setenv("MILLSTREAM_NATS_SERVER", str(other))
    with pytest.raises(EnvironmentFault, match="another-nats-server, which cannot be executed"):
        find_nats_server()
    ran = tmp_path / "ran"
    monkeypatch.delenv("MILLSTREAM_NATS_SERVER")
    other.write_text(f'#!/bin/sh\ntouch "{ran}"\nexec "{find_nats_server()}" "$@"\n')
    other.chmod(0o755)
    monkeypatch.setenv("MILLSTREAM_NATS_SERVER", str(other))
    async with open_nats_server(tmp_path / "broker"):
        assert ran.exists()
