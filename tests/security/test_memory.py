"""Memory: what a small input stands for is bounded before it is made."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aiohttp import web
from deltalake import DeltaTable, write_deltalake
from fastavro import _read_py
from obstore.store import MemoryStore

from millstream import codes
from millstream.errors import UserError
from millstream.limits import (
    AVRO_BLOCK_BYTES_MAX,
    MIB,
    REGISTRY_ANSWER_BYTES_MAX,
    TABLE_ENTRIES_BYTES_MAX,
    TABLE_LOG_BYTES_MAX,
    TABLE_METADATA_BYTES_MAX,
    WEB_ANSWER_BYTES_MAX,
)
from millstream.record import Position
from millstream_connectors.delta import opening
from millstream_connectors.delta.files import table_files
from millstream_connectors.delta.settings import DeltaSink, DeltaSource
from millstream_connectors.delta.sink import actions_of, look
from millstream_connectors.delta.source.log import TableLog
from millstream_connectors.file.source.rows_as_json import bounded, json_rows
from millstream_connectors.file.source.table_file import parquet_rows
from millstream_connectors.opensearch.settings import OpenSearchSink
from millstream_connectors.opensearch.sink.lane import open_opensearch_sink
from millstream_connectors.pulsar.looking import deduplicates
from millstream_connectors.pulsar.settings import PulsarSink
from millstream_connectors.shared.formats.avro_bounds import bound_blocks, check_items
from millstream_connectors.shared.objects import stores
from millstream_connectors.shared.objects.settings import ObjectStore, parse_url
from millstream_connectors.sqs.client import linked
from millstream_connectors.sqs.settings import SqsSource
from millstream_udf import arrow_values
from tests.contract.sinks.file_target import sink_owner
from tests.support.errors import raises
from tests.support.web_server import open_handler
from tests.unit.writer.sink_frames import sink_frame

REPOSITORY = Path(__file__).parents[2]
GROWTH_MAX_MIB = 4 * AVRO_BLOCK_BYTES_MAX // MIB
"""By how much a reader may grow: a block of Avro, or the copies of a row that no record could hold."""


@pytest.mark.process
def test_small_inputs_that_stand_for_gigabytes(tmp_path: Path) -> None:
    for write in (("write",), ()):
        command = [sys.executable, "-m", "tests.security.small_bombs", str(tmp_path), *write]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=True)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 16 * MIB
    found = json.loads(done.stdout)
    said = {name: text for name, (_, text) in found.items()}
    assert said.pop("parquet") == "400 rows"
    assert said.pop("large cell") == "1 rows"
    for name in ("struct", "name", "prefixes"):
        assert said.pop(name) == "100 rows"
    assert said.pop("name of csv") == "100 rows, 0 invalid"
    assert said.pop("line") == "0 rows, 1 invalid"
    assert "a row has 50000000 values" in said.pop("list")
    assert "a row has 270 values in list.list.element, of up to 1000009 bytes" in said.pop("texts")
    assert "a page of the column text takes 27000" in said.pop("page")
    for name in ("hidden page", "hidden remote page"):
        assert "a page of the column text takes 27000" in said.pop(name)
    assert f"take more memory than {TABLE_ENTRIES_BYTES_MAX} bytes" in said.pop("list of manifests")
    assert "its log takes more than 1024 MiB when it is loaded" in said.pop("checkpoint")
    assert said.pop("statistics").startswith("StateFiles(files=[AddedFile(path=")
    assert "they are compressed" in said.pop("arrow")
    assert f"more than {WEB_ANSWER_BYTES_MAX} bytes" in said.pop("http")
    assert f"more than {REGISTRY_ANSWER_BYTES_MAX} bytes" in said.pop("registry")
    assert f"more than {TABLE_METADATA_BYTES_MAX} bytes" in said.pop("metadata")
    assert f"more than {TABLE_METADATA_BYTES_MAX} bytes" in said.pop("manifest")
    assert "items that take no bytes" in said.pop("items")
    assert all(f"more than {AVRO_BLOCK_BYTES_MAX} bytes" in text for text in said.values()), said
    assert {name: grown for name, (grown, _) in found.items() if grown > GROWTH_MAX_MIB} == {}


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    with suppress(OSError):
        while True:
            await response.write(b" " * MIB)
    return response


async def test_an_answer_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = f"more than {WEB_ANSWER_BYTES_MAX} bytes"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    async with open_handler(endless) as address:
        sink = OpenSearchSink.model_validate({"url": address, "index": "i", "mode": "upsert"})
        async with open_opensearch_sink(sink, sink_owner(1)) as lane:
            with raises(codes.TARGET_UNFIT, match=said):
                await lane.write([sink_frame([b"{}"], 1)], Position(1))
        queue = SqsSource.model_validate({"queueUrl": f"{address}/1/queue", "region": "us-east-1"})
        async with linked(queue, tmp_path, "a lane") as link:
            with raises(codes.TARGET_AWAY, match=said):
                await link.ask("receive_message")
        topic = PulsarSink.model_validate({"serverAddr": "pulsar://a:1", "topic": "t", "adminUrl": address})
        with raises(codes.TARGET_AWAY, match=said):
            await deduplicates(topic, tmp_path, math.inf)


def test_the_log_of_a_table_is_looked_at_before_it_is_loaded(tmp_path: Path) -> None:
    where, log = tmp_path / "t", tmp_path / "t" / "_delta_log"
    for n in range(2):
        write_deltalake(where, pa.table({"n": [n]}), mode="append")
    settings = DeltaSource.model_validate({"path": "t"})
    opened = TableLog(settings, tmp_path, "a lane")
    opened.open()
    assert opened.newest() == 1
    # Nothing of it is read: it has no bytes on the disk.
    with (log / f"{2:020}.json").open("wb") as file:
        file.truncate(2 * TABLE_LOG_BYTES_MAX)
    said = f"{2:020}.json alone takes 2048 MiB"
    with raises(codes.TARGET_UNFIT, match=said):
        opened.newest()
    with raises(codes.TARGET_UNFIT, match=said):
        TableLog(settings, tmp_path, "a lane").open()
    sink = DeltaSink.model_validate({"path": "t"})
    with raises(codes.TARGET_UNFIT, match=said):
        look(sink, tmp_path)
    # An earlier version, and one that a checkpoint has replaced, are not affected.
    assert len(opened.snapshot(1).files) == 2
    (log / f"{2:020}.json").unlink()
    DeltaTable(where).create_checkpoint()
    with (log / f"{0:020}.json").open("wb") as file:
        file.truncate(2 * TABLE_LOG_BYTES_MAX)
    TableLog(settings, tmp_path, "a lane").open()
    # But the sink reads commits that are not loaded any more, too.
    files = table_files("t", ObjectStore(), tmp_path, "a lane")
    assert files.commit(1)
    with pytest.raises(ValueError, match="the limit"):
        files.commit(0)
    with raises(codes.TARGET_UNFIT, match="an action in"):
        list(actions_of(log / f"{0:020}.json", "a lane"))
    assert len(list(actions_of(log / f"{1:020}.json", "a lane"))) > 1


def test_a_list_without_end_of_a_store_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "OBJECTS_LISTED_MAX", 3)
    store = MemoryStore()
    for n in range(4):
        store.put(f"a/{n}", b"")
    assert len(list(stores.listed(store, "b"))) == 0
    store.delete("a/3")
    assert len(list(stores.listed(store, "a"))) == 3
    store.put("a/3", b"")
    with pytest.raises(stores.FAILURES) as caught:
        list(stores.listed(store, "a"))
    error = stores.error_of(caught.value, parse_url("s3://bucket/a"), "a lane")
    assert isinstance(error, UserError)
    assert "S3 at s3://bucket: there are more than 3 objects, the limit" in str(error)
    long = OSError(f"<Code>{'x' * 1000}</Code>")
    assert len(str(stores.error_of(long, parse_url("s3://bucket/a"), "a lane"))) < 500


@pytest.mark.parametrize(
    ("names", "is_complete"),
    [
        (["1.checkpoint.parquet"], True),
        (["1.checkpoint.0000000001.0000000002.parquet"], False),
        (["1.checkpoint.0000000001.0000000002.parquet", "1.checkpoint.0000000002.0000000002.parquet"], True),
        (["1.checkpoint.0000000000.0000000000.parquet"], False),
        (["1.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"], True),
        (["1.checkpoint.not-one.parquet"], False),
    ],
)
def test_only_a_complete_checkpoint_replaces_earlier_files(names: list[str], *, is_complete: bool) -> None:
    assert opening._is_complete([name.replace("1.", f"{1:020}.", 1) for name in names]) is is_complete


def test_blocks_have_a_limited_number_of_bytes() -> None:
    texts = pa.array(["a" * MIB, None, "b" * (20 * MIB), *["c" * (3 * MIB)] * 4], pa.string())
    batch = pa.record_batch({"n": range(len(texts)), "text": texts.dictionary_encode(), "more": texts})
    parts = [json_rows(part) for part in bounded(batch)]
    assert [len(part) for part in parts] == [2, 1, 1, 1, 1, 1]
    values = [json.loads(value) for part in parts for value in part]
    assert [value["n"] for value in values] == [*range(len(texts))]
    assert values[0]["text"] == "a" * MIB
    assert values[1]["text"] is None
    # A row that no record could hold is still too large for one.
    assert 7 * MIB < len(parts[1][0]) < 20 * MIB
    whole = pa.record_batch({"n": [1, 2]})
    assert list(bounded(whole)) == [whole]


def test_texts_in_dictionaries_are_the_same_rows(tmp_path: Path) -> None:
    columns = {
        "text": ["a", None, "\u00fc", "a"] * 50,
        "bytes": [b"a", None, b"\xff", b""] * 50,
        "nested": [{"list": ["x", None], "text": "y"}, None, {"list": [], "text": None}, {"list": None, "text": "z"}]
        * 50,
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=30)
    with (tmp_path / "t.parquet").open("rb") as file:
        found = [json.loads(value) for block in parquet_rows(file, 3) for value in block]
    expected = [json.loads(value) for value in json_rows(pa.table(columns).combine_chunks().to_batches()[0])]
    assert found == expected[3:]


@pytest.mark.parametrize(
    ("items", "valid"),
    [
        ("null", False),
        ({"type": "fixed", "name": "f", "size": 0}, False),
        ({"type": "record", "name": "e", "fields": []}, False),
        ({"type": "record", "name": "e", "fields": [{"name": "n", "type": "null"}]}, False),
        (["null"], True),
        ("int", True),
        ({"type": "record", "name": "e", "fields": [{"name": "n", "type": ["null", "e"]}]}, True),
        ({"type": "array", "items": "null"}, False),
        ({"type": "map", "values": "null"}, True),
    ],
)
def test_arrays_of_items_without_bytes_are_refused(items: object, *, valid: bool) -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": {"type": "array", "items": items}}]}
    if valid:
        check_items(schema)
    else:
        with pytest.raises(ValueError, match="items that take no bytes"):
            check_items(schema)


@pytest.mark.parametrize("cut", [8, 40, 100, 200])
def test_columns_that_are_cut_or_changed_are_refused(cut: int) -> None:
    batch = pa.record_batch({"n": [1, 2], "text": ["a", "b"]})
    target = pa.BufferOutputStream()
    with pa.ipc.new_stream(target, batch.schema) as stream:
        stream.write_batch(batch)
    column = target.getvalue().to_pybytes()
    assert arrow_values.unpacked(column, 2).num_rows == 2
    with pytest.raises(ValueError, match="not Arrow columns"):
        arrow_values.unpacked(column[:cut], 2)
    with pytest.raises(ValueError, match=r"not Arrow columns|Arrow columns that do not|rows of Arrow columns"):
        arrow_values.unpacked(column[:cut] + b"\xff" * (len(column) - cut), 2)


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
@pytest.mark.parametrize("read", [fastavro.reader, _read_py.reader])
def test_blocks_within_the_limit_are_read(codec: str, read: Callable[[Any], Iterable[Any]]) -> None:
    bound_blocks()
    schema = {"type": "record", "name": "r", "fields": [{"name": "n", "type": "long"}]}
    file = io.BytesIO()
    rows = [{"n": n} for n in range(5000)]
    fastavro.writer(file, schema, rows, codec=codec)
    file.seek(0)
    assert list(read(file)) == rows
