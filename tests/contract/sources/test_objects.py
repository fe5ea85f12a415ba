"""The `file` source on objects of a real server: every record once from any position, and what it says otherwise."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from ruamel.yaml import YAML

from millstream import codes
from millstream.codes.code import Code
from millstream.spec.models import Source
from millstream_runner.cli.main import main
from tests.contract.sources.lanes import held_up, open_lane, read_to_end, read_until, values
from tests.support.damaged_files import DAMAGES
from tests.support.errors import raises
from tests.support.object_server import READER, Bucket, ObjectServer

PAGE = Path(__file__).parents[3] / "docs" / "connectors" / "objects.md"
ROWS = 40


@pytest.fixture
def bucket(any_bucket: Bucket) -> Bucket:
    return any_bucket


@pytest.fixture
def s3(objects: ObjectServer) -> Bucket:
    return objects.bucket()


def spec(bucket: Bucket, key: str, /, **settings: Any) -> dict[str, Any]:
    store = {**bucket.server.settings, **settings.pop("store", {})}
    return {"file": {"paths": [bucket.url(key)], "store": store, "format": "jsonl", **settings}}


def rows(first: int, count: int = ROWS) -> list[dict[str, Any]]:
    return [{"n": n, "text": f"text {n}"} for n in range(first, first + count)]


def lines(first: int, count: int = ROWS) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows(first, count))


def encoded(form: str, first: int) -> bytes:
    if form == "parquet":
        out = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows(first)), out, row_group_size=7)
        return out.getvalue()
    if form == "avro":
        fields = [{"name": "n", "type": "long"}, {"name": "text", "type": "string"}]
        out = io.BytesIO()
        fastavro.writer(out, {"type": "record", "name": "row", "fields": fields}, rows(first))
        return out.getvalue()
    if form == "csv":
        return b"n,text\n" + b"".join(f"{row['n']},text {row['n']}\n".encode() for row in rows(first))
    return lines(first)


def numbers(found: list[bytes]) -> list[int]:
    assert all(json.loads(value)["text"] == f"text {json.loads(value)['n']}" for value in found)
    return [int(json.loads(value)["n"]) for value in found]


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


@pytest.mark.guarantee("I1", "I15")
@pytest.mark.parametrize(
    ("form", "packing"),
    [("jsonl", ""), ("jsonl", ".gz"), ("jsonl", ".zst"), ("csv", ""), ("parquet", ""), ("avro", "")],
)
@pytest.mark.parametrize("where", ["objects", "files"])
async def test_reading_again_from_any_position_gives_the_rest_once(
    bucket: Bucket, tmp_path: Path, where: str, form: str, packing: str
) -> None:
    for number in range(3):
        data = PACKED[packing](encoded(form, number * ROWS))
        if where == "objects":
            bucket.put(f"in/part-{number}.{form}{packing}", data)
        else:
            (tmp_path / f"part-{number}.{form}{packing}").write_bytes(data)
    csv = {"csv": {"columns": [{"name": "n", "type": "int"}]}} if form == "csv" else {}
    settings = spec(bucket, f"in/*.{form}{packing}", format=form, **csv)
    if where == "files":
        settings = {"file": {"paths": [f"*.{form}{packing}"], "format": form, **csv}}
    async with open_lane(settings, base_dir=tmp_path) as lane:
        records, _, batches = await read_to_end(lane, records_max=9)
    assert numbers(values(records)) == [*range(3 * ROWS)]
    done = 0
    for batch in batches:
        done += batch.frame.records if batch.frame is not None else 0
        async with open_lane(settings, batch.position, base_dir=tmp_path) as lane:
            rest, _, _ = await read_to_end(lane, 31)
            assert numbers(values(rest)) == [*range(done, 3 * ROWS)]


async def test_event_time_and_keys_out_of_typed_rows(bucket: Bucket) -> None:
    bucket.put("a.parquet", encoded("parquet", 0))
    settings = spec(bucket, "a.parquet", format="parquet")
    settings |= {"eventTime": {"field": "n", "format": "epoch"}, "keys": ["text"]}
    async with open_lane(settings) as lane:
        records, _, _ = await read_to_end(lane)
    assert [record.event_time_us for record in records] == [n * 1_000_000 for n in range(ROWS)]
    assert records[3].keys == ("text 3",)


async def test_each_object_is_read_by_one_lane(bucket: Bucket) -> None:
    for number in range(8):
        bucket.put(f"in/{number}.jsonl", lines(number * ROWS))
        bucket.put(f"in/_markers/{number}.jsonl", b"no data")
    found: list[int] = []
    for partition in range(3):
        async with open_lane(spec(bucket, "in/"), partition=partition, partitions=3) as lane:
            found += numbers(values((await read_to_end(lane))[0]))
    assert sorted(found) == [*range(8 * ROWS)]


@pytest.mark.guarantee("I1")
async def test_objects_that_come_later_under_any_name_are_read_once(bucket: Bucket) -> None:
    bucket.put("in/m.jsonl", lines(0))
    settings = spec(bucket, "in/*.jsonl", follow=True, pollEvery="50ms")
    batches: list[Any] = []
    async with open_lane(settings) as lane:
        await read_until(lane, lambda records: len(records) == ROWS, batches)
        bucket.put("in/z.jsonl", lines(ROWS))
        bucket.put("in/a.jsonl", lines(2 * ROWS))
        assert numbers(values(await read_until(lane, lambda records: len(records) == 3 * ROWS, batches)))[ROWS:] == [
            *range(2 * ROWS, 3 * ROWS),
            *range(ROWS, 2 * ROWS),
        ]
        batches.append(await lane.read(10, 1 << 20, 0.1))
    # While nothing runs: one with a smaller name, one with a greater one.
    bucket.put("in/b.jsonl", lines(3 * ROWS))
    bucket.put("in/zz.jsonl", lines(4 * ROWS))
    async with open_lane(settings, batches[-1].position) as lane:
        rest = numbers(values(await read_until(lane, lambda records: len(records) == 2 * ROWS, batches := [])))
        assert rest == [*range(3 * ROWS, 5 * ROWS)]
        batches.append(await lane.read(10, 1 << 20, 0.1))
    # What was removed is not missed, and does not hide what comes.
    bucket.remove("in/a.jsonl")
    async with open_lane(settings, batches[-1].position) as lane:
        bucket.put("in/zzz.jsonl", lines(5 * ROWS))
        assert numbers(values(await read_until(lane, lambda records: len(records) == ROWS))) == [
            *range(5 * ROWS, 6 * ROWS)
        ]


@pytest.mark.guarantee("I15")
@pytest.mark.parametrize("when", ["while it is read", "after it was read", "while it waits"])
async def test_an_object_that_was_replaced_is_named(bucket: Bucket, when: str) -> None:
    bucket.put("in/a.jsonl", lines(0))
    bucket.put("in/b.jsonl", lines(ROWS))
    settings = spec(bucket, "in/*.jsonl", follow=True, pollEvery="50ms")
    async with open_lane(settings) as lane:
        batches: list[Any] = []
        wanted = 2 * ROWS if when == "while it waits" else ROWS + 5
        while sum(batch.frame.records for batch in batches if batch.frame is not None) < wanted:
            batches.append(await lane.read(5, 1 << 20, 0.05))
        name = "in/b.jsonl" if when == "while it is read" else "in/a.jsonl"
        bucket.put(name, lines(7))
        if when == "while it waits":
            with raises(codes.SOURCE_FILE_CHANGED, match=re.escape(bucket.url(name))):
                async with asyncio.timeout(30):
                    while True:
                        await lane.read(5, 1 << 20, 0.05)
    with raises(codes.SOURCE_FILE_CHANGED, match=re.escape(bucket.url(name))):
        async with open_lane(settings, batches[-1].position) as lane:
            await lane.read(5, 1 << 20, 0.05)


async def test_a_server_that_is_away_is_waited_for(bucket: Bucket) -> None:
    bucket.put("in/a.jsonl", lines(0))
    settings = spec(bucket, "in/*.jsonl", store={"timeout": "2s"})
    bucket.server.pause()
    try:
        async with open_lane(settings) as lane:
            batch = await lane.read(5, 1 << 20, 0.01)
            assert (batch.frame, batch.ended) == (None, False)
            await held_up(lane, True)
            bucket.server.go_on()
            assert numbers(values((await read_to_end(lane))[0])) == [*range(ROWS)]
    finally:
        bucket.server.go_on()


@pytest.mark.guarantee("I10")
async def test_damaged_objects_are_named(bucket: Bucket) -> None:
    whole = encoded("parquet", 0)
    for name, data, form in (
        *((f"{how}.parquet", damaged(whole), "parquet") for how, damaged in DAMAGES.items()),
        ("b.avro", b"Obj\x01nothing", "avro"),
        ("c.jsonl.zst", zstandard.ZstdCompressor().compress(lines(0))[:-9], "jsonl"),
        ("d.jsonl.gz", gzip.compress(lines(0))[:-9], "jsonl"),
    ):
        bucket.put(name, data)
        with raises(codes.SOURCE_FILE_CHANGED, match=re.escape(bucket.url(name))):
            async with open_lane(spec(bucket, name, format=form)) as lane:
                await read_to_end(lane)


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"accessKey": "nobody"}, codes.TARGET_REFUSES, "InvalidAccessKeyId"),
        ({"secretKey": "wrong"}, codes.TARGET_REFUSES, "SignatureDoesNotMatch"),
        ({"secretKey": {"env": "MILLSTREAM_NOT_SET"}}, codes.SECRET_MISSING, "MILLSTREAM_NOT_SET"),
        ({"bucket": "not-there"}, codes.TARGET_UNFIT, "no such bucket"),
        ({"key": "nothing/*.jsonl"}, codes.SOURCE_FILES_MISSING, "no object"),
    ],
)
async def test_what_cannot_be_read_is_said(
    s3: Bucket,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    code: Code,
    said: str,
) -> None:
    s3.put("in/a.jsonl", lines(0))
    place = {"bucket": s3.name, "key": "in/*.jsonl"} | {k: v for k, v in changes.items() if k in ("bucket", "key")}
    store = {**s3.server.settings, **{k: v for k, v in changes.items() if k not in place}}
    settings = {"file": {"paths": [f"s3://{place['bucket']}/{place['key']}"], "format": "jsonl", "store": store}}
    with raises(code, match=re.escape(said)):
        async with open_lane(settings) as lane:
            await lane.read(1, 1, 0.01)
    assert await asyncio.to_thread(_validate, settings, tmp_path) != 0
    printed = "".join(capsys.readouterr())
    assert code.id in printed
    assert s3.server.settings["secretKey"] not in printed


def test_a_reader_is_enough(s3: Bucket, tmp_path: Path) -> None:
    s3.put("in/a.jsonl", lines(0))
    assert _validate(spec(s3, "in/*.jsonl", store={"accessKey": READER}), tmp_path) == 0


def _validate(settings: dict[str, Any], directory: Path) -> int:
    vertices = [{"name": "in", "source": settings}, {"name": "out", "sink": {"log": {}}}]
    pipeline = {
        "apiVersion": "millstream.io/v1alpha1",
        "kind": "Pipeline",
        "metadata": {"name": f"p-{uuid4()}"},
        "spec": {"vertices": vertices, "edges": [{"from": "in", "to": "out"}]},
    }
    file = directory / "pipeline.yaml"
    with file.open("w") as stream:
        YAML().dump(pipeline, stream)
    return main(["validate", "--online", str(file)])


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"paths": ["ftp://host/x"]}, "paths"),
        ({"paths": ["s3://bucket/a", "b"]}, "paths"),
        ({"paths": ["a"], "store": {}}, "store"),
        ({"paths": ["s3://b-b/a"], "store": {"accessKey": "x"}}, "secretKey"),
        ({"paths": ["a"], "format": "parquet", "follow": True}, "follow"),
    ],
)
def test_settings_that_do_not_go_together(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(Exception, match=field):
        Source.model_validate({"file": settings})


async def test_the_page_shows_what_works(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S3_KEY", s3.server.settings["accessKey"])
    monkeypatch.setenv("S3_SECRET", s3.server.settings["secretKey"])
    text = PAGE.read_text().replace("s3://lake/", s3.url()).replace("http://127.0.0.1:8333", s3.server.endpoint)
    blocks = [block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "source:" in block]
    s3.put("orders/2024/a.jsonl.gz", gzip.compress(lines(0)))
    assert blocks
    for block in blocks:
        source = dict(YAML(typ="safe", pure=True).load(block)[0]["source"])
        async with open_lane(source) as lane:
            assert numbers(values(await read_until(lane, lambda records: len(records) == ROWS))) == [*range(ROWS)]
