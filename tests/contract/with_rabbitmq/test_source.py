"""The `rabbitmq` source on a real server: what it takes, when it acknowledges, and what it says where it cannot."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiormq import exceptions
from pamqp import encode
from ruamel.yaml import YAML

from millstream import codes
from millstream.clock import SystemClock
from millstream.codes.code import Code
from millstream.limits import RECORD_BYTES_MAX
from millstream.spec.models import FallbackSink, Source
from millstream.wire.certificates import Certificate
from millstream_connectors.rabbitmq import client as link
from millstream_connectors.rabbitmq.client import error_of
from millstream_connectors.rabbitmq.settings import RabbitServer as SpecServer
from millstream_reader.ids import SeenIds
from millstream_reader.source import InvalidRecord, SourceBatch, SourceLane, is_held_up
from millstream_runner.cli.main import main
from tests.contract.sources.lanes import open_lane, read_until, records_of, values
from tests.support.errors import raises
from tests.support.rabbit_server import PASSWORD, USER, VIRTUAL_HOST, RabbitServer
from tests.support.sizes import sized

PAGE = Path(__file__).parents[3] / "docs" / "connectors" / "rabbitmq.md"
KINDS = ["classic", "quorum"]


def spec(server: RabbitServer, queue: str, **settings: Any) -> dict[str, Any]:
    return {"rabbitmq": {**server.settings, "queue": queue, **settings}}


def numbers(first: int, count: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + count)]


async def read_all(lane: SourceLane, count: int, *, commit: bool = True) -> list[SourceBatch]:
    batches: list[SourceBatch] = []
    while len(records_of(batches)) < count:
        found: list[SourceBatch] = []
        await read_until(lane, bool, found)
        batches += found
        if commit:
            await lane.committed(batches[-1].position)
    return batches


@pytest.fixture(autouse=True)
def _closes_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the server is: acknowledgements that a connection has not sent when it is cut off are lost."""
    monkeypatch.setattr(link, "_CLOSE_S", 60.0)


@pytest.fixture(params=KINDS)
def queue(rabbit: RabbitServer, request: pytest.FixtureRequest) -> str:
    return rabbit.queue(request.param)


