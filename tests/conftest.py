"""What tests of several packages share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from tests.spark_driver import SparkDriver

# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")
# For `make check`, which looks at everything a little.
hypothesis.settings.register_profile("quick", deadline=None, max_examples=10)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkDriver]:
    """A Spark driver that is ready, the same one for every test that asks for it. Who kills one starts its own."""
    # Its imports take a second, and most tests do without.
    from tests.spark_driver import open_spark_driver

    with open_spark_driver() as driver:
        asyncio.run(driver.ready())
        yield driver
