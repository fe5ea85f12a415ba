"""The iceberg sink with real catalogs: what is in tables, and that each record is there once, whatever fails."""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import Phase, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from ruamel.yaml import YAML

from millstream import codes
from millstream.errors import FencedError, RetryLaterError
from millstream.record import Position
from millstream.spec.models import FallbackSink
from tests.contract.sinks.file_target import COLUMNS, sink_owner
from tests.contract.sinks.sink_targets import iceberg_numbers, iceberg_spec, iceberg_table
from tests.contract.sinks.table_lanes import LATER, numbers, opened, written
from tests.contract.sinks.validating import validate_sink
from tests.support.children import together
from tests.support.errors import raises
from tests.support.generated_rows import COLUMNS as EVERY_TYPE
from tests.support.generated_rows import ROW, as_json
from tests.support.object_server import READER, Bucket, ObjectServer
from tests.unit.writer.sink_frames import sink_frame

PAGE = Path(__file__).parents[3] / "docs" / "connectors" / "iceberg.md"
ON_GOOGLE = {"sqlite": "c.db", "warehouse": "gs://lake/w"}
KEY = "millstream/p/out.in-out.0"
"""Of the lane, among the properties of a table."""


@pytest.fixture
def bucket(objects: ObjectServer) -> Bucket:
    return objects.bucket()


def create(directory: Path, columns: dict[str, pa.DataType]) -> Table:
    """A table that another program has made."""
    uri, warehouse = f"sqlite:///{directory / 'catalog.db'}", str(directory / "warehouse")
    catalog = SqlCatalog("default", uri=uri, warehouse=warehouse)
    catalog.create_namespace_if_not_exists("shop")
    return catalog.create_table("shop.numbers", pa.schema(columns))


async def test_columns_and_partitions_of_columns_and_of_the_event_time(tmp_path: Path) -> None:
    columns = [
        {"name": "n", "type": "int"},
        {"name": "share", "type": "float"},
        {"name": "at", "type": "timestamp"},
        {"name": "ok", "type": "bool"},
        {"name": "shop"},
    ]
    spec = iceberg_spec(tmp_path, columns=columns, partitionBy=["shop", "day(at)", "dt", "hour"], **LATER)
    record = {"n": 1, "share": 0.5, "at": "2024-05-01T10:00:00+02:00", "ok": True, "shop": "a/b c"}
    async with opened(spec) as lane:
        await lane.write([sink_frame([json.dumps(record).encode(), b'{"n": 2}', b"no json"], 7)], Position(7))
        await lane.flush()
        assert lane.durable == Position(7)
    table = iceberg_table(tmp_path)
    assert [field.name for field in table.spec().fields] == ["shop", "at_day", "dt", "hour"]
    rows = sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["n"])
    assert rows[0].pop("at").isoformat() == "2024-05-01T08:00:00+00:00"
    assert rows[0] == {"n": 1, "share": 0.5, "ok": True, "shop": "a/b c", "dt": "1970-01-01", "hour": "00"}
    assert rows[1] == {
        "n": 2, "share": None, "at": None, "ok": None, "shop": None, "dt": "1970-01-01", "hour": "00",
    }  # fmt: skip
    # Without `partitionBy`, those of the table are kept.
    kept = [*columns, {"name": "dt"}, {"name": "hour"}]
    async with opened(iceberg_spec(tmp_path, columns=kept, **LATER), sink_owner(2)) as lane:
        await lane.write([sink_frame([b'{"n": 3}'], 8)], Position(8))
        await lane.flush()
    assert table.refresh().scan().to_arrow().num_rows == 3


@examples(max_examples=2, derandomize=True, phases=[Phase.explicit, Phase.generate])
@given(st.lists(ROW, min_size=4, max_size=12))
def test_values_of_every_type_are_those_of_the_records(rows: list[dict[str, Any]]) -> None:
    records = [as_json({**row, "n": number}, numbers=True).encode() for number, row in enumerate(rows)]

    async def write(directory: Path, **more: object) -> None:
        columns = [*({"name": one.name, "type": one.type} for one in EVERY_TYPE), {"name": "n", "type": "int"}]
        async with opened(iceberg_spec(directory, columns=columns, **more, **LATER)) as lane:
            assert not (await lane.write([sink_frame(records, 1)], Position(1))).failures
            await lane.flush()
            assert lane.durable == Position(1)

    for more in ({}, {"partitionBy": ["s", "b", "day(t)"]}):
        with tempfile.TemporaryDirectory() as directory:
            asyncio.run(write(Path(directory), **more))
            found = iceberg_table(Path(directory)).scan().to_arrow().sort_by("n").drop_columns("n").to_pylist()
        assert found == rows, more


