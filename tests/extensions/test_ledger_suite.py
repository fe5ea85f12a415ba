"""The contract of ledgers, run on one that another package has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millstream import codes
from tests.contract.ledger.conftest import ledger, limits, owner  # noqa: F401
from tests.contract.ledger.test_histories import *  # noqa: F403
from tests.contract.ledger.test_ledger import *  # noqa: F403
from tests.contract.ledger.test_replaced_past import *  # noqa: F403
from tests.contract.ledger.test_sharing import *  # type: ignore[assignment]  # noqa: F403  # each uses its own helpers
from tests.extensions.faulty_sqlite import SqliteHarness, open_sqlite_harness
from tests.support.errors import raises
from tests.support.ledgers import PIPELINE


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[SqliteHarness]:
    async with open_sqlite_harness(tmp_path, PIPELINE) as opened:
        yield opened


async def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / f"{PIPELINE}.db").write_bytes(b"no database" * 1000)
    with raises(codes.LEDGER_GONE, match=r"file is not a database.*millstream repair"):
        async with open_sqlite_harness(tmp_path, PIPELINE):
            pass
