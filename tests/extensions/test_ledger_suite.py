"""The contract of ledgers, run on one that another package has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.ledger.conftest import ledger, limits, owner  # noqa: F401
from tests.contract.ledger.test_histories import *  # noqa: F403
from tests.contract.ledger.test_ledger import *  # noqa: F403
from tests.contract.ledger.test_replaced_past import *  # noqa: F403
from tests.contract.ledger.test_sharing import *  # type: ignore[assignment]  # noqa: F403  # each uses its own helpers
from tests.extensions.faulty_sqlite import SqliteHarness, open_sqlite_harness
from tests.support.ledgers import PIPELINE


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[SqliteHarness]:
    async with open_sqlite_harness(tmp_path, PIPELINE) as opened:
        yield opened
