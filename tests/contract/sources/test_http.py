"""HTTP push with a real client: what is answered when, and what becomes of records."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from millstream import codes
from millstream.clock import SystemClock
from millstream.ports import free_ports
from millstream_connectors.http.source.lane import BODY_BYTES_MAX, HttpSourceLane
from millstream_reader.ids import SeenIds
from millstream_reader.source import SourceBatch, is_held_up
from tests.contract.sources.lanes import WAIT_S, check_limits, open_lane, records_of, values
from tests.support.errors import raises

NDJSON = {"Content-Type": "application/x-ndjson"}
JSON = {"Content-Type": "application/json"}


@asynccontextmanager
async def listening(spec: dict[str, Any] | None = None, **options: Any) -> AsyncIterator[HttpSourceLane]:
    spec = spec or {}
    whole = {**spec, "http": {"port": 0, **spec.get("http", {})}}
    async with open_lane(whole, **options) as lane:
        assert isinstance(lane, HttpSourceLane)
        yield lane


@asynccontextmanager
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=WAIT_S)) as session:
        yield session


async def post(session: aiohttp.ClientSession, lane: HttpSourceLane, body: bytes, **headers: str) -> tuple[int, Any]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with session.post(lane.address, data=io.BytesIO(body), headers=named) as answer:
        return answer.status, await answer.json()


async def read_records(lane: HttpSourceLane, count: int, **limits: int) -> list[SourceBatch]:
    batches: list[SourceBatch] = []
    limits = {"records_max": 4096, "bytes_max": 1 << 20, **limits}
    async with asyncio.timeout(WAIT_S):
        while len(records_of(batches)) < count:
            batches.append(await lane.read(**limits, timeout_s=0.1))
            check_limits(batches[-1], **limits)
    return batches


async def answer_all(
    lane: HttpSourceLane, body: bytes, headers: dict[str, str], count: int
) -> tuple[int, Any, list[SourceBatch]]:
    """One request, with the lane committing what it reads."""
    async with client() as session, asyncio.TaskGroup() as tasks:
        answer = tasks.create_task(post(session, lane, body, **headers))
        batches = await read_records(lane, count)
        await lane.committed(batches[-1].position)
        status, told = await answer
    return status, told, batches


async def test_the_answer_comes_after_the_commit_and_not_before() -> None:
    async with listening() as lane, client() as session, asyncio.TaskGroup() as tasks:
        assert not lane.replayable
        first = tasks.create_task(post(session, lane, b"one", x_millstream_id="a"))
        batch_1 = (await read_records(lane, 1))[-1]
        second = tasks.create_task(post(session, lane, b"two"))
        batch_2 = (await read_records(lane, 1))[-1]
        assert not first.done()
        await lane.committed(batch_1.position)
        assert await first == (200, {"committed": 1})
        assert not second.done()
        await lane.committed(batch_2.position)
        assert (await second)[0] == 200
        assert batch_1.frame is not None
        assert batch_1.frame.ids() == ["a"]


async def test_headers_become_id_keys_event_time_and_trace() -> None:
    headers = {
        "x_numaflow_id": "id-1",
        "x_numaflow_event_time": "1700000000123",
        "x_millstream_keys": "k1,k2",
        "x_kind": "ümläut",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "authorization": "Bearer secret",
    }
    async with listening() as lane:
        status, _, batches = await answer_all(lane, b"\x00\xff", headers, 1)
    (record,) = records_of(batches)
    assert status == 200
    assert (record.value, record.id, record.keys) == (b"\x00\xff", "id-1", ("k1", "k2"))
    assert record.event_time_us == 1_700_000_000_123_000
    assert record.headers == {"x-kind": "ümläut".encode(), "traceparent": headers["traceparent"].encode()}


@pytest.mark.parametrize(
    ("body", "headers", "wanted", "ids"),
    [
        (b'{"a": 1}\n\n  \n{"a":2}\r\n', NDJSON, [b'{"a": 1}', b'{"a":2}'], ["b#0", "b#1"]),
        (b' [ {"a": 1.50}, "[x]" ,[1,2],null]', JSON, [b'{"a": 1.50}', b'"[x]"', b"[1,2]", b"null"], None),
        (b'{"a": [1]}', JSON, [b'{"a": [1]}'], ["b"]),
        (gzip.compress(b"packed", mtime=0), {"Content-Encoding": "gzip"}, [b"packed"], ["b"]),
    ],
    ids=["lines", "array", "one", "gzip"],
)
async def test_a_body_is_one_record_or_a_batch(
    body: bytes, headers: dict[str, str], wanted: list[bytes], ids: list[str] | None
) -> None:
    async with listening() as lane:
        given = headers | {"x-millstream-id": "b"}
        status, told, batches = await answer_all(lane, body, given, len(wanted))
    assert (status, told) == (200, {"committed": len(wanted)})
    assert values(records_of(batches)) == wanted
    found = [record.id for record in records_of(batches)]
    assert found == (ids or [f"b#{index}" for index in range(len(wanted))])


async def test_requests_are_read_together_and_in_parts() -> None:
    """Whatever they have beside their values, and wherever a read ends."""
    given: list[tuple[bytes, dict[str, str]]] = [
        (b"1\n2\n3", {**NDJSON, "x-millstream-id": "a", "x-millstream-keys": "k,l", "x-kind": "y"}),
        (b"plain", {"x-millstream-event-time": "7"}),
        (b"[4, 5]", {**JSON, "x-millstream-id": "c", "x-millstream-keys": "m"}),
        (b"6\n\n 7", {**NDJSON, "x-millstream-id": "d"}),
    ]
    wanted = [
        *[(b"%d" % n, f"a#{n - 1}", ("k", "l"), {"x-kind": b"y"}) for n in (1, 2, 3)],
        (b"plain", None, (), {}),
        (b"4", "c#0", ("m",), {}),
        (b"5", "c#1", ("m",), {}),
        (b"6", "d#0", (), {}),
        (b"7", "d#1", (), {}),
    ]
    for records_max in range(1, 9):
        async with listening() as lane, client() as session, asyncio.TaskGroup() as tasks:
            for number, (body, headers) in enumerate(given, start=1):
                tasks.create_task(post(session, lane, body, **headers))
                async with asyncio.timeout(WAIT_S):
                    while (lane.pending() or 0) < (3, 4, 6, 8)[number - 1]:  # noqa: ASYNC110  # there is no event for it
                        await asyncio.sleep(0)
            batches = await read_records(lane, 8, records_max=records_max)
            await lane.committed(batches[-1].position)
        records = records_of(batches)
        made_up = b"".join(batch.made_up for batch in batches)
        assert made_up == bytes(record_id is None for _, record_id, _, _ in wanted)
        assert [
            (record.value, record.id if not made_up[index] else None, record.keys, record.headers)
            for index, record in enumerate(records)
        ] == wanted
        assert records[3].event_time_us == 7000


async def test_ids_are_read_off_a_field_or_made_up() -> None:
    body = b'{"order": {"id": 7}}\n{"order": {"id": "x"}}'
    async with listening() as lane:
        _, _, batches = await answer_all(lane, body, {**NDJSON, "x-millstream-id-field": "order.id"}, 2)
        assert [record.id for record in records_of(batches)] == ["7", "x"]
        _, _, batches = await answer_all(lane, body, NDJSON, 2)
        first, second = [record.id for record in records_of(batches)]
        assert first
        assert second
        assert first != second


async def test_event_time_and_keys_of_the_spec_come_before_the_headers() -> None:
    spec = {"eventTime": {"field": "at"}, "keys": ["who"]}
    async with listening(spec) as lane:
        headers = {**JSON, "x-millstream-keys": "other", "x-millstream-event-time": "5"}
        _, _, batches = await answer_all(lane, b'{"at": "1970-01-01T00:00:01Z", "who": "me"}', headers, 1)
        (record,) = records_of(batches)
        assert (record.event_time_us, record.keys) == (1_000_000, ("me",))
    async with listening({"eventTime": {"header": "X-At", "format": "epoch"}}) as lane:
        _, _, batches = await answer_all(lane, b"x", {"x-at": "1.5"}, 1)
        assert records_of(batches)[0].event_time_us == 1_500_000


@pytest.mark.parametrize(
    ("body", "headers", "status", "reason"),
    [
        (b'{"a": 1}\n{', NDJSON, 400, "record 2: '{' is not a JSON value"),
        (b"[1,]", JSON, 400, "not a JSON array"),
        (b"{", JSON, 400, "not a JSON value"),
        (b"x", {"x-millstream-event-time": "noon"}, 400, "'noon' is not milliseconds since 1970"),
        (b"x", {"x-millstream-id": "i" * 300}, 400, "300 bytes; 1 to 256 are allowed"),
        (b"{}", {**JSON, "x-millstream-id-field": "id"}, 400, "there is no `id` in the record"),
        (b"x", {"Content-Encoding": "br"}, 415, "'br' is not supported"),
        (b"x", {"Content-Encoding": "gzip"}, 400, "the body cannot be read"),
        (gzip.compress(b"x" * 1000, mtime=0)[:-9], {"Content-Encoding": "gzip"}, 400, "truncated"),
        (b"x" * (BODY_BYTES_MAX + 1), {}, 413, "the limit is"),
        (b"x" * (BODY_BYTES_MAX - 1), {}, 413, "a record has"),
        (gzip.compress(b"x" * (BODY_BYTES_MAX + 1), mtime=0), {"Content-Encoding": "gzip"}, 413, "exceeds the limit"),
        (b"1\n" * 11, NDJSON, 413, "the batch has 11 records; the source holds at most 10"),
    ],
)
async def test_what_cannot_be_taken_is_refused_whole_with_the_reason(
    body: bytes, headers: dict[str, str], status: int, reason: str
) -> None:
    async with listening({"http": {"buffer": 10}}) as lane, client() as session:
        found, told = await post(session, lane, body, **headers)
        assert (found, reason in told["error"]) == (status, True), told
        assert lane.pending() == 0
        assert (await post(session, lane, b"", **NDJSON)) == (200, {"committed": 0})


async def test_a_missing_event_time_or_key_is_told_to_the_sender() -> None:
    async with listening({"eventTime": {"field": "at"}}) as lane, client() as session:
        assert await post(session, lane, b"{}", **JSON) == (400, {"error": "there is no `at` in the record"})
        status, told = await post(session, lane, b"text")
        assert (status, "is not a JSON value" in told["error"]) == (400, True)


async def test_only_the_token_lets_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    (tmp_path / "token").write_text("s3cret\n")
    for auth in ({"token": {"env": "TOKEN"}}, {"token": {"file": "token"}}):
        async with listening({"http": {"auth": auth}}, base_dir=tmp_path) as lane, client() as session:
            for shown in ({}, {"Authorization": "Bearer s3cre"}, {"Authorization": "Basic s3cret"}):
                async with session.post(lane.address, data=b"x", headers=shown) as answer:
                    assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
            status, _, _ = await answer_all(lane, b"x", {"authorization": "bearer s3cret"}, 1)
            assert status == 200


@pytest.mark.parametrize(
    ("auth", "reason"),
    [
        ({"token": {"env": "NO_SUCH"}}, "NO_SUCH is not set"),
        ({"token": {"file": "nowhere"}}, "there is no file .*nowhere"),
        ({"token": {"name": "n", "key": "k"}}, "key k of the Kubernetes Secret n: there is no file .*/n/k; mount"),
    ],
)
async def test_a_token_that_is_not_there_is_the_users_to_give(
    tmp_path: Path, auth: dict[str, object], reason: str
) -> None:
    with raises(codes.SECRET_MISSING, match=reason):
        async with listening({"http": {"auth": auth}}, base_dir=tmp_path):
            pass


async def test_a_full_buffer_answers_429_and_takes_again_after_the_commit() -> None:
    async with listening({"http": {"buffer": 3}}) as lane, client() as session, asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(post(session, lane, b"x")) for _ in range(3)]
        batches = await read_records(lane, 3)
        async with session.post(lane.address, data=b"x") as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
        await lane.committed(batches[-1].position)
        assert [(await item)[0] for item in waiting] == [200] * 3
        assert (await answer_all(lane, b"x", {}, 1))[0] == 200


async def test_records_whose_ids_cannot_be_remembered_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    clock = SystemClock()
    seen = SeenIds(ttl_s=3600.0, ids_max=100, clock=clock)
    lines = b"\n".join(b"%d" % number for number in range(60))

    async def sent(lane: HttpSourceLane, body: bytes, headers: dict[str, str], count: int) -> int:
        status, _, batches = await answer_all(lane, body, headers, count)
        for batch in batches:
            if batch.frame is not None:
                seen.admit(batch.frame, batch.made_up)
        return status

    async with listening(seen=seen) as lane, client() as session, asyncio.TaskGroup() as tasks:
        assert await sent(lane, lines, {**NDJSON, "x-millstream-id": "a"}, 60) == 200
        assert not is_held_up(lane)
        # What waits to be read counts too.
        waiting = tasks.create_task(post(session, lane, lines[:49], **{**NDJSON, "x-millstream-id": "b"}))
        async with asyncio.timeout(WAIT_S):
            while lane.pending() != 20:  # noqa: ASYNC110  # there is no event before it is read
                await asyncio.sleep(0)
        for _ in range(2):
            async with session.post(lane.address, data=lines, headers={**NDJSON, "x-millstream-id": "c"}) as answer:
                assert (answer.status, int(answer.headers["Retry-After"]) > 3000) == (503, True)
                reason = (await answer.json())["error"]
        assert is_held_up(lane)
        assert "idsMax" in reason
        assert "idTtl" in reason
        # Told once a minute, however many are refused.
        assert [record.levelname for record in caplog.records if "refuses" in record.message] == ["WARNING"]
        # Sent again, or without ids that could be repeated, they need no room.
        again = tasks.create_task(post(session, lane, lines, **{**NDJSON, "x-millstream-id": "a"}))
        plain = tasks.create_task(post(session, lane, lines, **NDJSON))
        batches = await read_records(lane, 140)
        await lane.committed(batches[-1].position)
        assert [(await task)[0] for task in (waiting, again, plain)] == [200] * 3


async def test_large_bodies_are_bounded_together() -> None:
    body = b"x" * (6 << 20)
    async with listening() as lane, client() as session, asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(post(session, lane, body)) for _ in range(10)]
        batches = await read_records(lane, 10)
        assert all(batch.frame is None or batch.frame.records == 1 for batch in batches)
        assert (await post(session, lane, body))[0] == 429
        await lane.committed(batches[-1].position)
        assert [(await item)[0] for item in waiting] == [200] * 10


async def test_draining_refuses_the_new_and_finishes_what_was_taken() -> None:
    async with listening() as lane, client() as session, asyncio.TaskGroup() as tasks:
        health = lane.address.replace("/vertices/in", "/health")
        async with session.get(health) as answer:
            assert (answer.status, await answer.json()) == (200, {"status": "ready"})
        early = [tasks.create_task(post(session, lane, b"%d" % index)) for index in range(5)]
        batches = await read_records(lane, 2, records_max=1)
        await lane.drain()
        async with session.post(lane.address, data=b"late") as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        async with session.get(health) as answer:
            assert answer.status == 503
        while (batch := await lane.read(1, 1 << 20, 5.0)).frame is not None:
            batches.append(batch)
        await lane.committed(batch.position)
        answers = [(await item)[0] for item in early]
        assert answers.count(200) == len(records_of(batches))
        assert set(answers) <= {200, 503}


async def test_closing_tells_senders_that_nothing_was_committed_and_frees_the_port() -> None:
    async with client() as session, asyncio.TaskGroup() as tasks:
        async with listening() as lane:
            waiting = tasks.create_task(post(session, lane, b"x"))
            await read_records(lane, 1)
        assert await waiting == (503, {"error": "not committed: the source is stopping"})
        port = int(lane.address.split(":")[2].split("/")[0])
        async with listening({"http": {"port": port}}) as again:
            assert again.address == lane.address


async def test_a_sender_that_went_away_leaves_a_record_that_is_committed_all_the_same() -> None:
    async with listening() as lane, client() as session, asyncio.TaskGroup() as tasks:
        leaving = tasks.create_task(post(session, lane, b"x", x_millstream_id="same"))
        batches = await read_records(lane, 1)
        leaving.cancel()
        await lane.committed(batches[-1].position)
        # Sent again, the record has the same id, by which the lane above knows it; the answer is 200 again.
        status, _, again = await answer_all(lane, b"x", {"x-millstream-id": "same"}, 1)
        assert (status, records_of(again)[0].id) == (200, "same")


async def test_positions_go_on_after_a_restart() -> None:
    async with listening() as lane:
        _, _, batches = await answer_all(lane, b"1\n2\n3", NDJSON, 3)
    async with listening(position=batches[-1].position) as lane:
        assert (await lane.read(1, 1, 0.0)).position == batches[-1].position
        status, _, more = await answer_all(lane, b"4", {}, 1)
        assert (status, json.loads(more[-1].position)["taken"]) == (200, 4)


async def test_a_port_that_is_taken_is_named_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with raises(codes.PORT_TAKEN, match=rf"127.0.0.1 port {port}: .*in use.*http.port"):
            async with listening({"http": {"port": port}}):
                pass


async def test_each_lane_has_its_own_port_and_vertex() -> None:
    port = free_ports(2)
    spec = {"http": {"port": port}}
    async with listening(spec, partition=1, partitions=2) as lane, client() as session:
        assert lane.address == f"http://127.0.0.1:{port + 1}/vertices/in"
        async with session.post(lane.address.replace("/in", "/out"), data=b"x") as answer:
            assert (answer.status, await answer.json()) == (
                404,
                {"error": "there is no source 'out' here; this is 'in'"},
            )
        async with session.get(lane.address) as answer:
            assert answer.status == 405