@pytest.mark.sweep
async def test_without_columns_the_table_has_the_bytes_of_values(tmp_path: Path) -> None:
    async with opened(iceberg_spec(tmp_path, columns=[], **LATER)) as lane:
        await lane.write([sink_frame([b"\xff", b""], 1)], Position(1))
        await lane.flush()
    assert iceberg_table(tmp_path).scan().to_arrow().to_pydict() == {"value": [b"\xff", b""]}


@pytest.mark.guarantee("I1")
async def test_of_two_owners_the_older_has_no_effect(tmp_path: Path) -> None:
    spec = iceberg_spec(tmp_path, **LATER)
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
    assert iceberg_numbers(tmp_path) == [*range(10, 40)]


def intrude(monkeypatch: pytest.MonkeyPatch, call: Any, *, times: int) -> list[bool]:
    """Have something happen right before the catalog gets a commit, with the answer lost where it raises."""
    commit, made = SqlCatalog.commit_table, list[bool]()

    def committing(self: SqlCatalog, *arguments: Any) -> Any:
        if len(made) < times:
            made.append(True)
            return call(lambda: commit(self, *arguments))
        return commit(self, *arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", committing)
    return made


@pytest.mark.guarantee("I1")
async def test_a_commit_that_lost_is_repeated_only_by_the_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = iceberg_spec(tmp_path, **LATER)
    async with opened(spec, sink_owner(1)) as lane:
        await written(lane, 1)
        await lane.write([numbers(2)], Position(2))

        def another(commit: Any) -> Any:
            with monkeypatch.context() as undone:
                undone.undo()
            iceberg_table(tmp_path).append(pa.table({"n": [1000], "text": ["text 1000"]}))
            return commit()

        made = intrude(monkeypatch, another, times=1)
        await lane.flush()
        assert made
        monkeypatch.undo()
        # What was written for the refused commit is gone, and the table is whole.
        files = {path.name for path in tmp_path.rglob("*.avro")}
        table = iceberg_table(tmp_path)
        named = {snapshot.manifest_list for snapshot in table.snapshots()}
        named |= {one.manifest_path for snapshot in table.snapshots() for one in snapshot.manifests(table.io)}
        assert files == {Path(name).name for name in named}
        assert len([*tmp_path.rglob("*.parquet")]) == 3

        await lane.write([numbers(3)], Position(3))

        def newer(commit: Any) -> Any:
            async def take_over() -> None:
                async with opened(spec, sink_owner(2)):
                    pass

            asyncio.run(take_over())
            return commit()

        intrude(monkeypatch, newer, times=1)
        with pytest.raises(FencedError):
            await lane.flush()
    assert iceberg_numbers(tmp_path) == [*range(10, 30), 1000]


@pytest.mark.sweep
@pytest.mark.guarantee("I1")
async def test_lanes_commit_to_one_table_at_the_same_time(tmp_path: Path) -> None:
    """Others who append do not disturb them, nor does joining manifests."""
    spec = iceberg_spec(tmp_path, commitEvery="1h", maxRecords=10)
    async with opened(spec, sink_owner(1, partition=9)):
        pass
    with iceberg_table(tmp_path).transaction() as changing:
        # The other writer does not give up, however often the lanes are faster.
        patience = {
            "commit.retry.num-retries": "1000",
            "commit.retry.min-wait-ms": "1",
            "commit.retry.max-wait-ms": "50",
        }
        changing.set_properties({"commit.manifest.min-count-to-merge": "5", **patience})

    async def lane_of(partition: int) -> None:
        async with opened(spec, sink_owner(1, partition=partition)) as lane:
            await written(lane, *range(partition * 20 + 1, partition * 20 + 6))

    def another() -> None:
        for n in range(1000, 1005):
            iceberg_table(tmp_path).append(pa.table({"n": [n], "text": [f"text {n}"]}))

    await together(*map(lane_of, range(4)), asyncio.to_thread(another))
    expected = [n for lane in range(4) for n in range(lane * 200 + 10, lane * 200 + 60)]
    assert iceberg_numbers(tmp_path) == [*expected, *range(1000, 1005)]
    async with opened(spec, sink_owner(2, partition=3)) as lane:
        assert lane.durable == Position.within(65, 10)


@pytest.mark.sweep
async def test_lanes_that_open_at_once_make_one_table(tmp_path: Path) -> None:
    spec = iceberg_spec(tmp_path, **LATER)

    async def lane_of(partition: int) -> None:
        async with opened(spec, sink_owner(1, partition=partition)) as lane:
            await written(lane, 10 * partition + 1)

    await together(*map(lane_of, range(4)))
    assert len(iceberg_numbers(tmp_path)) == 40


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize("landed", [True, False])
async def test_an_answer_that_is_lost_is_settled_by_looking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    def lost(commit: Any) -> Any:
        if landed:
            commit()
        raise OSError("the answer was lost")

    async with opened(iceberg_spec(tmp_path, **LATER)) as lane:
        for sequence in range(1, 4):
            made = intrude(monkeypatch, lost, times=1)
            await written(lane, sequence)
            assert made
            monkeypatch.undo()
    assert iceberg_numbers(tmp_path) == [*range(10, 40)]


@pytest.mark.guarantee("I1", "I15")
async def test_a_target_that_is_ahead_or_of_another_run_stops_the_lane(tmp_path: Path) -> None:
    spec = iceberg_spec(tmp_path, **LATER)
    async with opened(spec) as lane:
        await lane.write([numbers(1, name="a"), numbers(2, name="b")], Position(2))
        await lane.flush()

    async def another(sequence: int, name: str) -> str | None:
        assert (sequence, name) == (2, "b")
        return "nothing"

    with raises(codes.SINK_AHEAD, match="now holds nothing"):
        async with opened(spec, sink_owner(2, held_instead=another)):
            pass
    with raises(codes.SINK_AHEAD, match=rf"another run.*remove the table's property {KEY}"):
        async with opened(spec, sink_owner(2, ledger_id="second")):
            pass
    with iceberg_table(tmp_path).transaction() as changing:
        changing.set_properties({KEY: "7"})
    with raises(codes.TARGET_POSITION_LOST, match="is not a position"):
        async with opened(spec, sink_owner(2)):
            pass
    assert iceberg_numbers(tmp_path) == [*range(10, 30)]


@pytest.mark.sweep
@pytest.mark.guarantee("I1")
async def test_the_position_outlives_the_snapshots(tmp_path: Path) -> None:
    spec = iceberg_spec(tmp_path, **LATER)
    async with opened(spec) as lane:
        await written(lane, 1, 2)
    table = iceberg_table(tmp_path)
    table.append(pa.table({"n": [1000], "text": ["text 1000"]}))
    newest = table.current_snapshot()
    assert newest is not None
    old = [snapshot.snapshot_id for snapshot in table.snapshots() if snapshot.snapshot_id != newest.snapshot_id]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    async with opened(spec, sink_owner(2)) as lane:
        assert lane.durable == Position(2)
        await written(lane, 1, 2, 3)
    assert iceberg_numbers(tmp_path) == [*range(10, 40), 1000]


@pytest.mark.sweep
@pytest.mark.guarantee("I1")
async def test_a_table_that_is_replaced_under_a_lane_stops_it(tmp_path: Path) -> None:
    spec = iceberg_spec(tmp_path, **LATER)
    async with opened(spec) as lane:
        await written(lane, 1)
        await lane.write([numbers(2)], Position(2))
        catalog = iceberg_table(tmp_path).catalog
        catalog.drop_table("shop.numbers")
        with raises(codes.TARGET_POSITION_LOST, match="removed or replaced"):
            await lane.flush()
        create(tmp_path, {"n": pa.int64(), "text": pa.string()})
        with raises(codes.TARGET_POSITION_LOST, match="removed or replaced"):
            await lane.flush()
    assert iceberg_numbers(tmp_path) == []


@pytest.mark.sweep
async def test_a_table_gets_the_columns_that_it_lacks_only_if_it_may(tmp_path: Path) -> None:
    create(tmp_path, {"n": pa.int64(), "text": pa.string(), "old": pa.string()}).append(
        pa.table({"n": [1], "text": ["text 1"], "old": ["x"]})
    )
    more = {"columns": [{"name": "n", "type": "int"}, {"name": "text"}, {"name": "new", "type": "bool"}], **LATER}
    with raises(codes.TARGET_UNFIT, match=r"no column `new`.*schemaMode: merge"):
        async with opened(iceberg_spec(tmp_path, **more)):
            pass
    frame = sink_frame([b'{"n": 2, "text": "text 2", "new": true}'], 1)
    spec = iceberg_spec(tmp_path, schemaMode="merge", **more)
    async with opened(spec) as lane, opened(spec, sink_owner(1, partition=1)) as other:
        for one in (lane, other):
            await one.write([frame], Position(1))
        # A column comes between what was collected and its commit.
        with iceberg_table(tmp_path).update_schema() as update:
            update.union_by_name(pa.schema([("later", pa.string())]))
        await together(*(written(one, 2) for one in (lane, other)))
    rows = iceberg_table(tmp_path).scan().to_arrow().to_pylist()
    assert sorted((row["n"], row["old"], row["new"]) for row in rows if row["n"] < 10) == [
        (1, "x", None), (2, None, True), (2, None, True),
    ]  # fmt: skip
    assert len(rows) == 23


@pytest.mark.parametrize(
    ("columns", "settings", "said"),
    [
        ({"n": pa.string(), "text": pa.string()}, {}, "column `n` of the table has the type string"),
        ({"n": pa.int64(), "text": pa.string()}, {"partitionBy": ["dt"]}, "partitioned by nothing"),
        ({"n": pa.int64()}, {"schemaMode": "strict"}, "the table has no column `text`"),
    ],
)
async def test_a_table_that_does_not_fit_is_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    columns: dict[str, pa.DataType],
    settings: dict[str, Any],
    said: str,
) -> None:
    create(tmp_path, columns)
    spec = iceberg_spec(tmp_path, **{"schemaMode": "merge", **settings})
    with raises(codes.TARGET_UNFIT, match=re.escape(said)):
        async with opened(spec):
            pass
    written_down = spec.as_written(given_only=True)["iceberg"]
    assert await asyncio.to_thread(validate_sink, "iceberg", written_down, tmp_path) != 0
    assert said in " ".join("".join(capsys.readouterr()).split())


