"""The contract of OT stores, run on one that another package has."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.watermark.test_ot_store import *  # noqa: F403
from tests.contract.watermark.test_ot_store import PIPELINE
from tests.extensions.faulty_sqlite import SqliteStores

# Of Redis alone.
del test_a_put_that_a_watch_missed_is_read_as_soon_as_it_hears_puts_again  # noqa: F821


@pytest.fixture  # type: ignore[no-redef]  # in place of the fixture with our own technologies
def broker(tmp_path: Path) -> SqliteStores:
    return SqliteStores(tmp_path, PIPELINE)
