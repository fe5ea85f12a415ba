"""The examples with servers run, in a short form, and find nothing wrong with what their targets have."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.support import kafka_server, postgres_server
from tests.support.children import started

WHY = kafka_server.why_missing() or postgres_server.why_missing()
EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.skipif(bool(WHY), reason=WHY or "they are there")


@pytest.mark.sweep
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("example", "option", "says"),
    [
        ("kafka-to-postgres", "--orders=1000", "orders: 1000 of 1000 rows, 0 of them wrong"),
        ("kafka-to-delta", "--orders=2000", "sales: 150 of 150 rows, 0 of them wrong"),
        ("cdc-to-kafka", "--customers=1000", "rows, and the table has 1351"),
    ],
)
async def test_it_checks_what_its_target_has(example: str, option: str, says: str) -> None:
    command = [sys.executable, str(EXAMPLES / example / f"{example.replace('-', '_')}.py"), option]
    pipe = asyncio.subprocess.PIPE
    async with started(*command, stdout=pipe, stderr=pipe) as running:
        out, err = await running.communicate()
    assert running.returncode == 0, out.decode() + err.decode()
    assert says in out.decode()
    assert "account: BALANCED" in out.decode()
