"""The memory limit of the broker of a run."""

from pathlib import Path

import pytest

from millstream.buffers.jetstream.technology import TECHNOLOGY
from millstream.ledger.protocol import DurabilityLevel


@pytest.mark.parametrize(("buffers", "limit"), [(2, "256MiB"), (120, "960MiB")])
def test_the_broker_of_many_buffers_may_use_more_memory(
    buffers: int, limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOMEMLIMIT", raising=False)
    server = TECHNOLOGY.server(tmp_path, durability=DurabilityLevel.FSYNC, port=None, buffers=buffers)
    assert server.environment["GOMEMLIMIT"] == limit


def test_a_limit_that_the_user_has_set_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOMEMLIMIT", "2GiB")
    server = TECHNOLOGY.server(tmp_path, durability=DurabilityLevel.FSYNC, port=None, buffers=2)
    assert "GOMEMLIMIT" not in server.environment
