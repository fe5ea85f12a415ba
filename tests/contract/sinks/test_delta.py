"""The delta sink with real tables: what is in them, and that each record is there once, whatever fails."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from ruamel.yaml import YAML

from millstream import codes
from millstream.codes.code import Code
from millstream.errors import FencedError, MillstreamError, RetryLaterError
from millstream.record import Position
from millstream.spec.models import FallbackSink
from millstream_connectors.delta import sink as delta_table
from millstream_connectors.delta.client import options_of
from millstream_connectors.delta.connector import SINK
from millstream_connectors.shared.objects.settings import ObjectStore
from millstream_writer.sink import FinishingLane
from tests.contract.sinks.file_target import sink_owner, value_of
from tests.contract.sinks.sink_targets import delta_numbers, delta_spec
from tests.contract.sinks.table_lanes import LATER, numbers, opened, written
from tests.contract.sinks.validating import validate_sink
from tests.contract.sources.lanes import open_lane, read_to_end, values
from tests.support.azure_server import ACCOUNT, KEY, AzureServer
from tests.support.children import together
from tests.support.errors import raises
from tests.support.object_server import READER, Bucket, ObjectServer
from tests.support.silences import through_silences
from tests.unit.writer.sink_frames import sink_frame

PAGE = Path(__file__).parents[3] / "docs" / "connectors" / "tables.md"


@pytest.fixture
def bucket(objects: ObjectServer) -> Bucket:
    return objects.bucket()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "table")


async def test_columns_and_partitions_of_columns_and_of_the_event_time(path: str) -> None:
    columns = [
        {"name": "n", "type": "int"},
        {"name": "share", "type": "float"},
        {"name": "at", "type": "timestamp"},
        {"name": "ok", "type": "bool"},
        {"name": "shop"},
    ]
    spec = delta_spec(path, columns=columns, partitionBy=["shop", "dt", "hour"], **LATER)
    record = {"n": 1, "share": 0.5, "at": "2024-05-01T10:00:00+02:00", "ok": True, "shop": "a/b c"}
    async with opened(spec) as lane:
        await lane.write([sink_frame([json.dumps(record).encode(), b'{"n": 2}', b"no json"], 7)], Position(7))
        await lane.flush()
        assert lane.durable == Position(7)
    table = DeltaTable(path)
    assert table.metadata().partition_columns == ["shop", "dt", "hour"]
    rows = sorted(table.to_pyarrow_table().to_pylist(), key=lambda row: row["n"])
    assert rows[0].pop("at").isoformat() == "2024-05-01T08:00:00+00:00"
    assert rows[0] == {"n": 1, "share": 0.5, "ok": True, "shop": "a/b c", "dt": "1970-01-01", "hour": "00"}
    assert rows[1] == {
        "n": 2, "share": None, "at": None, "ok": None, "shop": None, "dt": "1970-01-01", "hour": "00",
    }  # fmt: skip


@pytest.mark.guarantee("I1")
async def test_a_commit_is_made_while_the_next_one_is_collected(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records count as durable when their commit is there, and not before."""
    begun, may_go_on = threading.Event(), threading.Event()

    def held(*arguments: Any, **options: Any) -> None:
        begun.set()
        assert may_go_on.wait(30)
        write_deltalake(*arguments, **options)

    monkeypatch.setattr(delta_table, "write_deltalake", held)
    async with opened(delta_spec(path, maxRecords=10, **LATER)) as lane:
        await lane.write([numbers(1)], Position(1))
        assert await asyncio.to_thread(begun.wait, 30)
        await lane.write([sink_frame([value_of(n) for n in range(20, 25)], 2)], Position(2))
        await lane.tick()
        assert isinstance(lane, FinishingLane)
        assert (lane.durable, lane.in_progress) == (Position(0), Position(1))
        may_go_on.set()
        await lane.flush()
        assert lane.durable == lane.in_progress == Position(2)
    assert delta_numbers(Path(path)) == [*range(10, 25)]


async def test_without_columns_the_table_has_the_bytes_of_values(path: str) -> None:
    spec = FallbackSink.model_validate({"delta": {"path": path}})
    async with opened(spec) as lane:
        await lane.write([sink_frame([b"\xff", b""], 1)], Position(1))
        await lane.flush()
    assert DeltaTable(path).to_pyarrow_table().to_pydict() == {"value": [b"\xff", b""]}


