"""`millstream bench` measures a real run and says so in one JSON object."""

import json
from pathlib import Path

import pytest

from tests.mesh.running import command


async def test_it_prints_what_it_measured_beside_the_brokers_limit(tmp_path: Path) -> None:
    keyed = ("--keys", "100", "--partitions", "2", "--chain", "2")
    ended = await command(tmp_path, "bench", "map", "--records", "1000000", *keyed, "--workers", "3", "-o", "json")
    assert ended.exit_code == 0, ended.err
    result = json.loads(ended.out.splitlines()[-1])
    assert (result["keys"], result["partitions"], result["chain"]) == (100, 2, 2)
    assert result["records_per_s"] > 0
    assert result["raw_limit_records_per_s"] > 0
    # Of the rates before they were rounded.
    share = result["records_per_s"] / result["raw_limit_records_per_s"]
    assert 0 < result["share_of_limit"] == pytest.approx(share, abs=1e-4)
    assert 0 < result["latency_ms"]["p50"] <= result["latency_ms"]["p99"]
    assert result["durability"] == "fsync (verified)"
    assert set(result["processes"]) == {"broker", "in-0", "map-0", "out-0"}
    assert all(1 < use["pss_mib_max"] <= use["rss_mib_max"] for use in result["processes"].values())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.sweep
async def test_what_remembering_costs_is_measured(tmp_path: Path) -> None:
    options = ("--records", "1000000", "--state", "-o", "json")
    ended = await command(tmp_path, "bench", "map", *options)
    assert ended.exit_code == 2
    assert "--state: a function remembers something for each key; add --keys" in ended.err
    ended = await command(tmp_path, "bench", "map", *options, "--keys", "50")
    assert ended.exit_code == 0, ended.err
    result = json.loads(ended.out.splitlines()[-1])
    assert (result["keys"], result["function"]) == (50, "remembering")
    assert result["records_per_s"] > 0


@pytest.mark.sweep
async def test_too_few_records_are_refused_and_not_measured_wrongly(tmp_path: Path) -> None:
    ended = await command(tmp_path, "bench", "map", "--records", "1")
    assert ended.exit_code == 2
    assert "1 records are too few to measure" in ended.err


@pytest.mark.sweep
async def test_a_pipeline_without_buffers_is_measured(tmp_path: Path) -> None:
    options = ("--unbuffered", "--builtin", "--records", "3000000", "-o", "json")
    ended = await command(tmp_path, "bench", "map", *options)
    assert ended.exit_code == 0, ended.err
    result = json.loads(ended.out.splitlines()[-1])
    assert result["records_per_s"] > 0
    assert result["stored_times"] == 0
    assert set(result["processes"]) == {"broker", "in-0"}
