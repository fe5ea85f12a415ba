"""The `iceberg` source on real tables: every row once from any position, and what it says otherwise."""

from __future__ import annotations

import json
import re
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from ruamel.yaml import YAML

from millstream import codes
from millstream.clock import SystemClock
from millstream.extract import Extraction
from millstream_connectors.file.source.disk import Worker
from millstream_connectors.iceberg.settings import IcebergSource
from millstream_connectors.iceberg.source.lane import IcebergSourceLane
from millstream_reader.connector import SourceOwner
from tests.contract.sources.lanes import lane_id, open_lane, read_to_end, read_until, values
from tests.support.damaged_files import DAMAGES, damage
from tests.support.errors import raises
from tests.support.object_server import ObjectServer

PAGE = Path(__file__).parents[3] / "docs" / "connectors" / "iceberg.md"
ROWS = 20
COLUMNS: dict[str, pa.DataType] = {"n": pa.int64(), "text": pa.string(), "half": pa.int64()}


def create(directory: Path, columns: dict[str, pa.DataType] | None = None, /, **more: str) -> Table:
    """A table with nothing in it."""
    properties = {"warehouse": str(directory / "warehouse"), **more}
    catalog = SqlCatalog("default", uri=f"sqlite:///{directory / 'catalog.db'}", **properties)
    catalog.create_namespace_if_not_exists("shop")
    return catalog.create_table("shop.orders", pa.schema(columns or COLUMNS))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = create(tmp_path)
    with made.update_spec() as change:
        change.add_identity("half")
    return made


def append(table: Table, first: int, count: int = ROWS) -> None:
    numbers = range(first, first + count)
    columns = {"n": list(numbers), "text": [f'text "{n}"' for n in numbers], "half": [n % 2 for n in numbers]}
    table.append(pa.table(columns))


def spec(directory: Path, /, **settings: Any) -> dict[str, Any]:
    return {"iceberg": {"catalog": {"sqlite": str(directory / "catalog.db")}, "table": "shop.orders", **settings}}


def numbers(found: list[bytes]) -> list[int]:
    rows = [json.loads(value) for value in found]
    assert all(row["text"] == f'text "{row["n"]}"' and row["half"] == row["n"] % 2 for row in rows)
    return [row["n"] for row in rows]


