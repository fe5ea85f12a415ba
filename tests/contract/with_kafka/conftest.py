from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.kafka_server import KafkaServer, open_kafka, why_missing


@pytest.fixture(scope="package")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """A Kafka broker that is up, the same one for every test of the folder. A test that kills it starts it again."""
    if why := why_missing():
        pytest.skip(why)
    with open_kafka(tmp_path_factory.mktemp("kafka")) as server:
        yield server
