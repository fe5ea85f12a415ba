"""From a system through a function into the same system, and all that takes part in it, killed at random."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.recovery.kills import OUTSIDE
from tests.recovery.storm_places import IN_ORDER, PLACES, why_missing
from tests.recovery.storms import storm

RECORDS = 2_000
SWEPT = (
    "kafka",
    "pulsar",
    "postgres",
    "postgresCdc",
    "opensearch",
    "bigquery",
    "file",
    "delta",
    "iceberg",
    "objects",
    "sql",
    "redisStreams",
)
"""Left to `make test-all`: others like them are killed in every run."""


@pytest.mark.guarantee("I1", "I2", "I9")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "connector", [pytest.param(name, marks=pytest.mark.sweep) if name in SWEPT else name for name in PLACES]
)
async def test_each_record_is_there_once_though_everything_is_killed(connector: str, tmp_path: Path) -> None:
    if why := why_missing(connector):
        pytest.skip(why)
    rng = random.Random(connector)
    async with PLACES[connector](tmp_path) as place:
        first = [OUTSIDE] if OUTSIDE in place.victims else []
        victims = [*first, *rng.sample(place.victims, len(place.victims))]
        found = await storm(place, tmp_path, records=RECORDS, victims=victims, rng=rng)
    found.check(RECORDS)
    if connector in IN_ORDER:
        assert found.numbers == [*range(RECORDS)]
