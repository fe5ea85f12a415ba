"""A whole pipeline from Kafka to Kafka, and all that it needs, killed at random: each record is there once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.recovery.storm_places import KafkaPlace
from tests.recovery.storms import VICTIMS, storm
from tests.support.kafka_server import KafkaServer

RECORDS = 7_000
SEED = 11


@pytest.mark.sweep
@pytest.mark.timeout(240)
@pytest.mark.guarantee("I1", "I2", "I9")
async def test_each_record_is_there_once_though_everything_is_killed(kafka: KafkaServer, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    victims = rng.sample(VICTIMS, len(VICTIMS))
    found = await storm(KafkaPlace(kafka), tmp_path, records=RECORDS, victims=victims, rng=rng)
    found.check(RECORDS)