@pytest.mark.guarantee("I1")
async def test_messages_come_in_order_and_leave_the_queue_when_they_are_committed(
    rabbit: RabbitServer, queue: str
) -> None:
    sent = sized(600, 2000)
    rabbit.send(queue, numbers(0, sent), ids="m")
    async with open_lane(spec(rabbit, queue)) as lane:
        batches = await read_all(lane, sent // 2)
    done = len(records_of(batches))
    assert values(records_of(batches)) == numbers(0, done)
    assert [record.id for record in records_of(batches)] == [f"m{n}" for n in range(done)]
    rabbit.until_left(queue, sent - done)
    async with open_lane(spec(rabbit, queue), batches[-1].position) as lane:
        rest = await read_all(lane, sent - done, commit=False)
        assert sorted(values(records_of(rest))) == sorted(numbers(done, sent - done))
    rabbit.until_left(queue, sent - done)


@pytest.mark.guarantee("I1")
async def test_what_was_committed_and_not_acknowledged_is_known_by_its_id(rabbit: RabbitServer, queue: str) -> None:
    rabbit.send(queue, numbers(0, 20), ids="m")
    seen = SeenIds(ttl_s=3600, ids_max=5000, clock=SystemClock())
    async with open_lane(spec(rabbit, queue)) as lane:
        # Committed, and the process dies before it acknowledges.
        batch = (await read_all(lane, 20, commit=False))[-1]
        for frame in [batch.frame]:
            assert frame is not None
            assert seen.admit(frame).repeated == 0
    async with open_lane(spec(rabbit, queue), batch.position) as lane:
        rabbit.send(queue, numbers(20, 5), ids="n")
        again = await read_all(lane, 25)
        repeated = sum(seen.admit(batch.frame).repeated for batch in again if batch.frame is not None)
    assert repeated == batch.frame.records if batch.frame is not None else False
    assert rabbit.left(queue) == 0


@pytest.mark.sweep
async def test_messages_without_an_id_get_ones_that_are_made_up(
    rabbit: RabbitServer, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    rabbit.send_without_ids(queue, numbers(0, 3))
    for again in (False, True):
        async with open_lane(spec(rabbit, queue)) as lane:
            batches = await read_all(lane, 3, commit=again)
        assert b"".join(batch.made_up for batch in batches) == b"\1\1\1"
        assert ("redelivers messages that have no id" in caplog.text) == again


async def test_what_a_message_carries(rabbit: RabbitServer, queue: str) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    headers = {
        "text": "é",
        "number": 7,
        "flag": True,
        "nested": {"a": [1, None]},
        "raw": bytearray(b"\xff"),
        "no": None,
    }
    rabbit.send(queue, [b"v"], ids="m", headers=headers, timestamp=moment, content_type="text/plain")
    async with open_lane(spec(rabbit, queue)) as lane:
        (record,) = records_of(await read_all(lane, 1))
    assert (record.value, record.id, record.event_time_us) == (b"v", "m0", int(moment.timestamp()) * 1_000_000)
    assert dict(record.headers) == {
        "text": "é".encode(),
        "number": b"7",
        "flag": b"true",
        "nested": b'{"a": [1, null]}',
        "raw": b"\xff",
        "Content-Type": b"text/plain",
        "RabbitMQ-Routing-Key": queue.encode(),
    }


@pytest.mark.sweep
@pytest.mark.guarantee("I8")
async def test_large_messages_are_held_in_small_numbers(rabbit: RabbitServer, queue: str) -> None:
    rabbit.send(queue, [b"x" * 1_000_000] * 60, ids="m")
    async with open_lane(spec(rabbit, queue)) as lane:
        await read_until(lane, lambda records: len(records) >= 30)
        assert rabbit.left(queue) >= 60 - 33
        # Nothing more comes before something is committed.
        batches = [await lane.read(100, 1 << 26, 0.2) for _ in range(3)]
        assert len(records_of(batches)) <= 3


@pytest.mark.sweep
async def test_one_of_several_lanes_reads_the_queue(rabbit: RabbitServer, queue: str) -> None:
    rabbit.send(queue, numbers(0, 10), ids="m")
    found = []
    for partition in range(3):
        async with open_lane(spec(rabbit, queue), partition=partition, partitions=3) as lane:
            batches = [await lane.read(100, 1 << 20, 0.1) for _ in range(3)]
            found.append(len(records_of(batches)))
    assert sorted(found) == [0, 0, 10]


async def test_a_message_that_becomes_no_record_is_named(
    rabbit: RabbitServer, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rabbit.send(queue, [b"x" * (RECORD_BYTES_MAX + 1)], ids="m")
    with monkeypatch.context() as patch:
        # The client writes no such time, and other clients do.
        patch.setitem(encode.METHODS, "timestamp", lambda moment: (2**63 - 1).to_bytes(8, "big"))
        rabbit.send(queue, [b"far"], ids="n", timestamp=datetime(2026, 1, 2, tzinfo=UTC))
    rabbit.send(queue, [b"y"], ids="o")
    invalid: list[InvalidRecord] = []
    batches: list[SourceBatch] = []
    async with open_lane(spec(rabbit, queue)) as lane:
        while not records_of(batches):
            batches.append(await lane.read(10, 1 << 20, 1.0))
            invalid += batches[-1].invalid
        await lane.committed(batches[-1].position)
    assert [item.place for item in invalid] == [f"{queue}, message m0", f"{queue}, message n0"]
    assert len(invalid[0].value) < 2000
    assert f"event time: {2**63 - 1} seconds since 1970" in invalid[1].reason
    assert rabbit.left(queue) == 0


@pytest.mark.sweep
async def test_a_drained_lane_gives_back_what_it_has_not_given(rabbit: RabbitServer, queue: str) -> None:
    rabbit.send(queue, numbers(0, 100), ids="m")
    async with open_lane(spec(rabbit, queue)) as lane:
        batches = [await lane.read(10, 1 << 20, 5.0)]
        await lane.drain()
        assert (await lane.read(10, 1 << 20, 5.0)).frame is None
        # What it has given is still committed.
        await lane.committed(batches[-1].position)
    rabbit.until_left(queue, 100 - len(records_of(batches)))


@pytest.mark.guarantee("I1", "I9")
@pytest.mark.parametrize("how", ["kill", pytest.param("pause", marks=pytest.mark.sweep)])
async def test_a_server_that_goes_away_is_waited_for(rabbit: RabbitServer, how: str) -> None:
    server = rabbit
    queue = server.queue()
    server.send(queue, numbers(0, 100), ids="m")
    seen = SeenIds(ttl_s=3600, ids_max=5000, clock=SystemClock())
    found: list[bytes] = []

    async def read(lane: SourceLane) -> None:
        batch = await lane.read(30, 1 << 20, 0.1)
        new = seen.admit(batch.frame).frame if batch.frame is not None else None
        found.extend(new.values() if new is not None else ())

    async def read_until_there_are(count: int, lane: SourceLane) -> None:
        async with asyncio.timeout(60):
            while len(found) < count:
                await read(lane)

    async with open_lane(spec(server, queue)) as lane:
        await read_until_there_are(30, lane)
        if how == "kill":
            server.kill()
        else:
            server.pause()
        for _ in range(3):
            await read(lane)
        if how == "kill":
            assert is_held_up(lane)
            server.start()
        else:
            server.go_on()
        server.send(queue, numbers(100, 20), ids="n")
        await read_until_there_are(120, lane)
    assert sorted(found) == sorted(numbers(0, 120))


@pytest.mark.sweep
async def test_a_queue_that_is_removed_stops_the_lane(rabbit: RabbitServer, queue: str) -> None:
    async with open_lane(spec(rabbit, queue)) as lane:
        rabbit.remove(queue)
        with raises(codes.TARGET_UNFIT, queue):
            async with asyncio.timeout(30):
                while True:
                    await lane.read(10, 1 << 20, 0.1)


# What the user has to change


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({"queue": "no-such"}, codes.TARGET_UNFIT, "no queue 'no-such'"),
        ({"user": USER, "password": "wrong"}, codes.TARGET_REFUSES, f"refuses user {USER}"),
        ({"virtualHost": "nowhere"}, codes.TARGET_REFUSES, "no virtual host nowhere"),
        ({"user": USER, "password": PASSWORD}, codes.TARGET_REFUSES, f"refuses user {USER}"),
        ({"url": "amqp://127.0.0.1:1"}, codes.TARGET_AWAY, "cannot be used now"),
    ],
)
async def test_what_does_not_fit_is_said(rabbit: RabbitServer, change: dict[str, str], code: Code, said: str) -> None:
    with raises(code, said) as stopped:
        async with open_lane({"rabbitmq": {**spec(rabbit, "any")["rabbitmq"], **change}}):
            pass
    assert "wrong" not in str(stopped.value)
    assert PASSWORD not in str(stopped.value)


@pytest.mark.sweep
async def test_a_user_of_a_virtual_host_reads_there(rabbit: RabbitServer) -> None:
    settings = spec(rabbit, "no-such", user=USER, password=PASSWORD, virtualHost=VIRTUAL_HOST)
    with raises(codes.TARGET_UNFIT, f"no queue 'no-such' in vhost '{VIRTUAL_HOST}'"):
        async with open_lane(settings):
            pass


@pytest.mark.sweep
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which makes certificates, is not installed")
async def test_tls_is_spoken_where_the_certificate_counts(rabbit: RabbitServer) -> None:
    queue = rabbit.queue()
    rabbit.send(queue, numbers(0, 3), ids="m")
    url, tls = f"amqps://localhost:{rabbit.tls_port}", {"ca": {"file": str(rabbit.certificate)}}
    async with open_lane(spec(rabbit, queue, url=url, tls=tls)) as lane:
        assert values(records_of(await read_all(lane, 3))) == numbers(0, 3)
    with raises(codes.TARGET_REFUSES, "no encrypted connection"):
        async with open_lane(spec(rabbit, queue, url=url)):
            pass


@pytest.mark.sweep
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which makes certificates, is not installed")
async def test_a_certificate_says_who_connects(rabbit: RabbitServer) -> None:
    def shown(own: Certificate, **more: Any) -> dict[str, Any]:
        files = {"ca": rabbit.certificate, "certificate": own.certificate, "key": own.key}
        tls = {name: {"file": str(path)} for name, path in files.items()}
        return spec(rabbit, "no-such", url=f"amqps://localhost:{rabbit.tls_port}", tls=tls, **more)

    # Only the user of the certificate may connect to this virtual host.
    with raises(codes.TARGET_UNFIT, f"no queue 'no-such' in vhost '{VIRTUAL_HOST}'"):
        async with open_lane(shown(rabbit.own(), virtualHost=VIRTUAL_HOST)):
            pass
    with raises(codes.TARGET_REFUSES, "refuses the user of the client certificate or has no virtual host /"):
        async with open_lane(shown(rabbit.own())):
            pass
    # A user and a password come before the certificate.
    with raises(codes.TARGET_REFUSES, "refuses user shop"):
        async with open_lane(shown(rabbit.own(), user=USER, password=PASSWORD)):
            pass


def test_a_certificate_that_is_not_accepted_is_not_waited_for() -> None:
    # The server resets the connection after this, so a client may not receive it.
    said = "Server communication error: SSLError(1, '[SSL: SSLV3_ALERT_BAD_CERTIFICATE] sslv3 alert bad certificate')"
    server = SpecServer.model_validate({"url": "amqps://h"})
    error = error_of(exceptions.AMQPConnectionError(said), server, "lane")
    assert error.code is codes.TARGET_REFUSES
    assert "does not accept the client certificate" in str(error)


def online(path: Path, settings: dict[str, Any], sink: dict[str, Any]) -> int:
    (path / "p.yaml").write_text(
        "apiVersion: millstream.io/v1alpha1\nkind: Pipeline\nmetadata: {name: p}\nspec:\n  vertices:\n"
        f"  - name: in\n    source: {{rabbitmq: {json.dumps(settings)}}}\n"
        f"  - name: out\n    sink: {{rabbitmq: {json.dumps(sink)}}}\n  edges:\n  - {{from: in, to: out}}\n"
    )
    return main(["validate", "--online", "-o", "json", str(path / "p.yaml")])


async def test_validate_online_says_what_is_wrong(
    rabbit: RabbitServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = rabbit.settings
    # The command has a loop of its own.
    code = await asyncio.to_thread(online, tmp_path, {**here, "queue": "no"}, {**here, "routingKey": "none"})
    assert code == 2
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert {(problem["code"], problem["path"]) for problem in problems} == {
        ("MS-2515", "spec.vertices[0].source.rabbitmq.queue"),
        ("MS-2515", "spec.vertices[1].sink.rabbitmq.routingKey"),
    }
    queue = rabbit.queue()
    assert await asyncio.to_thread(online, tmp_path, {**here, "queue": queue}, {**here, "routingKey": queue}) == 0


@pytest.mark.sweep
async def test_the_page_shows_what_runs(rabbit: RabbitServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocks = [
        YAML(typ="safe", pure=True).load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    ]
    monkeypatch.setenv("RABBITMQ_PASSWORD", "guest")
    source, streamed = [vertex["source"] for (vertex,) in blocks if "source" in vertex]
    (sink,) = [vertex["sink"] for (vertex,) in blocks if "sink" in vertex]
    Source.model_validate(source)
    Source.model_validate(streamed)
    FallbackSink.model_validate(sink)
    queue = rabbit.queue()
    rabbit.send(queue, numbers(0, 3), ids="m")
    here = {**rabbit.settings, "queue": queue, "user": "guest", "virtualHost": "/"}
    async with open_lane({**source, "rabbitmq": {**source["rabbitmq"], **here}}) as lane:
        assert len(await read_until(lane, lambda records: len(records) == 3)) == 3
    stream = rabbit.queue("stream")
    rabbit.send(stream, numbers(0, 3), ids="m")
    async with open_lane({**streamed, "rabbitmq": {**streamed["rabbitmq"], **here, "queue": stream}}) as lane:
        assert len(await read_until(lane, lambda records: len(records) == 3)) == 3