@pytest.mark.sweep
async def test_a_place_where_no_table_can_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "warehouse").write_text("")
    with raises(codes.TARGET_UNFIT):
        async with opened(iceberg_spec(tmp_path)):
            pass
    with raises(codes.TARGET_UNFIT, match="unable to open database file"):
        async with opened(iceberg_spec(tmp_path / "not there")):
            pass
    (tmp_path / "catalog.db").unlink()
    (tmp_path / "catalog.db").write_text("not a database, but a text of some length")
    with raises(codes.TARGET_UNFIT, match="not a database"):
        async with opened(iceberg_spec(tmp_path)):
            pass


@pytest.mark.sweep
async def test_commits_come_by_time_and_by_size(tmp_path: Path) -> None:
    async with opened(iceberg_spec(tmp_path, commitEvery="1h", maxRecords=20)) as lane:
        for sequence in range(1, 6):
            await lane.write([numbers(sequence)], Position(sequence))
        # The second commit may be in progress.
        while lane.durable != Position(4):
            await lane.tick()
    before = len(iceberg_table(tmp_path).metadata.snapshots)
    async with opened(iceberg_spec(tmp_path, commitEvery="1ms"), sink_owner(2)) as lane:
        await lane.write([numbers(6)], Position(6))
        while lane.durable != Position(6):
            await lane.tick()
            await asyncio.sleep(0)
    assert len(iceberg_table(tmp_path).metadata.snapshots) == before + 2


