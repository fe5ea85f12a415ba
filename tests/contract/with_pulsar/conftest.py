from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.pulsar_server import PulsarServer, open_pulsar, why_missing


@pytest.fixture(scope="package")
def pulsar() -> Iterator[PulsarServer]:
    """A standalone Pulsar, the same one for every test of the folder. A test that kills it starts it again."""
    if why := why_missing():
        pytest.skip(why)
    with open_pulsar() as server:
        yield server
