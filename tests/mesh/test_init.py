"""What `millstream init` makes works as it is: its test, its pipeline, its README."""

import asyncio
import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.mesh import running
from tests.mesh.running import command


async def test_the_template_runs_and_its_test_passes(tmp_path: Path) -> None:
    assert (await command(tmp_path, "init", "orders")).exit_code == 0
    directory = tmp_path / "orders"
    await own_test(directory, 3)

    valid = await command(directory, "validate", "pipeline.yaml")
    assert valid.exit_code == 0, valid.err
    ended = await command(directory, "run", "pipeline.yaml")
    assert ended.exit_code == 0, ended.err
    assert [len(rows(directory, name)) for name in ("all", "large", "refused", "unreadable")] == [5, 2, 1, 1]
    assert {row["item"] for row in rows(directory, "large")} == {"desk", "chair"}
    (refused,) = rows(directory, "refused")
    assert (refused["vertex"], refused["reason"]) == ("price", "an order of 0 pieces")
    assert json.loads(str(refused["value"]))["item"] == "shelf"
    (unreadable,) = rows(directory, "unreadable")
    assert (unreadable["vertex"], unreadable["value"]) == ("read", "not json")
    assert str(unreadable["reason"]).startswith("data/orders.jsonl:4: 'not json' is not a JSON value")

    # As the README says.
    shutil.rmtree(directory / "out")
    again = await command(directory, "run", "pipeline.yaml", "--fresh")
    assert again.exit_code == 0, again.err
    assert len(rows(directory, "all")) == 5


async def test_the_template_with_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Spark's start is most of it, and takes its time where others have the processor.
    monkeypatch.setattr(running, "LIMIT_S", 100.0)
    assert (await command(tmp_path, "init", "readings", "--template", "reduce")).exit_code == 0
    directory = tmp_path / "readings"
    await own_test(directory, 2)
    ended = await command(directory, "run", "pipeline.yaml")
    assert ended.exit_code == 0, ended.err
    assert [len(rows(directory, name)) for name in ("minutes", "hot", "warmest")] == [7, 2, 3]
    assert [row["sensor"] for row in rows(directory, "warmest")] == ["boiler", "boiler", "attic"]
    (attic, *_) = rows(directory, "minutes")
    assert attic == {
        "sensor": "attic", "minute": "2026-01-05T09:00:00+00:00", "readings": 2, "mean": 20.0, "highest": 20.5
    }  # fmt: skip


async def own_test(directory: Path, tests: int) -> None:
    """The test that comes with the template."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-B", "-W", "error", "-m", "unittest"), cwd=directory, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
        _, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert f"Ran {tests} tests".encode() in err


def rows(directory: Path, sink: str) -> list[dict[str, object]]:
    files = sorted((directory / "out" / sink).glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]
