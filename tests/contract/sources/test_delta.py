"""The `delta` source on real tables: every row once from any position, and what it says otherwise."""

from __future__ import annotations

import json
import re
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from ruamel.yaml import YAML

from millstream import codes
from millstream.clock import SystemClock
from millstream.extract import Extraction
from millstream.spec.models import Source
from millstream_connectors.delta.client import options_of
from millstream_connectors.delta.settings import DeltaSource
from millstream_connectors.delta.source.lane import DeltaSourceLane
from millstream_connectors.file.source.disk import Worker
from millstream_connectors.shared.objects.settings import ObjectStore
from millstream_reader.connector import SourceOwner
from tests.contract.sources.lanes import lane_id, open_lane, read_to_end, read_until, values
from tests.support.damaged_files import DAMAGES, damage
from tests.support.errors import raises
from tests.support.object_server import ObjectServer

PAGE = Path(__file__).parents[3] / "docs" / "connectors" / "tables.md"
ROWS = 40
FIRST_ROW = {
    "storageType": "i",
    "pathOrInlineDv": "^Bg9^0rr910000000000iXQKl0rr91000005c8Xg00000",
    "sizeInBytes": 34,
    "cardinality": 1,
}
"""A deletion vector that removes row 0, as the protocol of Delta Lake writes one into the log."""


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "table")


def append(path: str, first: int, count: int = ROWS, **options: Any) -> None:
    numbers = range(first, first + count)
    table = pa.table({"n": list(numbers), "text": [f'text "{n}"' for n in numbers], "half": [n % 2 for n in numbers]})
    write_deltalake(path, table, mode="append", partition_by=["half"], **options)


def spec(path: str, /, **settings: Any) -> dict[str, Any]:
    return {"delta": {"path": path, **settings}}


def numbers(found: list[bytes]) -> list[int]:
    rows = [json.loads(value) for value in found]
    assert all(row["text"] == f'text "{row["n"]}"' and row["half"] == row["n"] % 2 for row in rows)
    return [row["n"] for row in rows]


