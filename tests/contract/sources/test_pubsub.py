"""The `pubsub` source on an emulated service: what it takes, when it acknowledges, how it holds, and what it says."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from millstream import codes
from millstream.clock import SystemClock
from millstream.codes.code import Code
from millstream.spec.models import Source
from millstream_connectors.pubsub.client import linked_subscriber
from millstream_connectors.pubsub.settings import PubsubSource
from millstream_connectors.pubsub.source import PulledMessages
from millstream_reader.ids import SeenIds
from millstream_reader.source import SourceBatch, SourceLane
from tests.contract.sources.lanes import open_lane, read_until, records_of, values
from tests.support.errors import raises
from tests.support.pubsub_server import ACCOUNT, DATA_ONLY, PROJECT, PubsubServer, Queue

PAGE = Path(__file__).parents[3] / "docs" / "connectors" / "pubsub.md"


def spec(server: PubsubServer, queue: Queue, **settings: Any) -> dict[str, Any]:
    return {"pubsub": {**server.source(queue), **settings}}


def numbers(first: int, count: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + count)]


def by_id(batches: list[SourceBatch]) -> dict[str, bytes]:
    return {record.id or "": record.value for record in records_of(batches)}


async def read_all(lane: SourceLane, count: int, *, commit: bool = True) -> list[SourceBatch]:
    """`count`: ids."""
    batches: list[SourceBatch] = []
    while len(by_id(batches)) < count:
        found: list[SourceBatch] = []
        await read_until(lane, bool, found)
        batches += found
        if commit:
            await lane.committed(batches[-1].position)
    return batches


@pytest.mark.guarantee("I1")
async def test_messages_are_acknowledged_when_they_are_committed(pubsub: PubsubServer) -> None:
    queue = pubsub.queue()
    pubsub.send(queue, numbers(0, 3000))
    async with open_lane(spec(pubsub, queue)) as lane:
        batches = await read_all(lane, 3000)
    assert sorted(values(records_of(batches))) == sorted(numbers(0, 3000))
    assert pubsub.left(queue) == 0


@pytest.mark.sweep
async def test_what_is_not_committed_is_given_back(pubsub: PubsubServer) -> None:
    queue = pubsub.queue()
    pubsub.send(queue, numbers(0, 20))
    async with open_lane(spec(pubsub, queue, ackDeadline="10m")) as lane:
        await read_all(lane, 20, commit=False)
        assert pubsub.left(queue) == 0
    # A pull that was on its way when the lane closed may take them once more, for the lease of the subscription.
    pubsub.until_left(queue, 20)


@pytest.mark.guarantee("I4")
async def test_messages_of_an_ordering_key_stay_in_order(pubsub: PubsubServer) -> None:
    queue = pubsub.queue(ordered=True)
    for n in range(8):
        for key in ("a", "b"):
            pubsub.send(queue, [f"{key}{n}".encode()], key=key)
    async with open_lane(spec(pubsub, queue)) as lane:
        records = records_of(await read_all(lane, 16))
    for part in (b"a", b"b"):
        found = [record.value for record in records if record.headers["PubSub-Ordering-Key"] == part]
        assert found == [part + b"%d" % n for n in range(8)]


@pytest.mark.guarantee("I1")
async def test_what_was_committed_and_not_acknowledged_is_known_by_its_id(pubsub: PubsubServer) -> None:
    queue = pubsub.queue()
    pubsub.send(queue, numbers(0, 20))
    seen = SeenIds(ttl_s=3600, ids_max=5000, clock=SystemClock())
    async with open_lane(spec(pubsub, queue)) as lane:
        # Committed, and the process dies before it acknowledges them.
        batches = await read_all(lane, 20, commit=False)
    for batch in batches:
        if batch.frame is not None:
            seen.admit(batch.frame)
    assert len(seen) == 20
    async with open_lane(spec(pubsub, queue), batches[-1].position) as lane:
        again = await read_all(lane, 20)
    assert all(seen.admit(batch.frame).frame is None for batch in again if batch.frame is not None)
    assert pubsub.left(queue) == 0


@pytest.mark.sweep
@pytest.mark.guarantee("I1")
async def test_an_acknowledgement_after_the_lease_is_over_has_no_effect(pubsub: PubsubServer) -> None:
    queue = pubsub.queue()
    pubsub.send(queue, numbers(0, 20))
    settings = PubsubSource.model_validate(spec(pubsub, queue, ackDeadline="3s")["pubsub"])
    async with linked_subscriber(settings, Path(), "test") as link:
        messages = PulledMessages(settings, link)
        held = await messages.take(20)
        assert len(held) == 20
        # It does not extend the lease, and another reader gets them.
        pubsub.until_left(queue, 20)
        await messages.delete(held)
        await messages.hide(held, 600)
    assert pubsub.left(queue) == 20


@pytest.mark.sweep
@pytest.mark.guarantee("I1")
async def test_a_message_that_is_held_for_long_is_not_delivered_again(pubsub: PubsubServer) -> None:
    queue = pubsub.queue()
    pubsub.send(queue, numbers(0, 15))
    async with open_lane(spec(pubsub, queue, ackDeadline="3s")) as lane:
        batches = await read_all(lane, 15, commit=False)
        # For longer than its lease is without being extended, nothing comes again.
        until_s = SystemClock().monotonic_s() + 4.5
        while SystemClock().monotonic_s() < until_s:
            assert (await lane.read(10, 1 << 20, 0.2)).frame is None
        await lane.committed(batches[-1].position)
    assert pubsub.left(queue) == 0


@pytest.mark.sweep
@pytest.mark.guarantee("I8")
async def test_no_more_is_held_than_was_said(pubsub: PubsubServer) -> None:
    queue = pubsub.queue()
    pubsub.send(queue, numbers(0, 300))
    async with open_lane(spec(pubsub, queue, prefetch=40)) as lane:
        batches = await read_all(lane, 40, commit=False)
        batches += [await lane.read(100, 1 << 20, 0.3) for _ in range(3)]
        # Each of four polls may have asked for a quarter when another one filled the rest.
        assert 40 <= len(records_of(batches)) <= 40 + 3 * 10
        await lane.committed(batches[-1].position)
        await read_all(lane, 300 - len(by_id(batches)))
    assert pubsub.left(queue) == 0


@pytest.mark.sweep
async def test_what_a_message_carries(pubsub: PubsubServer) -> None:
    queue = pubsub.queue()
    pubsub.send(queue, [b"\xff\x00"], key="k", text="é")
    async with open_lane(spec(pubsub, queue)) as lane:
        (record,) = records_of(await read_all(lane, 1))
    assert record.value == b"\xff\x00"
    assert abs(record.event_time_us - SystemClock().now_us()) < 60_000_000
    assert dict(record.headers) == {"text": "é".encode(), "PubSub-Ordering-Key": b"k"}


@pytest.mark.sweep
@pytest.mark.guarantee("I1")
async def test_what_a_publisher_sends_twice_counts_once_by_its_attribute(pubsub: PubsubServer) -> None:
    queue = pubsub.queue()
    for _ in range(2):
        pubsub.send(queue, [b"a"], id="1")
        pubsub.send(queue, [b"b"])
        pubsub.send(queue, [b"c"], id="")
    async with open_lane(spec(pubsub, queue, idAttribute="id")) as lane:
        records = records_of(await read_all(lane, 5))
    assert {record.id for record in records if record.value == b"a"} == {"1"}
    # Those without one are known by the ids that the service gave them.
    assert len({record.id for record in records if record.value != b"a"}) == 4


@pytest.mark.sweep
@pytest.mark.guarantee("I9")
async def test_a_service_that_stands_still_is_waited_for(pubsub: PubsubServer) -> None:
    queue = pubsub.queue()
    pubsub.send(queue, numbers(0, 40))
    seen = SeenIds(ttl_s=3600, ids_max=5000, clock=SystemClock())
    found: list[bytes] = []

    async def read(lane: SourceLane) -> None:
        batch = await lane.read(30, 1 << 20, 0.1)
        new = seen.admit(batch.frame).frame if batch.frame is not None else None
        found.extend(new.values() if new is not None else ())
        await lane.committed(batch.position)

    async with asyncio.timeout(60), open_lane(spec(pubsub, queue, timeout="1s", ackDeadline="3s")) as lane:
        while len(found) < 20:
            await read(lane)
        pubsub.pause()
        try:
            until_s = SystemClock().monotonic_s() + 3.0
            while SystemClock().monotonic_s() < until_s:
                await read(lane)
        finally:
            pubsub.go_on()
        pubsub.send(queue, numbers(40, 20))
        while len(found) < 60:
            await read(lane)
    assert sorted(found) == sorted(numbers(0, 60))


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({"subscription": "no-such"}, codes.TARGET_UNFIT, "not in the project"),
        ({"project": "another"}, codes.TARGET_UNFIT, "not in the project"),
        ({"endpoint": "http://127.0.0.1:1"}, codes.TARGET_AWAY, "cannot be used now"),
        # A server that speaks no TLS.
        ({"endpoint": "", "timeout": "1s"}, codes.TARGET_REFUSES, "no encrypted connection"),
    ],
)
async def test_what_does_not_fit_is_said(
    pubsub: PubsubServer, tmp_path: Path, change: dict[str, Any], code: Code, said: str
) -> None:
    if change.get("endpoint") == "":
        (tmp_path / "key.json").write_text(pubsub.account())
        endpoint = pubsub.endpoint.replace("http:", "https:")
        change = {**change, "endpoint": endpoint, "credentials": {"file": "key.json"}}
    with raises(code, said):
        async with open_lane({"pubsub": {**spec(pubsub, pubsub.queue())["pubsub"], **change}}, base_dir=tmp_path):
            pass


@pytest.mark.sweep
@pytest.mark.parametrize("key", ["{", "[]", '{"type": "authorized_user"}', '{"private_key": "s3cret"}'])
async def test_what_is_not_the_key_of_an_account_is_said(pubsub: PubsubServer, tmp_path: Path, key: str) -> None:
    (tmp_path / "key.json").write_text(key)
    settings = {"project": PROJECT, "subscription": "orders", "credentials": {"file": "key.json"}}
    with raises(codes.TARGET_REFUSES, "are not the JSON key of a service account") as stopped:
        async with open_lane({"pubsub": settings}, base_dir=tmp_path):
            pass
    assert "s3cret" not in str(stopped.value)


def pipeline(path: Path, source: dict[str, Any]) -> Path:
    text = (
        "apiVersion: millstream.io/v1alpha1\nkind: Pipeline\nmetadata: {name: p}\nspec:\n  vertices:\n"
        f"  - name: in\n    source: {{pubsub: {json.dumps(source)}}}\n"
        "  - name: out\n    sink: {log: {}}\n  edges:\n  - {from: in, to: out}\n"
    )
    (path / "p.yaml").write_text(text)
    return path / "p.yaml"


PATIENT = """
import sys
from millstream_runner.cli.main import main
from millstream_runner.local import online
online.ONLINE_CHECK_TIMEOUT_S = 300.0
sys.exit(main(sys.argv[1:]))
"""
"""As `patient_online_checks`, for a process of its own."""


def online(path: Path, source: dict[str, Any], certificate: Path) -> tuple[int, list[dict[str, str]]]:
    """What `validate --online` says, in a process of its own: gRPC reads once which authorities count."""
    command = [sys.executable, "-c", PATIENT, "validate", "--online", "-o", "json"]
    done = subprocess.run(
        [*command, str(pipeline(path, source))],
        env={**os.environ, "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(certificate)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)["problems"]


def test_validate_online_says_what_is_wrong(pubsub: PubsubServer, tmp_path: Path) -> None:
    there = {**pubsub.source(pubsub.queue()), "timeout": "120s"}
    code, problems = online(tmp_path, {**there, "subscription": "no-such"}, pubsub.certificate)
    assert code == 2
    assert [(problem["code"], problem["path"]) for problem in problems] == [
        ("MS-2515", "spec.vertices[0].source.pubsub.subscription")
    ]
    assert online(tmp_path, there, pubsub.certificate) == (0, [])


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which makes certificates, is not installed")
@pytest.mark.parametrize(
    ("account", "key", "trusted", "said"),
    [
        (ACCOUNT, "", True, ""),
        pytest.param(DATA_ONLY, "", True, "", marks=pytest.mark.sweep),
        pytest.param(ACCOUNT, "of another", True, "invalid signature", marks=pytest.mark.sweep),
        pytest.param("other@example.org", "", True, "may not use it", marks=pytest.mark.sweep),
        (ACCOUNT, "", False, "CERTIFICATE_VERIFY_FAILED"),
    ],
)
def test_the_key_of_an_account_is_sent_encrypted_to_the_right_server(
    pubsub: PubsubServer, tmp_path: Path, account: str, key: str, trusted: bool, said: str
) -> None:
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    files = ["-keyout", str(tmp_path / "other.key"), "-out", str(tmp_path / "other.crt")]
    subprocess.run([*make, *files], check=True, capture_output=True, timeout=60)
    text = pubsub.account(account, key=(tmp_path / "other.key").read_text() if key else None)
    (tmp_path / "key.json").write_text(text)
    source = {
        **pubsub.source(pubsub.queue()),
        "endpoint": pubsub.tls_endpoint,
        "credentials": {"file": "key.json"},
        # Without trust, nothing but the end of it ends the attempts.
        "timeout": "60s" if trusted else "5s",
    }
    certificate = pubsub.certificate if trusted else tmp_path / "other.crt"
    code, problems = online(tmp_path, source, certificate)
    if not said:
        assert (code, problems) == (0, [])
        return
    assert code == 2
    assert [problem["code"] for problem in problems] == ["MS-2514"]
    assert said in json.dumps(problems)
    assert "PRIVATE" not in json.dumps(problems)


@pytest.mark.sweep
async def test_the_page_shows_what_runs(pubsub: PubsubServer) -> None:
    blocks = [
        YAML(typ="safe", pure=True).load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    ]
    (source,) = [vertex["source"] for (vertex,) in blocks if "source" in vertex]
    Source.model_validate(source)
    queue = pubsub.queue()
    pubsub.send(queue, numbers(0, 3))
    settings = {name: value for name, value in source["pubsub"].items() if name != "credentials"}
    async with open_lane({**source, "pubsub": {**settings, **pubsub.source(queue)}}) as lane:
        assert len(await read_until(lane, lambda records: len(records) == 3)) == 3