@pytest.mark.guarantee("I1")
async def test_what_a_former_owner_has_committed_is_durable_before_it_is_relied_on(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = delta_spec(path, **LATER)
    on_disk: set[Path] = set()
    monkeypatch.setattr(delta_table, "sync_path", on_disk.add)
    async with opened(spec, sink_owner(1)) as former:
        await written(former, 1)
    # As if it had been killed between its commit and the fsync of it.
    on_disk.clear()
    async with opened(spec, sink_owner(2)) as lane:
        assert lane.durable == Position(1)
    files = [path for path in Path(path).rglob("*") if path.suffix == ".parquet"]
    logs = sorted((Path(path) / "_delta_log").glob("*.json"))
    assert len(files) >= 1
    assert {*files, *logs} <= on_disk


@pytest.mark.guarantee("I1")
async def test_of_two_owners_the_older_has_no_effect(path: str) -> None:
    spec = delta_spec(path, **LATER)
    async with opened(spec, sink_owner(1)) as older:
        await written(older, 1)
        await older.write([numbers(2)], Position(2))
        async with opened(spec, sink_owner(2)) as newer:
            assert newer.durable == Position(1)
            with pytest.raises(FencedError):
                await older.flush()
            await written(newer, 2, 3)
            with pytest.raises(FencedError):
                await older.flush()
        with pytest.raises(FencedError):
            async with opened(spec, sink_owner(1)):
                pass
    assert delta_numbers(path) == [*range(10, 40)]


@pytest.mark.guarantee("I1")
async def test_lanes_commit_to_one_table_at_the_same_time(path: str) -> None:
    """Others who append, compact and remove what was compacted do not disturb them."""
    spec = delta_spec(path, commitEvery="1h", maxRecords=10)
    async with opened(spec, sink_owner(1, partition=9)):
        pass

    async def lane_of(partition: int) -> None:
        async with opened(spec, sink_owner(1, partition=partition)) as lane:
            await written(lane, *range(partition * 20 + 1, partition * 20 + 11))

    def another() -> None:
        for n in range(1000, 1005):
            rows = pa.table({"n": [n], "text": [f"text {n}"]})
            write_deltalake(path, rows, mode="append", commit_properties=CommitProperties(max_commit_retries=1000))
            table = DeltaTable(path)
            with suppress(Exception):
                # Compacting gives way to the lanes where it has to.
                table.optimize.compact()

    await together(*map(lane_of, range(4)), asyncio.to_thread(another))
    table = DeltaTable(path)
    table.optimize.compact()
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    expected = [n for lane in range(4) for n in range(lane * 200 + 10, lane * 200 + 110)]
    assert delta_numbers(path) == [*expected, *range(1000, 1005)]
    async with opened(spec, sink_owner(2, partition=3)) as lane:
        assert lane.durable == Position.within(70, 10)


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize("landed", [True, False])
async def test_an_answer_that_is_lost_is_settled_by_looking(
    path: str, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    write = write_deltalake
    lost: list[bool] = []

    def losing(*arguments: Any, **options: Any) -> None:
        if landed or len(lost) % 2:
            write(*arguments, **options)
        lost.append(True)
        if landed or len(lost) % 2:
            raise OSError("the answer was lost")

    monkeypatch.setattr(delta_table, "write_deltalake", losing)
    async with opened(delta_spec(path, **LATER)) as lane:
        for sequence in range(1, 5):
            await written(lane, sequence)
    assert len(lost) == (4 if landed else 8)
    assert delta_numbers(path) == [*range(10, 50)]


@pytest.mark.guarantee("I1", "I15")
async def test_a_target_that_is_ahead_or_of_another_run_stops_the_lane(path: str) -> None:
    spec = delta_spec(path, **LATER)
    async with opened(spec) as lane:
        await lane.write([numbers(1, name="a"), numbers(2, name="b")], Position(2))
        await lane.flush()

    async def another(sequence: int, name: str) -> str | None:
        assert (sequence, name) == (2, "b")
        return "nothing"

    with raises(codes.SINK_AHEAD, match="now holds nothing"):
        async with opened(spec, sink_owner(2, held_instead=another)):
            pass
    with raises(codes.SINK_AHEAD, match=r"another run.*move the table"):
        async with opened(spec, sink_owner(2, ledger_id="second")):
            pass
    assert delta_numbers(path) == [*range(10, 30)]


@pytest.mark.guarantee("I1")
async def test_the_position_outlives_the_history(path: str) -> None:
    """A checkpoint takes the place of the log, which is removed but for its newest commit."""
    spec = delta_spec(path, **LATER)
    async with opened(spec) as lane:
        await written(lane, 1, 2)
    DeltaTable(path).create_checkpoint()
    for file in sorted((Path(path) / "_delta_log").glob("*.json"))[:-1]:
        file.unlink()
    async with opened(spec, sink_owner(2)) as lane:
        assert lane.durable == Position(2)
        await written(lane, 1, 2, 3)
    assert delta_numbers(path) == [*range(10, 40)]


@pytest.mark.guarantee("I1")
async def test_a_table_that_is_replaced_under_a_lane_stops_it(path: str) -> None:
    spec = delta_spec(path, **LATER)
    async with opened(spec) as lane:
        await written(lane, 1)
        await lane.write([numbers(2)], Position(2))
        Path(path).rename(f"{path}-old")
        DeltaTable.create(path, DeltaTable(f"{path}-old").schema())
        with raises(codes.TARGET_POSITION_LOST, match="removed or replaced"):
            while True:
                with suppress(RetryLaterError):
                    await lane.flush()
    assert delta_numbers(path) == []


async def test_a_table_gets_the_columns_that_it_lacks_only_if_it_may(path: str) -> None:
    write_deltalake(path, pa.table({"n": [1], "text": ["text 1"], "old": ["x"]}))
    more = {"columns": [{"name": "n", "type": "int"}, {"name": "text"}, {"name": "new", "type": "bool"}], **LATER}
    with raises(codes.TARGET_UNFIT, match=r"no column `new`.*schemaMode: merge"):
        async with opened(delta_spec(path, **more)):
            pass
    frame = sink_frame([b'{"n": 2, "text": "text 2", "new": true}'], 1)
    spec = delta_spec(path, schemaMode="merge", **more)
    async with opened(spec) as lane, opened(spec, sink_owner(1, partition=1)) as other:
        for one in (lane, other):
            await one.write([frame], Position(1))
        await together(*(written(one, 2) for one in (lane, other)))
    rows = DeltaTable(path).to_pyarrow_table().to_pylist()
    assert sorted((row["n"], row["old"], row["new"]) for row in rows if row["n"] < 10) == [
        (1, "x", None), (2, None, True), (2, None, True),
    ]  # fmt: skip
    assert len(rows) == 23


@pytest.mark.parametrize(
    ("columns", "settings", "said"),
    [
        ({"n": pa.string(), "text": pa.string()}, {}, "column `n` of the table has the type string"),
        ({"n": pa.int64(), "text": pa.string()}, {"partitionBy": ["dt"]}, "partitioned by nothing"),
    ],
)
async def test_a_table_that_does_not_fit_is_refused(
    path: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    columns: dict[str, pa.DataType],
    settings: dict[str, Any],
    said: str,
) -> None:
    write_deltalake(path, pa.schema(columns).empty_table())
    spec = delta_spec(path, schemaMode="merge", **settings)
    with raises(codes.TARGET_UNFIT, match=re.escape(said)):
        async with opened(spec):
            pass
    more = {"columns": [{"name": "n", "type": "int"}, {"name": "text"}], "schemaMode": "merge", **settings}
    assert await asyncio.to_thread(validate_sink, "delta", {"path": path, **more}, tmp_path) != 0
    assert said in " ".join("".join(capsys.readouterr()).split())


async def test_a_column_that_takes_no_nulls_is_refused(path: str) -> None:
    fields: list[pa.Field[Any]] = [pa.field("n", pa.int64()), pa.field("text", pa.string(), nullable=False)]
    write_deltalake(path, pa.schema(fields).empty_table())
    with raises(codes.TARGET_UNFIT, match="`text` of the table accepts no nulls"):
        async with opened(delta_spec(path)):
            pass


async def test_a_place_where_no_table_can_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises(codes.TARGET_UNFIT):
        async with opened(delta_spec(str(tmp_path / "file" / "table"))):
            pass


async def test_commits_come_by_time_and_by_size(path: str) -> None:
    async with opened(delta_spec(path, commitEvery="1h", maxRecords=20)) as lane:
        for sequence in range(1, 6):
            await lane.write([numbers(sequence)], Position(sequence))
        # The second commit may be in progress.
        while lane.durable != Position(4):
            await lane.tick()
    before = DeltaTable(path).version()
    async with opened(delta_spec(path, commitEvery="1ms"), sink_owner(2)) as lane:
        await lane.write([numbers(6)], Position(6))
        await asyncio.sleep(0)
        while lane.durable != Position(6):
            await lane.tick()
    assert DeltaTable(path).version() == before + 2


# In an object store


def bucket_spec(bucket: Bucket, /, **more: object) -> FallbackSink:
    return delta_spec(bucket.url("table"), **{"store": bucket.server.settings, **LATER, **more})


def bucket_numbers(bucket: Bucket) -> list[int]:
    store = ObjectStore.model_validate(bucket.server.settings)
    return delta_numbers(bucket.url("table"), options_of(bucket.url("table"), store, Path(), "test"))


@pytest.mark.sweep
@pytest.mark.guarantee("I1")
async def test_in_a_bucket_of_two_owners_the_older_has_no_effect(bucket: Bucket) -> None:
    spec = bucket_spec(bucket)
    async with opened(spec, sink_owner(1)) as older:
        await written(older, 1)
        await older.write([numbers(2)], Position(2))
        async with opened(spec, sink_owner(2)) as newer, opened(spec, sink_owner(1, partition=1)) as other:
            with pytest.raises(FencedError):
                await older.flush()
            await together(written(newer, 2, 3), written(other, 7, 8))
    assert bucket_numbers(bucket) == [*range(10, 40), *range(70, 90)]


@pytest.mark.sweep
@pytest.mark.guarantee("I1")
async def test_on_azure_a_second_owner_takes_over_and_a_source_reads_each_record_once(
    azure: AzureServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source reads along, in the middle of it, too, and again from its position."""
    for name, value in azure.emulated.items():
        monkeypatch.setenv(name, value)
    bucket = azure.bucket()
    spec = bucket_spec(bucket)
    source = {"delta": {"path": bucket.url("table"), "store": azure.settings}}
    async with opened(spec, sink_owner(1)) as older:
        await written(older, 1, 2)
        async with open_lane(source) as reader:
            records, _, batches = await read_to_end(reader)
        await written(older, 3)
        await older.write([numbers(4)], Position(4))
        async with opened(spec, sink_owner(2)) as newer, opened(spec, sink_owner(1, partition=1)) as other:
            assert newer.durable == Position(3)
            with pytest.raises(FencedError):
                await older.flush()
            await together(written(newer, 4, 5), written(other, 7, 8))
    expected = [*range(10, 60), *range(70, 90)]
    assert bucket_numbers(bucket) == expected
    # A reader need not know that the store is an emulator.
    monkeypatch.undo()
    async with open_lane(source, batches[-1].position) as reader:
        rest = (await read_to_end(reader))[0]
    found = [[json.loads(value)["n"] for value in values(part)] for part in (records, rest)]
    assert sorted(found[0]) == expected[:20]
    assert sorted(found[1]) == expected[20:]


async def test_a_store_that_cannot_list_from_a_version_on_is_said(azure: AzureServer) -> None:
    """Azurite, to a client that takes it for Azure."""
    bucket = azure.bucket()
    with raises(codes.TARGET_UNFIT, match=r"lists the table's log from its first version.*AZURE_STORAGE_USE_EMULATOR"):
        async with opened(bucket_spec(bucket)) as lane:
            await written(lane, 1, 2)
    assert bucket_numbers(bucket) == []


@pytest.mark.parametrize(
    ("path", "endpoint", "environment", "noted"),
    [
        ("az://lake/t", "http://127.0.0.1:10000/devstoreaccount1", {}, True),
        ("az://lake/t", "http://127.0.0.1:10000/devstoreaccount1", {"AZURE_STORAGE_USE_EMULATOR": "True"}, False),
        ("az://lake/t", "https://shop.blob.core.windows.net", {}, False),
        ("s3://lake/t", "http://127.0.0.1:8333", {}, False),
    ],
)
def test_what_azurite_needs_is_noted(
    path: str, endpoint: str, environment: dict[str, str], noted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AZURE_STORAGE_USE_EMULATOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = SINK.model.model_validate({"path": path, "store": {"endpoint": endpoint}})
    notes = [(at, note) for at, note in SINK.notes(settings, ("sink",)) if "AZURITE_BLOB_STORAGE_URL" in note]
    assert [at for at, _ in notes] == ([("sink", "store", "endpoint")] if noted else [])


def test_azure_is_reached_with_a_signature(azure: AzureServer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(azure.signature("rwdlc"))
    store = {"endpoint": azure.endpoint, "account": ACCOUNT, "sasToken": {"file": "token"}}
    path = azure.bucket().url("table")
    options = options_of(path, ObjectStore.model_validate(store), tmp_path, "test")
    write_deltalake(path, pa.table({"n": [1, 2]}), storage_options=options)
    assert DeltaTable(path, storage_options=options).to_pyarrow_table().to_pylist() == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize(
    ("path", "variable", "store", "named"),
    [
        ("az://lake/t", "AZURE_STORAGE_ACCOUNT_KEY", {"account": ACCOUNT, "sasToken": "sp=r&sig=x"}, "sasToken"),
        ("az://lake/t", "AZURE_STORAGE_ACCESS_KEY", {"account": ACCOUNT, "sasToken": "sp=r&sig=x"}, "sasToken"),
        ("s3://lake/t", "AWS_SESSION_TOKEN", {"accessKey": "a", "secretKey": "b"}, "accessKey"),
    ],
)
def test_a_variable_that_the_client_would_mix_with_given_credentials_is_refused(
    path: str, variable: str, store: dict[str, str], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, KEY)
    settings = ObjectStore.model_validate(store)
    with raises(codes.CONNECTOR_SETTINGS, f"would use {variable} .*, which does not belong to `{named}`") as refused:
        options_of(path, settings, tmp_path, "test")
    assert KEY not in str(refused.value)


@pytest.mark.sweep
async def test_nothing_else_stands_still_while_a_store_is_silent(bucket: Bucket, objects: ObjectServer) -> None:
    """Also not when a target is ahead, and the history is read for what it holds."""
    spec = bucket_spec(bucket)
    source = {"delta": {"path": bucket.url("table"), "store": objects.settings}}

    async def work() -> list[bytes]:
        async with opened(spec, sink_owner(1)) as lane:
            await lane.write([numbers(1), numbers(2, name="b")], Position(2))
            await lane.flush()
        with raises(codes.SINK_AHEAD, match="now holds nothing"):
            async with opened(spec, sink_owner(2, held_instead=another)):
                pass
        async with open_lane(source) as reading:
            return values((await read_to_end(reading))[0])

    async def another(sequence: int, name: str) -> str | None:
        assert (sequence, name) == (2, "b")
        return "nothing"

    read = await through_silences(objects, work())
    assert sorted(json.loads(value)["n"] for value in read) == [*range(10, 30)]


@pytest.mark.guarantee("I1")
async def test_a_server_that_is_away_is_waited_for(bucket: Bucket, objects: ObjectServer) -> None:
    # Longer than anything takes on a busy machine, except for what is paused.
    async with opened(bucket_spec(bucket, store={**objects.settings, "timeout": "6s"})) as lane:
        await lane.write([numbers(1)], Position(1))
        objects.pause()
        try:
            with raises(codes.TARGET_AWAY):
                await lane.flush()
        finally:
            objects.go_on()
        while lane.durable != Position(1):
            with suppress(RetryLaterError):
                await lane.flush()
    assert bucket_numbers(bucket) == [*range(10, 20)]


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"accessKey": "nobody"}, codes.TARGET_REFUSES, "InvalidAccessKeyId"),
        ({"secretKey": "wr0ng"}, codes.TARGET_REFUSES, "SignatureDoesNotMatch"),
        ({"accessKey": READER}, codes.TARGET_REFUSES, "AccessDenied"),
        ({"path": "s3://not-there/out"}, codes.TARGET_UNFIT, "no such bucket"),
    ],
)
async def test_what_cannot_be_written_is_said(bucket: Bucket, changes: dict[str, Any], code: Code, said: str) -> None:
    store = {**bucket.server.settings, **changes}
    path = {"path": store.pop("path")} if "path" in store else {}
    with raises(code, match=re.escape(said)) as caught:
        async with opened(bucket_spec(bucket, store=store, **path)):
            pass
    assert isinstance(caught.value, MillstreamError)
    assert store["secretKey"] not in str(caught.value)


async def test_the_page_shows_what_works(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S3_KEY", bucket.server.settings["accessKey"])
    monkeypatch.setenv("S3_SECRET", bucket.server.settings["secretKey"])
    text = PAGE.read_text().replace("s3://lake/", bucket.url()).replace("http://127.0.0.1:8333", bucket.server.endpoint)
    blocks = [block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "sink:" in block]
    assert blocks
    for block in blocks:
        sink = dict(YAML(typ="safe", pure=True).load(block)[0]["sink"])
        del sink["guarantee"]
        async with opened(FallbackSink.model_validate(sink)) as lane:
            await lane.write([sink_frame([b'{"id": 1, "total": 2.5}'], 1)], Position(1))
            await lane.flush()
            assert lane.durable == Position(1)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"path": "ftp://host/x"}, "path"),
        ({"path": "out", "store": {"region": "x"}}, "store"),
        ({"path": "out", "partitionBy": ["dt", "dt"]}, "partitionBy"),
        ({"path": "out", "partitionBy": ["shop"]}, "partitionBy"),
        ({"path": "out", "partitionBy": ["a"], "columns": [{"name": "a"}]}, "partitionBy"),
        ({"path": "out", "maxBytes": "2GiB"}, "maxBytes"),
    ],
)
def test_settings_that_do_not_go_together(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(Exception, match=field):
        FallbackSink.model_validate({"delta": settings})
