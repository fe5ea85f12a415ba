from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.rabbit_server import RabbitServer, open_rabbit, why_missing


@pytest.fixture(scope="package")
def rabbit() -> Iterator[RabbitServer]:
    """A RabbitMQ server, the same one for every test of the folder. A test that kills it starts it again."""
    if why := why_missing():
        pytest.skip(why)
    with open_rabbit() as server:
        yield server