@pytest.mark.guarantee("I1", "I15")
async def test_reading_again_from_any_position_gives_the_rest_once(path: str) -> None:
    for version in range(3):
        append(path, version * ROWS)
    positions = [(b"", 0)]
    found: list[bytes] = []
    async with open_lane(spec(path)) as lane:
        while True:
            batch = await lane.read(7, 1 << 20, 0.05)
            found += batch.frame.values() if batch.frame is not None else []
            positions.append((batch.position, len(found)))
            if batch.ended:
                break
    assert sorted(numbers(found)) == [*range(3 * ROWS)]
    for more in range(3, 5):
        append(path, more * ROWS)
    DeltaTable(path).optimize.compact()
    tails: list[list[bytes]] = []
    for position, count in positions[1:]:
        async with open_lane(spec(path), position) as lane:
            rest = values((await read_to_end(lane))[0])
        assert sorted(numbers(found[:count] + rest)) == [*range(5 * ROWS)]
        tails.append(rest[-2 * ROWS :])
    # Later versions come in their order, whatever the position.
    assert all(tail == tails[0] for tail in tails)
    assert {n // ROWS for n in numbers(tails[0][:ROWS])} == {3}


async def test_versions_that_appear_are_read_and_compaction_is_not(path: str) -> None:
    append(path, 0)
    async with open_lane(spec(path, follow=True, pollEvery="10ms")) as lane:
        first = await read_until(lane, lambda records: len(records) == ROWS)
        append(path, ROWS)
        DeltaTable(path).optimize.compact()
        append(path, 2 * ROWS)
        later = await read_until(lane, lambda records: len(records) == 2 * ROWS)
    assert sorted(numbers(values(first))) == [*range(ROWS)]
    assert sorted(numbers(values(later))) == [*range(ROWS, 3 * ROWS)]
    assert {n // ROWS for n in numbers(values(later))[:ROWS]} == {1}


async def test_one_lane_reads_the_table(path: str) -> None:
    append(path, 0)
    found = []
    for partition in range(3):
        async with open_lane(spec(path), partition=partition, partitions=3) as lane:
            found.append(len((await read_to_end(lane))[0]))
    assert sorted(found) == [0, 0, ROWS]


async def test_types_become_those_of_json(path: str) -> None:
    moment = datetime(2024, 5, 1, 8, tzinfo=UTC)
    row = {"at": moment, "day": moment.date(), "ok": True, "share": 0.5, "none": None, "list": [1, 2]}
    columns: list[tuple[str, pa.DataType]] = [
        ("at", pa.timestamp("us", "UTC")), ("day", pa.date32()), ("ok", pa.bool_()), ("share", pa.float64()),
        ("none", pa.string()), ("list", pa.list_(pa.int64())),
    ]  # fmt: skip
    schema = pa.schema(columns)
    for _ in range(2):
        # As a snapshot, and as an added version, where the log has partitions as text.
        write_deltalake(path, pa.Table.from_pylist([row], schema), mode="append", partition_by=["at", "ok", "day"])
    async with open_lane(spec(path)) as lane:
        records, _, batches = await read_to_end(lane)
    write_deltalake(path, pa.Table.from_pylist([row], schema), mode="append")
    async with open_lane(spec(path), batches[-1].position) as lane:
        records += (await read_to_end(lane))[0]
    assert len(records) == 3
    for value in values(records):
        read = json.loads(value)
        assert datetime.fromisoformat(read.pop("at")) == moment
        assert read == {"day": "2024-05-01", "ok": True, "share": 0.5, "none": None, "list": [1, 2]}


@pytest.mark.parametrize("change", ["delete", "overwrite"])
async def test_a_version_that_removes_rows_is_named_or_skipped(path: str, change: str) -> None:
    append(path, 0)
    async with open_lane(spec(path)) as lane:
        _, _, batches = await read_to_end(lane)
    if change == "delete":
        DeltaTable(path).delete("n = 7")
    else:
        write_deltalake(path, DeltaTable(path).to_pyarrow_table().slice(3), mode="overwrite")
    append(path, ROWS)
    async with open_lane(spec(path), batches[-1].position) as lane:
        with raises(codes.TARGET_UNFIT, match=r"version 1 .* changes or removes rows \((DELETE|WRITE|OVERWRITE)"):
            await read_to_end(lane)
    async with open_lane(spec(path, skipChanges=True), batches[-1].position) as lane:
        assert sorted(numbers(values((await read_to_end(lane))[0]))) == [*range(ROWS, 2 * ROWS)]


@pytest.mark.guarantee("I15")
@pytest.mark.parametrize("how", ["another table", "an older copy", "another commit"])
async def test_a_table_that_was_replaced_is_noticed(path: str, tmp_path: Path, how: str) -> None:
    for version in range(2):
        append(path, version * ROWS)
    async with open_lane(spec(path)) as lane:
        _, _, batches = await read_to_end(lane)
    log = Path(path) / "_delta_log" / f"{1:020}.json"
    if how == "another table":
        Path(path).rename(tmp_path / "old")
        for version in range(2):
            append(path, version * ROWS)
    elif how == "an older copy":
        log.unlink()
    else:
        log.unlink()
        append(path, 5 * ROWS)
    with raises(codes.SOURCE_FILE_CHANGED, match="not the one that was read"):
        async with open_lane(spec(path), batches[-1].position) as lane:
            await read_to_end(lane)


async def test_a_file_that_was_vacuumed_before_it_was_read_is_named(path: str) -> None:
    append(path, 0)
    async with open_lane(spec(path)) as lane:
        _, _, batches = await read_to_end(lane)
    append(path, ROWS)
    append(path, 2 * ROWS)
    table = DeltaTable(path)
    table.optimize.compact()
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    async with open_lane(spec(path), batches[-1].position) as lane:
        with raises(codes.SOURCE_FILE_CHANGED, match="vacuum"):
            await read_to_end(lane)


@pytest.mark.guarantee("I10")
@pytest.mark.parametrize("how", DAMAGES)
async def test_a_file_that_is_damaged_is_named(path: str, how: str) -> None:
    append(path, 0)
    file = min(Path(path).rglob("*.parquet"))
    damage(file, how)
    async with open_lane(spec(path)) as lane:
        with raises(codes.SOURCE_FILE_CHANGED, match=f"{file.name} .*cannot be read as Parquet"):
            await read_to_end(lane)


@pytest.mark.guarantee("I15")
async def test_a_version_that_was_looked_at_and_not_read_is_no_past(path: str, tmp_path: Path) -> None:
    append(path, 0)
    async with open_lane(spec(path)) as lane:
        _, _, batches = await read_to_end(lane)
    append(path, ROWS)
    settings = DeltaSource(path=path)
    owner = SourceOwner(lane_id(), 1, batches[-1].position, tmp_path, SystemClock(), Extraction())
    with closing(Worker("looks")) as worker:
        lane = DeltaSourceLane(settings, owner, worker)
        await lane.open()
        # The store goes away, or the run is drained, between the look at a version and its first row.
        await worker.run(lane._fill)
        await lane.drain()
        stopped = await lane.read(10, 1 << 20, 0.05)
        worker.close()
    async with open_lane(spec(path), stopped.position) as lane:
        assert sorted(numbers(values((await read_to_end(lane))[0]))) == [*range(ROWS, 2 * ROWS)]


@pytest.mark.guarantee("I1")
async def test_rows_that_are_marked_as_removed_are_not_read(path: str) -> None:
    write_deltalake(path, pa.table({"n": [1, 2, 3]}))
    log = Path(path) / "_delta_log"
    actions = [json.loads(line) for line in (log / f"{0:020}.json").read_text().splitlines()]
    file = next(action["add"] for action in actions if "add" in action)
    features = ["deletionVectors"]
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": features,
        "writerFeatures": features,
    }
    lines = (
        {"protocol": protocol},
        {"remove": {"path": file["path"], "dataChange": True, "deletionTimestamp": 1}},
        {"add": {**file, "deletionVector": FIRST_ROW}},
    )
    (log / f"{1:020}.json").write_text("\n".join(map(json.dumps, lines)))
    assert pa.table(DeltaTable(path).deletion_vectors()).to_pylist()[0]["selection_vector"] == [False, True, True]
    with raises(codes.TARGET_UNFIT, "deletion vectors"):
        async with open_lane(spec(path)) as lane:
            await read_to_end(lane)


async def test_a_place_without_a_table_is_said(path: str) -> None:
    with raises(codes.TARGET_UNFIT, match="there is no Delta table"):
        async with open_lane(spec(path)):
            pass


@pytest.mark.sweep
async def test_a_bucket_that_is_away_is_waited_for(objects: ObjectServer) -> None:
    bucket = objects.bucket()
    url = bucket.url("table")
    options = options_of(url, ObjectStore.model_validate(objects.settings), Path(), "test")
    append(url, 0, storage_options=options)
    store = {**objects.settings, "timeout": "2s"}
    objects.pause()
    try:
        async with open_lane(spec(url, store=store)) as lane:
            batch = await lane.read(10, 1 << 20, 0.05)
            assert (batch.frame, batch.ended, batch.position) == (None, False, b"")
            objects.go_on()
            assert sorted(numbers(values((await read_to_end(lane))[0]))) == [*range(ROWS)]
    finally:
        objects.go_on()


async def test_credentials_that_are_refused_are_said(objects: ObjectServer) -> None:
    store = {**objects.settings, "secretKey": "wr0ng"}
    with raises(codes.TARGET_REFUSES, match="SignatureDoesNotMatch") as caught:
        async with open_lane(spec(objects.bucket().url("table"), store=store)):
            pass
    assert "wr0ng" not in str(caught.value)


def test_settings_that_do_not_go_together() -> None:
    for settings, field in (({"path": "ftp://host/x"}, "path"), ({"path": "x", "store": {"region": "x"}}, "store")):
        with pytest.raises(Exception, match=field):
            Source.model_validate({"delta": settings})


async def test_the_page_shows_what_works(objects: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = objects.bucket()
    monkeypatch.setenv("S3_KEY", objects.settings["accessKey"])
    monkeypatch.setenv("S3_SECRET", objects.settings["secretKey"])
    text = PAGE.read_text().replace("s3://lake/", bucket.url()).replace("http://127.0.0.1:8333", objects.endpoint)
    options = options_of(bucket.url("orders"), ObjectStore.model_validate(objects.settings), Path(), "test")
    moment = datetime(2024, 5, 1, 8, tzinfo=UTC)
    write_deltalake(bucket.url("orders"), pa.table({"at": [moment]}), storage_options=options)
    blocks = [block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "source:" in block]
    assert blocks
    for block in blocks:
        settings = dict(YAML(typ="safe", pure=True).load(block)[0]["source"])
        async with open_lane(settings) as lane:
            (record,) = await read_until(lane, lambda records: len(records) == 1)
        assert record.event_time_us == moment.timestamp() * 1_000_000
