"""The file sink in a bucket of a real server: what goes where, and that each record is there once, whatever fails."""

from __future__ import annotations

import asyncio
import base64
import re
import threading
import traceback
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote_plus

import obstore
import pytest
from ruamel.yaml import YAML

from millstream import codes
from millstream.codes.code import Code
from millstream.errors import FencedError, RetryLaterError
from millstream.record import Position
from millstream.spec.models import FallbackSink
from millstream_connectors.opening_sinks import open_sink
from millstream_connectors.shared.objects.settings import ObjectStore, parse_url
from millstream_connectors.shared.objects.stores import make_store
from millstream_writer.connector import SinkOwner
from millstream_writer.sink import FinishingLane, SinkFrame, SinkLane
from tests.contract.sinks.file_target import sink_owner, value_of
from tests.contract.sinks.sink_targets import finished_objects, object_numbers, object_spec
from tests.contract.sinks.validating import validate_sink
from tests.support.azure_server import ACCOUNT, KEY, AzureServer
from tests.support.errors import raises
from tests.support.object_server import READER, Bucket, ObjectServer
from tests.support.sizes import sized
from tests.unit.writer.sink_frames import sink_frame

PAGE = Path(__file__).parents[3] / "docs" / "connectors" / "objects.md"
LATER = {"rolling": {"maxAge": "1h"}}


@pytest.fixture
def bucket(any_bucket: Bucket) -> Bucket:
    return any_bucket


@pytest.fixture
def s3(objects: ObjectServer) -> Bucket:
    return objects.bucket()


def numbers(sequence: int, *, name: str = "") -> SinkFrame:
    """Ten of them, from `sequence` * 10 on."""
    return sink_frame([value_of(n) for n in range(sequence * 10, sequence * 10 + 10)], sequence, name=name)


@asynccontextmanager
async def opened(spec: FallbackSink, owner: SinkOwner | None = None) -> AsyncIterator[SinkLane]:
    async with asyncio.timeout(60), open_sink(spec, owner or sink_owner(1)) as lane:
        yield lane


async def written(lane: SinkLane, *sequences: int) -> None:
    for sequence in sequences:
        await lane.write([numbers(sequence)], Position(sequence))
    await lane.flush()


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet", "avro"])
async def test_formats_and_partitions_by_event_time_in_utc(bucket: Bucket, form: str) -> None:
    spec = object_spec(bucket, form, partitionBy=["dt", "hour"], **LATER)
    async with opened(spec) as lane:
        for sequence, first_s in ((1, 0), (5, 24 * 3600 - 5)):
            frame = sink_frame([value_of(n) for n in range(sequence * 10, sequence * 10 + 10)], first_s)
            await lane.write([replace(frame, sequence=sequence)], Position(sequence))
        await lane.flush()
        assert lane.durable == Position(5)
    found = {key.rpartition("/")[0]: key for key in bucket.keys("out") if "_millstream" not in key}
    assert list(found) == ["out/dt=1970-01-01/hour=00", "out/dt=1970-01-01/hour=23", "out/dt=1970-01-02/hour=00"]
    assert len({key.rpartition("/")[2] for key in found.values()}) == 1
    assert object_numbers(bucket) == [*range(10, 20), *range(50, 60)]


@pytest.mark.guarantee("I1")
async def test_of_two_owners_the_older_has_no_effect(bucket: Bucket) -> None:
    spec = object_spec(bucket, "jsonl", **LATER)
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
    assert object_numbers(bucket) == [*range(10, 40)]


