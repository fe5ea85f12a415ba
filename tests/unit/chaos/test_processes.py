"""The processes of a run are known for what they are, by real ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from millstream_runner.chaos.plan import Role
from millstream_runner.chaos.processes import processes_of
from tests.support.ledgers import open_jetstream_harness, open_redis_harness


@pytest.mark.process
@pytest.mark.parametrize("open_harness", [open_jetstream_harness, open_redis_harness])
async def test_a_broker_that_answers_is_one(
    open_harness: Callable[[Path], AbstractAsyncContextManager[Any]], tmp_path: Path
) -> None:
    """Redis and Valkey change their command line when they are ready."""

    def brokers() -> set[int]:
        return {one.process.pid for one in processes_of(os.getpid()) if one.role is Role.BROKER}

    before = brokers()
    async with open_harness(tmp_path):
        assert len(brokers() - before) == 1
    assert brokers() == before
