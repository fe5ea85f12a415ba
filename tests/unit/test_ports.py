"""Ports for servers that come back."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from millstream import ports
from millstream.ports import free_ports, is_free, promise


def test_they_follow_each_other_and_can_be_listened_at() -> None:
    first = free_ports(3)
    for port in range(first, first + 3):
        with socket.create_server(("127.0.0.1", port)):
            assert not is_free(port)


@pytest.mark.slow
def test_no_connection_gets_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = tmp_path / "range"
    monkeypatch.setattr(ports, "_OUTGOING", told)
    for low, high in ((20_000, 65_535), (10_000, 60_000), (10_300, 65_400)):
        told.write_text(f"{low}\t{high}\n")
        for _ in range(20):
            first = free_ports(40)
            assert first + 39 < low or first > high
    told.unlink()
    assert free_ports() < 32_768


def test_where_connections_may_get_any_there_is_one_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = tmp_path / "range"
    told.write_text("1024\t65535\n")
    monkeypatch.setattr(ports, "_OUTGOING", told)
    assert is_free(free_ports())


def test_none_is_given_twice_or_to_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Servers start later than their ports are chosen: what seems free then may be another's already."""
    allowed = tmp_path / "range"
    monkeypatch.setattr(ports, "_OUTGOING", allowed)
    monkeypatch.setattr(ports, "_GIVEN", set())
    monkeypatch.setattr(ports, "_PROMISED", set())
    # Leaves a few hundred ports to choose from, so that chance would give one twice.
    allowed.write_text("10440\t65535\n")
    promised = next(port for port in range(10_240, 10_440) if is_free(port))
    promise(promised)
    assert not is_free(promised)
    given = [free_ports() for _ in range(100)]
    assert len(set(given)) == len(given)
    assert promised not in given