@pytest.mark.guarantee("I1", "I15")
async def test_reading_again_from_any_position_gives_the_rest_once(tmp_path: Path, table: Table) -> None:
    for version in range(2):
        append(table, version * ROWS)
    positions = [(b"", 0)]
    found: list[bytes] = []
    async with open_lane(spec(tmp_path)) as lane:
        while True:
            batch = await lane.read(7, 1 << 20, 0.05)
            found += batch.frame.values() if batch.frame is not None else []
            positions.append((batch.position, len(found)))
            if batch.ended:
                break
    assert sorted(numbers(found)) == [*range(2 * ROWS)]
    # One without files, as the sink makes it when a lane is opened; and one with joined manifests.
    with table.transaction() as appending, appending.update_snapshot().fast_append():
        pass
    append(table, 2 * ROWS)
    with table.transaction() as changing:
        changing.set_properties({"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"})
    append(table, 3 * ROWS)
    tails: list[list[bytes]] = []
    for position, count in positions[1:]:
        async with open_lane(spec(tmp_path), position) as lane:
            rest = values((await read_to_end(lane))[0])
        assert sorted(numbers(found[:count] + rest)) == [*range(4 * ROWS)]
        tails.append(rest[-2 * ROWS :])
    assert all(tail == tails[0] for tail in tails)
    assert {n // ROWS for n in numbers(tails[0][:ROWS])} == {2}


@pytest.mark.sweep
async def test_a_table_without_rows_is_read_from_its_first_one(tmp_path: Path, table: Table) -> None:
    async with open_lane(spec(tmp_path)) as lane:
        records, _, batches = await read_to_end(lane)
    assert records == []
    append(table, 0)
    async with open_lane(spec(tmp_path), batches[-1].position) as lane:
        assert sorted(numbers(values((await read_to_end(lane))[0]))) == [*range(ROWS)]


async def test_snapshots_that_appear_are_read(tmp_path: Path, table: Table) -> None:
    append(table, 0)
    async with open_lane(spec(tmp_path, follow=True, pollEvery="10ms")) as lane:
        first = await read_until(lane, lambda records: len(records) == ROWS)
        append(table, ROWS)
        append(table, 2 * ROWS)
        later = await read_until(lane, lambda records: len(records) == 2 * ROWS)
    assert sorted(numbers(values(first))) == [*range(ROWS)]
    assert sorted(numbers(values(later))) == [*range(ROWS, 3 * ROWS)]
    assert {n // ROWS for n in numbers(values(later))[:ROWS]} == {1}


@pytest.mark.sweep
async def test_columns_have_the_names_of_their_snapshot(tmp_path: Path) -> None:
    moment = datetime(2024, 5, 1, 8, tzinfo=UTC)
    table = create(tmp_path, {"a": pa.int64(), "at": pa.timestamp("us", "UTC"), "gone": pa.string()})
    table.append(pa.table({"a": [1], "at": pa.array([moment], pa.timestamp("us", "UTC")), "gone": ["x"]}))
    with table.update_schema(allow_incompatible_changes=True) as change:
        change.rename_column("a", "b")
        change.delete_column("gone")
    table.append(pa.table({"b": [2], "at": pa.array([None], pa.timestamp("us", "UTC"))}))
    async with open_lane(spec(tmp_path)) as lane:
        found = [json.loads(value) for value in values((await read_to_end(lane))[0])]
    assert sorted(found, key=lambda row: row["b"]) == [
        {"b": 1, "at": "2024-05-01T08:00:00.000000Z"}, {"b": 2, "at": None},
    ]  # fmt: skip


@pytest.mark.parametrize("change", ["delete", "overwrite"])
async def test_a_snapshot_that_removes_rows_is_named_or_skipped(tmp_path: Path, table: Table, change: str) -> None:
    append(table, 0)
    async with open_lane(spec(tmp_path)) as lane:
        _, _, batches = await read_to_end(lane)
    if change == "delete":
        table.delete("half = 1")
    else:
        table.delete("n = 7")
    append(table, ROWS)
    async with open_lane(spec(tmp_path), batches[-1].position) as lane:
        with raises(codes.TARGET_UNFIT, match=rf"snapshot \d+ .* changes or removes rows \({change}\)"):
            await read_to_end(lane)
    async with open_lane(spec(tmp_path, skipChanges=True), batches[-1].position) as lane:
        assert sorted(numbers(values((await read_to_end(lane))[0]))) == [*range(ROWS, 2 * ROWS)]


@pytest.mark.sweep
@pytest.mark.guarantee("I15")
@pytest.mark.parametrize("how", ["another table", "an older state", "another commit", "expired"])
async def test_a_table_that_was_replaced_is_noticed(tmp_path: Path, table: Table, how: str) -> None:
    append(table, 0)
    older = table.current_snapshot()
    assert older is not None
    append(table, ROWS)
    async with open_lane(spec(tmp_path)) as lane:
        _, _, batches = await read_to_end(lane)
    if how == "another table":
        table.catalog.drop_table("shop.orders")
        append(create(tmp_path), 0)
    elif how == "expired":
        for first in range(2, 5):
            append(table, first * ROWS)
        newest = table.current_snapshot()
        old = [one.snapshot_id for one in table.snapshots() if one != newest]
        table.maintenance.expire_snapshots().by_ids(old).commit()
    else:
        table.manage_snapshots().rollback_to_snapshot(older.snapshot_id).commit()
        if how == "another commit":
            append(table, 5 * ROWS)
    with raises(codes.SOURCE_FILE_CHANGED, match="expired" if how == "expired" else "not the one that was read"):
        async with open_lane(spec(tmp_path), batches[-1].position) as lane:
            await read_to_end(lane)


@pytest.mark.guarantee("I10")
@pytest.mark.parametrize("how", DAMAGES)
async def test_a_file_that_is_damaged_is_named(tmp_path: Path, table: Table, how: str) -> None:
    append(table, 0)
    file = min(tmp_path.rglob("*.parquet"))
    damage(file, how)
    async with open_lane(spec(tmp_path)) as lane:
        with raises(codes.SOURCE_FILE_CHANGED, match=f"{file.name} .*cannot be read as Parquet"):
            await read_to_end(lane)


@pytest.mark.sweep
@pytest.mark.guarantee("I15")
async def test_a_snapshot_that_was_looked_at_and_not_read_is_no_past(tmp_path: Path, table: Table) -> None:
    append(table, 0)
    before = table.current_snapshot()
    assert before is not None
    async with open_lane(spec(tmp_path)) as lane:
        _, _, batches = await read_to_end(lane)
    append(table, ROWS)
    settings = IcebergSource.model_validate(spec(tmp_path)["iceberg"])
    owner = SourceOwner(lane_id(), 1, batches[-1].position, tmp_path, SystemClock(), Extraction())
    with closing(Worker("looks")) as worker:
        lane = IcebergSourceLane(settings, owner, worker)
        await lane.open()
        # The store goes away, or the run is drained, between the look at a snapshot and its first row.
        await worker.run(lane._fill)
        await lane.drain()
        stopped = await lane.read(10, 1 << 20, 0.05)
        worker.close()
    table.manage_snapshots().rollback_to_snapshot(before.snapshot_id).commit()
    append(table, 2 * ROWS)
    async with open_lane(spec(tmp_path), stopped.position) as again:
        assert sorted(numbers(values((await read_to_end(again))[0]))) == [*range(2 * ROWS, 3 * ROWS)]


async def test_a_place_without_a_table_is_said(tmp_path: Path) -> None:
    with raises(codes.TARGET_UNFIT, match="there is no Iceberg catalog"):
        async with open_lane(spec(tmp_path)):
            pass
    assert not (tmp_path / "catalog.db").exists()
    create(tmp_path).catalog.drop_table("shop.orders")
    with raises(codes.TARGET_UNFIT, match="there is no Iceberg table"):
        async with open_lane(spec(tmp_path)):
            pass


def on_s3(objects: ObjectServer) -> dict[str, str]:
    """As pyiceberg names the settings."""
    named = {"endpoint": "s3.endpoint", "region": "s3.region", "accessKey": "s3.access-key-id"}
    said = {name: objects.settings[ours] for ours, name in named.items()}
    return {**said, "s3.secret-access-key": objects.settings["secretKey"]}


@pytest.mark.sweep
async def test_a_bucket_that_is_away_is_waited_for(objects: ObjectServer, tmp_path: Path) -> None:
    append(create(tmp_path, warehouse=objects.bucket().url("lake"), **on_s3(objects)), 0)
    objects.pause()
    try:
        async with open_lane(spec(tmp_path, store={**objects.settings, "timeout": "2s"})) as lane:
            batch = await lane.read(10, 1 << 20, 0.05)
            assert (batch.frame, batch.ended, batch.position) == (None, False, b"")
            objects.go_on()
            assert sorted(numbers(values((await read_to_end(lane))[0]))) == [*range(ROWS)]
    finally:
        objects.go_on()


@pytest.mark.sweep
async def test_the_page_shows_what_works(
    objects: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S3_KEY", objects.settings["accessKey"])
    monkeypatch.setenv("S3_SECRET", objects.settings["secretKey"])
    text = PAGE.read_text().replace("catalog.db", str(tmp_path / "catalog.db"))
    text = text.replace("http://127.0.0.1:8333", objects.endpoint)
    moment = datetime(2024, 5, 1, 8, tzinfo=UTC)
    made = create(tmp_path, {"at": pa.timestamp("us", "UTC")}, warehouse=objects.bucket().url("lake"), **on_s3(objects))
    made.append(pa.table({"at": pa.array([moment], pa.timestamp("us", "UTC"))}))
    blocks = [block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "source:" in block]
    assert blocks
    for block in blocks:
        settings = dict(YAML(typ="safe", pure=True).load(block)[0]["source"])
        async with open_lane(settings) as lane:
            (record,) = await read_until(lane, lambda records: len(records) == 1)
        assert record.event_time_us == moment.timestamp() * 1_000_000
