"""The `nats` source on a real server: each message at most once, and what it says where it cannot."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from ruamel.yaml import YAML

from millstream import codes
from millstream.codes.code import Code
from millstream.spec.models import Sink, Source
from millstream_connectors.shared import receiving
from tests.contract.sources.lanes import held_up, lane_id, open_lane, read_until, values
from tests.nats_process import open_nats_process
from tests.support.errors import raises
from tests.support.nats_outside import OutsideNats, open_outside_nats
from tests.support.nats_users import new_nkey, signed_user

PAGE = Path(__file__).parents[3] / "docs" / "connectors" / "nats.md"

pytestmark = pytest.mark.asyncio


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[OutsideNats]:
    async with open_outside_nats(tmp_path / "nats") as nats:
        yield nats


def spec(nats: OutsideNats, subject: str, **settings: Any) -> dict[str, Any]:
    return {"nats": {**nats.settings, "subject": subject, **settings}}


async def send(nats: OutsideNats, subject: str, first: int, last: int) -> None:
    for n in range(first, last + 1):
        await nats.connection.publish(subject, b"%d" % n, {"n": str(n)})
    await nats.connection.client.flush()


async def test_messages_come_in_order_with_subject_and_headers(nats: OutsideNats) -> None:
    await send(nats, "clicks.early", 0, 0)
    async with open_lane(spec(nats, "clicks.*")) as lane:
        assert not lane.replayable
        await send(nats, "clicks.de", 1, 500)
        records = await read_until(lane, lambda records: len(records) == 500)
    assert values(records) == [b"%d" % n for n in range(1, 501)]
    assert records[0].headers == {"Nats-Subject": b"clicks.de", "n": b"1"}


async def test_lanes_share_subjects_or_are_a_queue_group(nats: OutsideNats) -> None:
    for settings in ({"subject": "a,b,c,d"}, {"subject": "*", "queue": "group"}):
        found: list[bytes] = []
        async with AsyncExitStack() as life:
            lanes = [
                await life.enter_async_context(
                    open_lane({"nats": {**nats.settings, **settings}}, partition=n, partitions=2)
                )
                for n in range(2)
            ]
            for number, subject in enumerate("abcd" * 50):
                await send(nats, subject, number, number)
            async with asyncio.timeout(60):
                shares = [0, 0]
                while len(found) < 200:
                    for n, lane in enumerate(lanes):
                        frame = (await lane.read(4096, 1 << 20, 0.01)).frame
                        found += frame.values() if frame is not None else []
                        shares[n] += frame.records if frame is not None else 0
        assert sorted(map(int, found)) == [*range(200)]
        assert min(shares) > 0


async def test_a_server_that_is_killed_is_waited_for(nats: OutsideNats) -> None:
    async with open_lane(spec(nats, "clicks")) as lane:
        await send(nats, "clicks", 1, 3)
        await read_until(lane, lambda records: len(records) == 3)
        await nats.server.kill()
        await held_up(lane, True)
        await nats.server.start()
        await nats.connection.connected()
        await held_up(lane, False)
        async with asyncio.timeout(60):
            # What is sent before the lane is back is lost, so one of many arrives.
            records: list[bytes] = []
            while not records:
                await send(nats, "clicks", 4, 4)
                frame = (await lane.read(10, 1 << 20, 0.05)).frame
                records += frame.values() if frame is not None else []
    assert set(records) == {b"4"}


@pytest.mark.guarantee("I8")
async def test_what_does_not_fit_is_dropped_and_counted(
    nats: OutsideNats, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(receiving, "MESSAGES_MAX", 10)
    with caplog.at_level(logging.WARNING):
        async with open_lane(spec(nats, "clicks")) as lane:
            await send(nats, "clicks", 1, 30)
            async with asyncio.timeout(60):
                while "1 were dropped so far" not in caplog.text:
                    await nats.connection.client.flush()
            assert lane.pending() == 10
            await lane.drain()
            batch = await lane.read(100, 1 << 20, 0.05)
            assert batch.frame is not None
            assert batch.frame.values() == [b"%d" % n for n in range(1, 11)]


async def test_a_lane_that_drains_receives_nothing_more(nats: OutsideNats) -> None:
    async with open_lane(spec(nats, "clicks")) as lane:
        await send(nats, "clicks", 1, 5)
        async with asyncio.timeout(60):
            while lane.pending() != 5:
                await nats.connection.client.flush()
        await lane.drain()
        await send(nats, "clicks", 6, 9)
        batches = [await lane.read(2, 1 << 20, 0.05) for _ in range(4)]
    assert [batch.frame.records if batch.frame else 0 for batch in batches] == [2, 2, 1, 0]


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({"auth": {"basic": {"user": "stranger", "password": {"env": "WRONG"}}}}, codes.TARGET_REFUSES, "stranger"),
        ({"url": "nats://127.0.0.1:1", "timeout": "200ms"}, codes.TARGET_AWAY, "could not be reached"),
    ],
)
async def test_what_does_not_fit_is_said(
    nats: OutsideNats, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], code: Code, said: str
) -> None:
    monkeypatch.setenv("WRONG", "wr0ng")
    with raises(code, said) as stopped:
        async with open_lane(spec(nats, "clicks", **change)) as lane:
            await lane.read(1, 1000, 0.01)
    assert "wr0ng" not in str(stopped.value)
    assert str(lane_id()) in str(stopped.value)


def _signing(auth: dict[str, Any], url: str = "nats://127.0.0.1:4222") -> dict[str, Any]:
    return {"nats": {"url": url, "subject": "clicks", "auth": auth}}


async def test_who_connects_may_sign_with_an_nkey(tmp_path: Path) -> None:
    nkeys = pytest.importorskip("nkeys", reason="the extra nkeys is not installed")
    seed, public = new_nkey(nkeys, nkeys.PREFIX_BYTE_USER)
    (tmp_path / "seed.nk").write_text(f"{seed}\n")
    conf = f'listen: "127.0.0.1:-1"\nauthorization {{{{ users: [{{{{nkey: {public}}}}}] }}}}\n'
    async with open_nats_process(tmp_path / "server", conf) as server:
        async with open_lane(_signing({"nkey": {"file": str(tmp_path / "seed.nk")}}, server.url)) as lane:
            await lane.read(1, 1000, 0.01)
        other, _ = new_nkey(nkeys, nkeys.PREFIX_BYTE_USER)
        (tmp_path / "seed.nk").write_text(other)
        with raises(codes.TARGET_REFUSES, "the user of the NKey"):
            async with open_lane(_signing({"nkey": {"file": str(tmp_path / "seed.nk")}}, server.url)):
                pass


async def test_credentials_of_nsc_may_be_a_file_or_a_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nkeys = pytest.importorskip("nkeys", reason="the extra nkeys is not installed")
    conf, credentials = signed_user(nkeys)
    path = tmp_path / "shop" / "me.creds"
    path.parent.mkdir()
    path.write_text(credentials)
    monkeypatch.setenv("CREDS", credentials)
    monkeypatch.setenv("MILLSTREAM_SECRETS", str(tmp_path))
    secret = {"secret": {"name": "shop", "key": "me.creds"}}
    async with open_nats_process(tmp_path / "server", conf) as server:
        for written in (str(path), {"file": str(path)}, {"env": "CREDS"}, secret):
            async with open_lane(_signing({"creds": written}, server.url)) as lane:
                await lane.read(1, 1000, 0.01)


@pytest.mark.parametrize(
    "written",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("\n------END USER", "  \n------END USER"),
        lambda text: "".join(f"    {line}\n" for line in text.splitlines()),
        lambda text: text.partition("\n------END USER")[0],
    ],
    ids=["of Windows", "spaces after the seed", "indented", "ends with the seed"],
)
async def test_credentials_may_have_other_white_space(written: Callable[[str], str], tmp_path: Path) -> None:
    nkeys = pytest.importorskip("nkeys", reason="the extra nkeys is not installed")
    conf, credentials = signed_user(nkeys)
    path = tmp_path / "me.creds"
    path.write_bytes(written(credentials).encode())
    async with open_nats_process(tmp_path / "server", conf) as server:
        for creds in (str(path), {"file": str(path)}):
            async with open_lane(_signing({"creds": creds}, server.url)) as lane:
                await lane.read(1, 1000, 0.01)


@pytest.mark.parametrize(
    ("auth", "said"),
    [
        ({"nkey": {"env": "WRONG"}}, "auth.nkey: this is not the seed of an NKey"),
        ({"creds": {"env": "WRONG"}}, "auth.creds: this is not the JWT and the seed of a user"),
        ({"creds": "wrong.creds"}, "wrong.creds: this is not the JWT and the seed of a user"),
    ],
)
async def test_text_that_cannot_sign_is_refused_before_the_client_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, auth: dict[str, Any], said: str
) -> None:
    pytest.importorskip("nkeys", reason="the extra nkeys is not installed")
    monkeypatch.setenv("WRONG", "wr0ng")
    if auth.get("creds") == "wrong.creds":
        path = tmp_path / "wrong.creds"
        path.write_text("wr0ng")
        auth = {"creds": str(path)}
    with raises(codes.CONNECTOR_SETTINGS, said) as refused:
        async with open_lane(_signing(auth)):
            pass
    assert "wr0ng" not in str(refused.value)


@pytest.mark.parametrize("demand", ["exactlyOnce", "atLeastOnce"])
async def test_no_guarantee_is_held(demand: str) -> None:
    settings = {"nats": {"url": "nats://host", "subject": "a"}, "guarantee": demand}
    with pytest.raises(ValidationError, match="at most once"):
        Source.model_validate(settings)
    with pytest.raises(ValidationError, match="more than once after a failure"):
        Sink.model_validate(settings)
    with pytest.raises(ValidationError, match="read twice"):
        Source.model_validate({"nats": {"url": "nats://host", "subject": "a.*,a.b"}})


async def test_over_tls(tmp_path: Path) -> None:
    async with open_outside_nats(tmp_path / "nats", tls=True) as nats:
        tls = {"ca": {"file": str(tmp_path / "nats" / "server.pem")}}
        async with open_lane(spec(nats, "clicks", tls=tls)) as lane:
            await send(nats, "clicks", 1, 3)
            assert len(await read_until(lane, lambda records: len(records) == 3)) == 3


async def test_the_page_shows_what_runs(nats: OutsideNats) -> None:
    blocks = [
        YAML(typ="safe", pure=True).load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.S)
    ]
    source = next(vertex["source"] for (vertex,) in blocks if "nats" in vertex.get("source", {}))
    async with open_lane({**source, "nats": {**source["nats"], **nats.settings}}) as lane:
        await send(nats, "clicks.de", 1, 5)
        assert len(await read_until(lane, lambda records: len(records) == 5)) == 5