@pytest.mark.guarantee("I1")
async def test_a_file_that_was_claimed_is_made_as_it_was_claimed_whoever_puts_it(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older owner stops between its claim and its objects, and puts them when the newer one has gone on."""
    spec = object_spec(bucket, "jsonl", partitionBy=["hour"], rolling={"maxAge": "1h", "maxRecords": 25})
    put = obstore.put
    held: list[Any] = []

    def holding(store: Any, key: str, *arguments: Any, **options: Any) -> Any:
        if "_millstream" not in key:
            held.append((store, key, arguments, options))
            raise OSError("the answer was lost")
        return put(store, key, *arguments, **options)

    monkeypatch.setattr(obstore, "put", holding)
    async with opened(spec, sink_owner(1)) as older:
        with suppress(RetryLaterError):
            await written(older, 1, 2, 3)
        assert older.durable == Position(0)
    monkeypatch.undo()
    # Other sizes than then: the file has what it had anyway.
    spec = object_spec(bucket, "jsonl", partitionBy=["hour"], rolling={"maxAge": "1h", "maxRecords": 7})
    async with opened(spec, sink_owner(2)) as newer:
        assert newer.durable == Position(0)
        await newer.write([numbers(1)], Position(1))
        await newer.flush()
        assert finished_objects(bucket) == []
        await written(newer, 2, 3)
        assert newer.durable == Position(3)
    for store, key, arguments, options in held:
        with suppress(obstore.exceptions.AlreadyExistsError):
            put(store, key, *arguments, **options)
    assert object_numbers(bucket) == [*range(10, 40)]


@pytest.mark.guarantee("I1")
async def test_an_answer_that_is_lost_is_settled_by_looking(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    put = obstore.put
    lost: set[str] = set()

    def losing(store: Any, key: str, *arguments: Any, **options: Any) -> Any:
        answer = put(store, key, *arguments, **options)
        if key not in lost:
            lost.add(key)
            raise OSError("the answer was lost")
        return answer

    async with opened(object_spec(bucket, "jsonl", **LATER)) as lane:
        monkeypatch.setattr(obstore, "put", losing)
        for sequence in range(1, 5):
            await lane.write([numbers(sequence)], Position(sequence))
            while lane.durable != Position(sequence):
                with suppress(RetryLaterError):
                    await lane.flush()
    assert len(lost) == 8
    assert object_numbers(bucket) == [*range(10, 50)]


@pytest.mark.guarantee("I1", "I15")
async def test_a_target_that_is_ahead_or_of_another_run_stops_the_lane(bucket: Bucket) -> None:
    spec = object_spec(bucket, "jsonl", **LATER)
    async with opened(spec) as lane:
        await lane.write([numbers(1, name="a"), numbers(2, name="b")], Position(2))
        await lane.flush()

    async def another(sequence: int, name: str) -> str | None:
        assert (sequence, name) == (2, "b")
        return "nothing"

    with raises(codes.SINK_AHEAD, match="now holds nothing"):
        async with opened(spec, sink_owner(2, held_instead=another)):
            pass
    with raises(codes.SINK_AHEAD, match=r"another run.*remove the objects below"):
        async with opened(spec, sink_owner(2, ledger_id="second")):
            pass
    for key in bucket.keys("out/_millstream"):
        bucket.remove(key)
    with raises(codes.TARGET_POSITION_LOST, match="are missing"):
        async with opened(spec, sink_owner(2, start=Position(1))):
            pass
    # The remedy of the message, for another run.
    async with opened(spec, sink_owner(2, ledger_id="second")) as lane:
        await written(lane, 3)
    assert sorted(object_numbers(bucket)) == [*range(10, 40)]


@pytest.mark.guarantee("I1")
async def test_an_old_owner_that_stood_still_over_many_files_has_no_effect(bucket: Bucket) -> None:
    """So many that the number of its next claim was removed."""
    spec = object_spec(bucket, "jsonl", rolling={"maxAge": "1h", "maxRecords": 1})
    async with opened(spec, sink_owner(1)) as older:
        await written(older, 1)
        async with opened(spec, sink_owner(2)) as newer:
            await written(newer, 2, 3, 4, 5)
        assert len(bucket.keys("out/_millstream")) < 45
        with pytest.raises(FencedError):
            await written(older, 2)
    assert object_numbers(bucket) == [*range(10, 60)]


@pytest.mark.parametrize("files", [0, 1])
async def test_a_lane_that_writes_little_in_each_run_leaves_few_claims(bucket: Bucket, files: int) -> None:
    spec = object_spec(bucket, "jsonl", **LATER)
    runs = sized(45, 60)
    for epoch in range(1, runs + 1):
        async with opened(spec, sink_owner(epoch)) as lane:
            await written(lane, *range(epoch, epoch + files))
        # Its opening and its file have a claim each, and the claims are removed after that of the file.
        assert len(bucket.keys("out/_millstream")) <= 41
    assert object_numbers(bucket) == [*range(10, 10 + 10 * runs * files)]


@pytest.mark.guarantee("I1")
async def test_a_listing_without_the_new_claim_is_not_believed(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing that is behind could also lack the claim of a newer owner."""
    list_all = obstore.list

    def behind(store: Any, prefix: str) -> Any:
        return [[meta for page in list_all(store, prefix) for meta in page][:-1]]

    async with opened(object_spec(bucket, "jsonl", **LATER)) as lane:
        await lane.write([numbers(1)], Position(1))
        monkeypatch.setattr(obstore, "list", behind)
        for _ in range(2):
            with raises(codes.TARGET_AWAY, match="does not list the claim 1 that it has just stored"):
                await lane.flush()
        assert lane.durable == Position(0)
        assert finished_objects(bucket) == []
        monkeypatch.undo()
        await lane.flush()
        assert lane.durable == Position(1)
    assert object_numbers(bucket) == [*range(10, 20)]


async def test_other_settings_wait_for_a_file_that_was_claimed(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    put = obstore.put

    def refusing(store: Any, key: str, *arguments: Any, **options: Any) -> Any:
        if "_millstream" not in key:
            raise OSError("away")
        return put(store, key, *arguments, **options)

    async with opened(object_spec(bucket, "jsonl", **LATER)) as lane:
        monkeypatch.setattr(obstore, "put", refusing)
        with suppress(RetryLaterError):
            await written(lane, 1)
    monkeypatch.undo()
    with raises(codes.CONNECTOR_SETTINGS, match="partitionBy"):
        async with opened(object_spec(bucket, "jsonl", partitionBy=["dt"], **LATER), sink_owner(2)):
            pass


@pytest.mark.guarantee("I1")
async def test_a_file_is_put_while_the_next_one_grows(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record counts as durable when its object is there, and not before. The first put fails."""
    put, begun, may_go_on, failures = obstore.put, threading.Event(), threading.Event(), [OSError("away")]

    def held(store: Any, key: str, *arguments: Any, **options: Any) -> Any:
        if "_millstream" not in key:
            begun.set()
            assert may_go_on.wait(30)
            if failures:
                raise failures.pop()
        return put(store, key, *arguments, **options)

    async with opened(object_spec(bucket, "jsonl", rolling={"maxAge": "1h", "maxRecords": 10})) as lane:
        monkeypatch.setattr(obstore, "put", held)
        await lane.write([numbers(1)], Position(1))
        await asyncio.to_thread(begun.wait, 30)
        five = sink_frame([value_of(n) for n in range(20, 25)], 2)
        await lane.write([five], Position(2))
        await lane.tick()
        assert isinstance(lane, FinishingLane)
        assert (lane.durable, lane.in_progress) == (Position(0), Position(1))
        # The next file is full as well, and only one of them may wait.
        writing = asyncio.create_task(lane.write([numbers(3)], Position(3)))
        done, _ = await asyncio.wait([writing], timeout=0.05)
        assert not done
        may_go_on.set()
        await writing
        assert not failures
        assert lane.durable == Position(0)
        await lane.flush()
        assert lane.durable == lane.in_progress == Position(3)
    assert object_numbers(bucket) == [*range(10, 25), *range(30, 40)]


async def test_a_file_is_put_without_a_copy(bucket: Bucket) -> None:
    size = 16 << 20
    frames = [sink_frame([value_of(n), b'"%s"' % (b"x" * (size // 8))], n) for n in range(1, 9)]
    async with opened(object_spec(bucket, "jsonl", **LATER)) as lane:
        for frame in frames:
            await lane.write([frame], Position(frame.sequence))
        tracemalloc.start()
        try:
            await lane.flush()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < size // 2
    (name,) = finished_objects(bucket)
    assert bucket.get(name) == b"".join(value + b"\n" for frame in frames for value in frame.frame.values())


async def test_a_server_that_is_away_is_waited_for(bucket: Bucket) -> None:
    # Longer than anything takes on a busy machine, except for what is paused.
    store = {**bucket.server.settings, "timeout": "6s"}
    async with opened(object_spec(bucket, "jsonl", store=store, **LATER)) as lane:
        await lane.write([numbers(1)], Position(1))
        bucket.server.pause()
        try:
            with raises(codes.TARGET_AWAY):
                await lane.flush()
        finally:
            bucket.server.go_on()
        while lane.durable != Position(1):
            with suppress(RetryLaterError):
                await lane.flush()
    assert object_numbers(bucket) == [*range(10, 20)]


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"accessKey": "nobody"}, codes.TARGET_REFUSES, "InvalidAccessKeyId"),
        ({"secretKey": "wrong"}, codes.TARGET_REFUSES, "SignatureDoesNotMatch"),
        ({"path": "s3://not-there/out"}, codes.TARGET_UNFIT, "no such bucket"),
    ],
)
async def test_what_cannot_be_written_is_said(
    s3: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], code: Code, said: str
) -> None:
    store = {**s3.server.settings, **changes}
    path = {"path": store.pop("path")} if "path" in store else {}
    spec = object_spec(s3, "jsonl", store=store, **path)
    with raises(code, match=re.escape(said)):
        async with opened(spec):
            pass
    settings = {"path": s3.url("out"), "store": store, **path}
    assert await asyncio.to_thread(validate_sink, "file", settings, tmp_path) != 0
    printed = "".join(capsys.readouterr())
    assert code.id in printed
    assert s3.server.settings["secretKey"] not in printed


@pytest.mark.parametrize(
    ("changes", "container", "code", "said"),
    [
        ({"accountKey": base64.b64encode(b"wrong").decode()}, None, codes.TARGET_REFUSES, "AuthorizationFailure"),
        ({}, "not-there", codes.TARGET_UNFIT, "no such bucket"),
    ],
)
async def test_what_azure_refuses_is_said(
    azure: AzureServer, changes: dict[str, Any], container: str | None, code: Code, said: str
) -> None:
    place = azure.bucket()
    path = place.url("out") if container is None else f"az://{container}/out"
    with raises(code, match=re.escape(said)):
        async with opened(object_spec(place, "jsonl", path=path, store={**azure.settings, **changes})):
            pass


def test_a_key_for_azure_that_is_none_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    settings = ObjectStore.model_validate({"account": ACCOUNT, "accountKey": "n0t base64!"})
    with raises(codes.CONNECTOR_SETTINGS) as refused:
        make_store(parse_url("az://container/out"), settings, tmp_path, "test")
    assert "n0t" not in "".join(traceback.format_exception(refused.value))


async def test_a_key_for_s3_is_not_mixed_with_a_token_of_the_environment(
    objects: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of another user")
    async with opened(object_spec(objects.bucket(), "jsonl")) as lane:
        await lane.write([numbers(1)], Position(1))
        await lane.flush()
        assert lane.durable == Position(1)


async def test_azure_is_written_with_a_signature_which_is_never_shown(
    azure: AzureServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It comes before the key of the environment, which may write.
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    place = azure.bucket()
    token = tmp_path / "token"
    named = {"endpoint": azure.endpoint, "account": ACCOUNT, "sasToken": {"file": str(token)}, "timeout": "500ms"}
    token.write_text(azure.signature("rwdlc"))
    async with opened(object_spec(place, "jsonl", store=named)) as lane:
        await lane.write([numbers(1)], Position(1))
        await lane.flush()
        assert lane.durable == Position(1)
    signature = parse_qs(token.read_text())["sig"][0]
    away = {**named, "endpoint": f"http://127.0.0.1:1/{ACCOUNT}"}
    token.write_text(f"?{azure.signature('r')}")
    refused = parse_qs(token.read_text())["sig"][0]
    for store, code in ((named, codes.TARGET_REFUSES), (away, codes.TARGET_AWAY)):
        with raises(code) as caught:
            async with opened(object_spec(place, "jsonl", store=store)) as lane:
                await lane.write([numbers(1)], Position(1))
                await lane.flush()
        shown = "".join(traceback.format_exception(caught.value))
        for secret in (signature, refused):
            assert secret not in shown
            assert quote_plus(secret) not in shown


async def test_a_key_for_azure_comes_before_a_token_of_the_environment(
    azure: AzureServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_TOKEN", "of another user")
    async with opened(object_spec(azure.bucket(), "jsonl")) as lane:
        await lane.write([numbers(1)], Position(1))
        await lane.flush()
        assert lane.durable == Position(1)


async def test_a_right_that_is_missing_is_said(s3: Bucket) -> None:
    store = {**s3.server.settings, "accessKey": READER}
    with raises(codes.TARGET_REFUSES, match="AccessDenied"):
        async with opened(object_spec(s3, "jsonl", store=store)):
            pass


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"path": "ftp://host/x"}, "path"),
        ({"path": "out", "partitionBy": ["dt"]}, "partitionBy"),
        ({"path": "out", "store": {"region": "x"}}, "store"),
        ({"path": "s3://b-b/x", "partitionBy": ["dt", "dt"]}, "partitionBy"),
        ({"path": "s3://b-b/x", "rolling": {"maxBytes": "2GiB"}}, "maxBytes"),
    ],
)
def test_settings_that_do_not_go_together(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(Exception, match=field):
        FallbackSink.model_validate({"file": settings})


async def test_the_page_shows_what_works(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S3_KEY", s3.server.settings["accessKey"])
    monkeypatch.setenv("S3_SECRET", s3.server.settings["secretKey"])
    text = PAGE.read_text().replace("s3://lake/", s3.url()).replace("http://127.0.0.1:8333", s3.server.endpoint)
    blocks = [block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "sink:" in block]
    assert blocks
    for block in blocks:
        sink = dict(YAML(typ="safe", pure=True).load(block)[0]["sink"])
        del sink["guarantee"]
        async with opened(FallbackSink.model_validate(sink)) as lane:
            await lane.write([sink_frame([b'{"id": 1, "total": 2.5}'], 1)], Position(1))
            await lane.flush()
    assert [key for key in s3.keys("out/dt=1970-01-01/hour=00") if key.endswith(".parquet")]