# In an object store

AWS = {"region": "eu-central-1", "service": "glue"}


def rest_settings(objects: ObjectServer, bucket: Bucket) -> dict[str, Any]:
    return {"rest": objects.iceberg, "warehouse": bucket.url().rstrip("/"), "credential": objects.credential}


def rest_spec(objects: ObjectServer, bucket: Bucket, /, **more: Any) -> FallbackSink:
    settings = {"catalog": rest_settings(objects, bucket), "table": "shop.numbers", "columns": COLUMNS}
    return FallbackSink.model_validate({"iceberg": {**settings, "store": objects.settings, **LATER, **more}})


def files_of(objects: ObjectServer) -> dict[str, str]:
    """As pyiceberg names the settings of the store."""
    named = {"endpoint": "s3.endpoint", "region": "s3.region", "accessKey": "s3.access-key-id"}
    said = {name: objects.settings[ours] for ours, name in named.items()}
    return {**said, "s3.secret-access-key": objects.settings["secretKey"]}


def rest_catalog(objects: ObjectServer, bucket: Bucket) -> Catalog:
    credential = objects.credential
    warehouse = bucket.url().rstrip("/")
    more = {"oauth2-server-uri": f"{objects.iceberg}/v1/oauth/tokens", **files_of(objects)}
    return RestCatalog("default", uri=objects.iceberg, warehouse=warehouse, credential=credential, **more)


