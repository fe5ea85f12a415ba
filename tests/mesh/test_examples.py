"""The examples run, those with servers in a short form, and find nothing wrong with what their targets have."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.support import kafka_server, postgres_server
from tests.support.children import started

WHY = kafka_server.why_missing() or postgres_server.why_missing()
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.skipif(bool(WHY), reason=WHY or "they are there")
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
    ended, out, err = await ran(str(EXAMPLES / example / f"{example.replace('-', '_')}.py"), option)
    assert ended == 0, out + err
    assert says in out
    assert "account: BALANCED" in out


@pytest.mark.parametrize(
    ("example", "options", "says"),
    [
        pytest.param(
            "totals",
            [],
            "totals: 37 rows of 5 users, 0 users with wrong rows, 0 remembered wrongly",
            marks=pytest.mark.sweep,
        ),
        pytest.param("dedup", [], "of 41 clicks went on, which is right", marks=pytest.mark.sweep),
        pytest.param(
            "enrichment",
            [],
            "38 rows, 0 users with wrong rows, 0 remembered wrongly, 2 payments of unknown customers",
            marks=pytest.mark.sweep,
        ),
        ("fraud", [], "fraud: 60 payments, 4 cases opened, 4 closed, which is right"),
        pytest.param("totals", ["--payments=20000"], "of 100 users, 0 users with wrong rows", marks=pytest.mark.sweep),
        pytest.param("dedup", ["--clicks=20000"], "clicks went on, which is right", marks=pytest.mark.sweep),
        pytest.param("fraud", ["--payments=20000"], "closed, which is right", marks=pytest.mark.sweep),
        pytest.param("enrichment", ["--payments=20000"], ", 0 users with wrong rows, 0 rem", marks=pytest.mark.sweep),
    ],
)
async def test_what_remembers_something_checks_its_rows(example: str, options: list[str], says: str) -> None:
    ended, out, err = await ran(str(EXAMPLES / example / f"{example}.py"), *options)
    assert ended == 0, out + err
    assert says in out


@pytest.mark.parametrize(
    "example", ["fraud", *(pytest.param(one, marks=pytest.mark.sweep) for one in ("totals", "dedup", "enrichment"))]
)
async def test_the_tests_of_its_function_pass(example: str) -> None:
    ended, out, err = await ran("-m", "pytest", "-q", "-p", "no:cacheprovider", ".", cwd=EXAMPLES / example)
    assert ended == 0, out + err


async def ran(*arguments: str, cwd: Path | None = None) -> tuple[int | None, str, str]:
    """Exit code and output of Python with these arguments."""
    pipe = asyncio.subprocess.PIPE
    async with started(sys.executable, *arguments, stdout=pipe, stderr=pipe, cwd=cwd) as running:
        out, err = await running.communicate()
    return running.returncode, out.decode(), err.decode()
