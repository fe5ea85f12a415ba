"""What waits at sources of files, objects and tables, as their metrics show it."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

from millstream_reader.source import SourceLane, pending_bytes, pending_versions
from tests.contract.sources.lanes import open_lane, read_to_end, read_until
from tests.support.object_server import ObjectServer

LINE = b'{"n":1}\n'


async def test_bytes_of_files(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(LINE * 100)
    packed = gzip.compress(LINE * 50)
    (tmp_path / "b.jsonl.gz").write_bytes(packed)
    (tmp_path / "c.jsonl").write_bytes(LINE * 10)
    spec = {"file": {"paths": ["*.jsonl", "*.gz"], "format": "jsonl"}}
    behind = len(packed) + 10 * len(LINE)
    async with open_lane(spec, base_dir=tmp_path) as lane:
        assert pending_bytes(lane) == 100 * len(LINE) + behind
        await lane.read(30, 1 << 20, 1.0)
        middle = await lane.read(30, 1 << 20, 1.0)
        assert pending_bytes(lane) == 40 * len(LINE) + behind
        await lane.read(40, 1 << 20, 1.0)
        await lane.read(20, 1 << 20, 1.0)
        # A compressed file counts until it is read to its end.
        assert pending_bytes(lane) == behind
        await read_to_end(lane)
        assert pending_bytes(lane) == 0
    async with open_lane(spec, middle.position, base_dir=tmp_path) as lane:
        assert pending_bytes(lane) == 40 * len(LINE) + behind
        assert lane.pending() is None


async def test_bytes_of_files_that_grow(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_bytes(b"a line\n" * 100)
    spec = {"file": {"paths": ["*.log"], "format": "lines", "follow": True}}
    async with open_lane(spec, base_dir=tmp_path) as lane:
        await lane.read(60, 1 << 20, 1.0)
        assert pending_bytes(lane) == 40 * 7
        await read_until(lane, lambda records: len(records) == 40)
        assert pending_bytes(lane) == 0
        with file.open("ab") as more:
            more.write(b"a line\n" * 10 + b"open")
        await read_until(lane, lambda records: len(records) == 10)
        assert pending_bytes(lane) == len(b"open")


async def test_bytes_of_objects(objects: ObjectServer) -> None:
    bucket = objects.bucket()
    for name, lines in (("a", 100), ("b", 50)):
        bucket.put(f"in/{name}.jsonl", LINE * lines)
    spec = {"file": {"paths": [bucket.url("in/*")], "store": objects.settings, "format": "jsonl", "follow": True,
                     "pollEvery": "50ms"}}  # fmt: skip
    async with open_lane(spec) as lane:
        assert pending_bytes(lane) == 150 * len(LINE)
        await lane.read(30, 1 << 20, 5.0)
        assert pending_bytes(lane) == 120 * len(LINE)
        await read_until(lane, lambda records: len(records) == 120)
        bucket.put("in/c.jsonl", LINE * 5)
        await read_until(lane, lambda records: len(records) == 5)
        await lane.read(1, 1 << 20, 0.2)
        assert pending_bytes(lane) == 0


def delta(directory: Path) -> tuple[dict[str, Any], Callable[[int], object]]:
    def add(rows: int) -> None:
        write_deltalake(str(directory / "table"), pa.table({"n": pa.array(range(rows), pa.int64())}), mode="append")

    return {"delta": {"path": "table", "follow": True, "pollEvery": "20ms"}}, add


def iceberg(directory: Path) -> tuple[dict[str, Any], Callable[[int], object]]:
    uri, warehouse = f"sqlite:///{directory / 'catalog.db'}", str(directory / "warehouse")

    def add(rows: int) -> None:
        with closing(SqlCatalog("default", uri=uri, warehouse=warehouse)) as catalog:
            catalog.create_namespace_if_not_exists("shop")
            data = pa.table({"n": pa.array(range(rows), pa.int64())})
            catalog.create_table_if_not_exists("shop.numbers", data.schema).append(data)

    catalog = {"sqlite": "catalog.db"}
    return {"iceberg": {"catalog": catalog, "table": "shop.numbers", "follow": True, "pollEvery": "20ms"}}, add


@pytest.mark.parametrize("kind", [delta, iceberg])
async def test_versions_and_rows_of_tables(
    tmp_path: Path, kind: Callable[[Path], tuple[dict[str, Any], Callable[[int], object]]]
) -> None:
    spec, add = kind(tmp_path)

    def waiting(lane: SourceLane) -> tuple[int | None, int | None]:
        return pending_versions(lane), lane.pending()

    add(10)
    add(10)
    # The lane around it that reads keys does not hide what waits.
    async with open_lane({**spec, "keys": ["n"]}, base_dir=tmp_path) as lane:
        batch = await lane.read(5, 1 << 20, 5.0)
        assert waiting(lane) == (1, 15)
        await read_until(lane, lambda records: len(records) == 15)
        await lane.read(1, 1 << 20, 0.05)
        assert waiting(lane) == (0, 0)
        position = (await lane.read(1, 1 << 20, 0.05)).position
        assert batch.position != position
    for rows in (7, 8, 9):
        add(rows)
    async with open_lane(spec, position, base_dir=tmp_path) as lane:
        await lane.read(4, 1 << 20, 5.0)
        # A Delta table's later versions would have to be read to know their rows.
        assert waiting(lane) == (3, None if kind is delta else 3 + 8 + 9)
        await read_until(lane, lambda records: len(records) == 3)
        await lane.read(8, 1 << 20, 5.0)
        await lane.read(1, 1 << 20, 5.0)
        assert waiting(lane) == (1, 8)