def rows_in(table: Table) -> list[int]:
    return sorted(row["n"] for row in table.scan().to_arrow().to_pylist())


@pytest.mark.guarantee("I1")
async def test_in_a_bucket_by_a_rest_catalog_of_two_owners_the_older_has_no_effect(objects: ObjectServer) -> None:
    tables = objects.table_bucket()
    spec = rest_spec(objects, tables)
    async with opened(spec, sink_owner(1)) as older:
        await written(older, 1)
        await older.write([numbers(2)], Position(2))
        async with opened(spec, sink_owner(2)) as newer, opened(spec, sink_owner(1, partition=1)) as other:
            with pytest.raises(FencedError):
                await older.flush()
            await together(written(newer, 2, 3), written(other, 7, 8))
    assert rows_in(rest_catalog(objects, tables).load_table("shop.numbers")) == [*range(10, 40), *range(70, 90)]


def sqlite_on_s3(directory: Path, bucket: Bucket, /, **more: Any) -> FallbackSink:
    catalog = {"sqlite": str(directory / "catalog.db"), "warehouse": bucket.url("lake")}
    store = {"store": bucket.server.settings, **LATER, **more}
    return iceberg_spec(directory, **{"catalog": catalog, **store})


@pytest.mark.sweep
@pytest.mark.guarantee("I1")
async def test_a_server_that_is_away_is_waited_for(tmp_path: Path, bucket: Bucket, objects: ObjectServer) -> None:
    # Longer than anything takes on a busy machine, except for what is paused.
    spec = sqlite_on_s3(tmp_path, bucket, store={**objects.settings, "timeout": "6s"})
    async with opened(spec) as lane:
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
    assert iceberg_numbers(tmp_path, **files_of(objects)) == [*range(10, 20)]


@pytest.mark.sweep
@pytest.mark.parametrize("store", [{"accessKey": "nobody"}, {"secretKey": "wr0ng"}, {"accessKey": READER}])
async def test_what_cannot_be_written_is_said(tmp_path: Path, bucket: Bucket, store: dict[str, Any]) -> None:
    spec = sqlite_on_s3(tmp_path, bucket, store={**bucket.server.settings, **store})
    with raises(codes.TARGET_REFUSES, match="ACCESS_DENIED") as caught:
        async with opened(spec):
            pass
    assert "wr0ng" not in str(caught.value)


async def test_a_catalog_that_refuses_or_is_not_there_is_said(objects: ObjectServer) -> None:
    tables = objects.table_bucket()
    wrong = {**rest_settings(objects, tables), "credential": "writer:wr0ng"}
    with raises(codes.TARGET_REFUSES) as caught:
        async with opened(rest_spec(objects, tables, catalog=wrong)):
            pass
    assert "wr0ng" not in str(caught.value)
    away = {**rest_settings(objects, tables), "rest": "http://127.0.0.1:1"}
    with raises(codes.TARGET_AWAY, match="Connection refused"):
        async with opened(rest_spec(objects, tables, catalog=away)):
            pass


@pytest.mark.sweep
async def test_requests_to_a_catalog_are_signed_as_services_of_aws_demand_it(
    objects: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server checks signatures for whatever region and service they are."""
    tables = objects.table_bucket()
    key_id, _, secret = objects.credential.partition(":")
    monkeypatch.setenv("CATALOG_SECRET", secret)
    named = {name: value for name, value in rest_settings(objects, tables).items() if name != "credential"}
    signing = {"region": "eu-central-1", "service": "s3tables"}
    given = {**named, "aws": {**signing, "accessKey": key_id, "secretKey": {"env": "CATALOG_SECRET"}}}
    async with opened(rest_spec(objects, tables, catalog=given)) as lane:
        await written(lane, 1)
    # And with credentials of the environment.
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    async with opened(rest_spec(objects, tables, catalog={**named, "aws": signing}), sink_owner(2)) as lane:
        await written(lane, 2)
    assert rows_in(rest_catalog(objects, tables).load_table("shop.numbers")) == [*range(10, 30)]
    monkeypatch.setenv("CATALOG_SECRET", "wr0ng")
    with raises(codes.TARGET_REFUSES, match="signature") as caught:
        async with opened(rest_spec(objects, tables, catalog=given)):
            pass
    assert "wr0ng" not in str(caught.value)


@pytest.mark.sweep
async def test_a_client_asks_for_the_scope_of_its_tokens(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    async def refuse(request: web.Request) -> web.Response:
        asked.append(dict(await request.post()))
        return web.json_response({"error": "invalid_scope"}, status=400)

    issuer = TestServer(web.Application())
    issuer.app.router.add_post("/token", refuse)
    async with issuer:
        catalog = {
            "rest": "http://127.0.0.1:1",
            "credential": "writer:wr0ng",
            "scope": "PRINCIPAL_ROLE:ALL",
            "oauth2ServerUri": str(issuer.make_url("/token")),
        }
        with raises(codes.TARGET_REFUSES, match="invalid_scope"):
            async with opened(iceberg_spec(tmp_path, catalog=catalog)):
                pass
    assert asked[0]["scope"] == "PRINCIPAL_ROLE:ALL"


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"catalog": {}}, "catalog"),
        ({"catalog": {"sqlite": "c.db", "rest": "http://host"}}, "catalog"),
        ({"catalog": {"sqlite": "c.db"}}, "warehouse"),
        ({"catalog": {"sqlite": "c.db", "warehouse": "w", "token": "x"}}, "token"),
        ({"catalog": {"sqlite": "c.db", "warehouse": "az://box/w"}}, "warehouse"),
        ({"catalog": {"sqlite": "c.db", "warehouse": "w", "scope": "x"}}, "scope"),
        ({"catalog": {"rest": "http://host", "scope": "x"}}, "`scope` has no effect without `credential`"),
        ({"catalog": {"rest": "http://host", "token": "t", "oauth2ServerUri": "http://a"}}, "`oauth2ServerUri` has no"),
        ({"catalog": {"rest": "host:8181"}}, "rest"),
        ({"catalog": {"rest": "http://host", "token": "t", "aws": AWS}}, "`aws` signs requests, which then have no"),
        ({"catalog": {"sqlite": "c.db", "aws": AWS}}, "`aws` has no effect on a SQLite file"),
        ({"table": "orders"}, "table"),
        ({"store": {"region": "x"}}, "store"),
        ({"catalog": {"rest": "http://host"}, "store": {"account": "x"}}, "`account` has no effect"),
        ({"catalog": {"rest": "http://host"}, "store": {"accountKey": "x"}}, "`accountKey` has no effect"),
        ({"catalog": {"rest": "http://host"}, "store": {"sasToken": "x"}}, "`sasToken` has no effect"),
        ({"catalog": ON_GOOGLE, "store": {"serviceAccountKey": "x"}}, "`serviceAccountKey` has no effect"),
        ({"catalog": ON_GOOGLE, "store": {"anonymous": True}}, "`anonymous` has no effect"),
        ({"partitionBy": ["dt", "dt"]}, "partitionBy"),
        ({"partitionBy": ["day(at)"]}, "partitionBy"),
        ({"partitionBy": ["bucket(4, n)"]}, "partitionBy"),
    ],
)
def test_settings_that_do_not_go_together(settings: dict[str, Any], field: str) -> None:
    whole = {"catalog": {"sqlite": "c.db", "warehouse": "w"}, "table": "a.b", "columns": [{"name": "at"}]}
    FallbackSink.model_validate({"iceberg": whole})
    with pytest.raises(Exception, match=field):
        FallbackSink.model_validate({"iceberg": {**whole, **settings}})


@pytest.mark.sweep
async def test_the_page_shows_what_works(
    objects: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = objects.table_bucket()
    for name, value in (("KEY", KEY), ("S3_KEY", objects.settings["accessKey"]), ("CLIENT", objects.credential)):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("S3_SECRET", objects.settings["secretKey"])
    text = PAGE.read_text().replace("catalog.db", str(tmp_path / "c.db"))
    text = text.replace("http://127.0.0.1:8333", objects.endpoint).replace("http://127.0.0.1:8181", objects.iceberg)
    blocks = [block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "sink:" in block]
    assert blocks
    for whole in blocks:
        # A bucket of the catalog server holds nothing else.
        lake = tables if "rest:" in whole else objects.bucket()
        block = whole.replace("s3://lake", lake.url().rstrip("/"))
        sink = dict(YAML(typ="safe", pure=True).load(block)[0]["sink"])
        del sink["guarantee"]
        async with opened(FallbackSink.model_validate(sink)) as lane:
            await lane.write([sink_frame([b'{"id": 1, "total": 2.5}'], 1)], Position(1))
            await lane.flush()
            assert lane.durable == Position(1)
