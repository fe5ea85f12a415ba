"""Who connects to Pulsar: a client of OAuth 2.0 and the owner of a certificate, on a real server with an issuer of
tokens on the loopback."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from pulsar import exceptions
from pydantic import ValidationError

from millstream import codes
from millstream.codes.code import Code
from millstream.errors import MillstreamError, RetryLaterError
from millstream.limits import ONLINE_CHECK_TIMEOUT_S, PULSAR_LOOK_S
from millstream.record import Position
from millstream.spec.models import FallbackSink, Source
from millstream.wire.certificates import make_certificate
from millstream_connectors.opening_sinks import open_sink
from millstream_connectors.pulsar.client import open_link
from millstream_connectors.pulsar.connector import SOURCE
from millstream_connectors.pulsar.looking import deduplicates, look
from millstream_connectors.pulsar.settings import PulsarCluster, PulsarSink
from millstream_connectors.pulsar.source.lane import PulsarSourceLane
from millstream_connectors.shared.oauth2.issuer import ANSWER_BYTES_MAX, open_issuer
from millstream_connectors.shared.oauth2.settings import Oauth2
from millstream_reader.source import SourceLane
from millstream_runner.cli.main import main
from tests.contract.sinks.file_target import sink_owner
from tests.contract.sources.lanes import open_lane, read_until, values
from tests.support.errors import raises
from tests.support.pulsar_server import ADMIN, EXACT, USER, PulsarServer
from tests.support.token_issuer import CLIENT_ID, CLIENT_SECRET, TokenIssuer, open_token_issuer
from tests.unit.writer.sink_frames import sink_frame

SAID_S = 5
"""The lifetime of tokens as their issuer says it; they are valid for longer, so that a slow machine may replace them
late."""
VALID_S = 30
"""How long tokens are valid that a test sees expire: a slow machine has connected by then."""
WAIT_S = 600.0
SILENT_S = 15.0
"""How long a lane waits for an issuer that does not answer."""


def oauth2(issuer: TokenIssuer, directory: Path, secret: str = CLIENT_SECRET, **more: Any) -> dict[str, Any]:
    """Settings whose secret is in the directory."""
    (directory / "secret").write_text(secret)
    own = {"clientId": CLIENT_ID, "clientSecret": {"file": str(directory / "secret")}}
    return {"auth": {"oauth2": {**issuer.settings, **own, **more}}, "timeout": "5s"}


def source(server: PulsarServer, topic: str, **settings: Any) -> dict[str, Any]:
    return {"pulsar": {**server.settings, "topic": topic, "subscriptionName": "shop", **settings}}


def sink(server: PulsarServer, topic: str, **settings: Any) -> FallbackSink:
    return FallbackSink.model_validate({"pulsar": {**server.settings, "topic": topic, **settings}})


def grant(server: PulsarServer, topic: str, role: str) -> None:
    server.ask("POST", f"{topic.replace('://', '/')}/permissions/{role}", ["produce", "consume"])


async def read(lane: SourceLane, count: int) -> list[bytes]:
    return values(await read_until(lane, lambda records: len(records) >= count))


async def failed(lane: SourceLane) -> RetryLaterError:
    """Why it cannot be read now."""
    while True:
        try:
            await lane.read(1, 1000, 0.1)
        except RetryLaterError as error:
            return error


def token_of(settings: dict[str, Any]) -> str:
    return open_issuer(Oauth2.model_validate(settings["auth"]["oauth2"]), Path(), "lane").token(5.0)


async def test_an_issuer_with_tls_says_who_connects(pulsar: PulsarServer, tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate.certificate, certificate.key)
    topic = pulsar.topic(namespace=EXACT)
    async with open_token_issuer(pulsar.token, tls) as issuer:
        settings = oauth2(issuer, tmp_path, tls={"ca": {"file": str(certificate.certificate)}})
        # Everyone without a token may read and write, so the role is that of the token.
        with raises(codes.TARGET_REFUSES, "AuthorizationError"):
            async with open_lane(source(pulsar, topic, **settings)):
                pass
        grant(pulsar, topic, CLIENT_ID)
        async with open_sink(sink(pulsar, topic, **settings, **pulsar.tls_settings), sink_owner(1)) as lane:
            assert not (await lane.write([sink_frame([b"1"], 1)], Position(1))).failures
        (tmp_path / "key.json").write_text(issuer.key_file)
        of_file = {name: settings["auth"]["oauth2"][name] for name in ("issuerUrl", "audience", "scope", "tls")}
        of_file |= {"privateKey": {"file": "key.json"}}
        async with open_lane(source(pulsar, topic, auth={"oauth2": of_file}), base_dir=tmp_path) as reading:
            assert await read(reading, 1) == [b"1"]
        with raises(codes.TARGET_REFUSES, "no encrypted connection: .*certificate verify failed"):
            async with open_lane(source(pulsar, topic, **oauth2(issuer, tmp_path))):
                pass


@pytest.mark.sweep
async def test_a_client_that_the_issuer_refuses_stops_the_lane(pulsar: PulsarServer, tmp_path: Path) -> None:
    topic = pulsar.topic(namespace=EXACT)
    async with open_token_issuer(pulsar.token) as issuer:
        issuer.echoes = True
        for change, said in (
            ({"secret": "wr0ng"}, "refuses the client: it answered 401, invalid_client"),
            ({"audience": "urn:other"}, "refuses the client: it answered 400, invalid_request"),
        ):
            settings = oauth2(issuer, tmp_path, **change)
            for opened in (
                open_lane(source(pulsar, topic, **settings)),
                open_sink(sink(pulsar, topic, **settings), sink_owner(1)),
            ):
                with raises(codes.TARGET_REFUSES, said) as stopped:
                    async with opened:
                        pass
                assert "wr0ng" not in str(stopped.value)
                assert CLIENT_SECRET not in str(stopped.value)


@pytest.mark.sweep
async def test_a_lane_waits_for_an_issuer_that_is_away(pulsar: PulsarServer, tmp_path: Path) -> None:
    topic = pulsar.topic(namespace=EXACT)
    grant(pulsar, topic, CLIENT_ID)
    frame = sink_frame([b"1"], 1)
    async with open_token_issuer(pulsar.token) as issuer:
        issuer.away = True
        two = f"{pulsar.settings['serverAddr']},{pulsar.settings['serverAddr'].partition('://')[2]}"
        settings = {**oauth2(issuer, tmp_path), "serverAddr": two}
        async with open_sink(sink(pulsar, topic, **settings), sink_owner(1)) as lane:
            with pytest.raises(
                RetryLaterError, match=r"issuer of tokens .* cannot be used now: it answered 503"
            ) as away:
                await lane.write([frame], Position(1))
            assert str(away.value).count("503") == 1
            await issuer.stop()
            with pytest.raises(RetryLaterError, match=r"issuer of tokens .* cannot be used now: .*refused"):
                await lane.write([frame], Position(1))
            issuer.away = False
            await issuer.start()
            assert not (await lane.write([frame], Position(1))).failures
    assert pulsar.values(topic) == [b"1"]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("page", "code", "said"),
    [
        (web.Response(status=404), codes.TARGET_UNFIT, "issues no tokens: it answered 404 to /tenant/.well-known/"),
        (web.Response(status=302, headers={"Location": "/x"}), codes.TARGET_UNFIT, "issues no tokens: it answered 302"),
        (web.Response(text="{}"), codes.TARGET_UNFIT, "names no `token_endpoint`"),
        (
            web.Response(text='{"token_endpoint": "file:///etc/passwd"}'),
            codes.TARGET_UNFIT,
            "names no `token_endpoint`",
        ),
        (web.Response(text='{"token_endpoint": "http://[x"}'), codes.TARGET_UNFIT, "names no `token_endpoint`"),
        (web.Response(text="[" * 100_000), codes.TARGET_AWAY, "its answer is not JSON"),
        (web.Response(text="<html>"), codes.TARGET_AWAY, "its answer is not JSON"),
        (web.Response(text="[]"), codes.TARGET_AWAY, "its answer is not a JSON object"),
        (web.Response(text=f'"{"x" * ANSWER_BYTES_MAX}"'), codes.TARGET_AWAY, "its answer is not JSON"),
        (web.Response(status=429), codes.TARGET_AWAY, "it answered 429"),
    ],
)
async def test_what_is_not_an_issuer_is_said(page: web.Response, code: Code, said: str, tmp_path: Path) -> None:
    async with open_token_issuer(lambda *_: "t0ken") as issuer:
        issuer.page = page
        with pytest.raises(MillstreamError, match=re.escape(said)) as stopped:
            await asyncio.to_thread(token_of, oauth2(issuer, tmp_path))
    assert stopped.value.code is code


async def test_the_secret_is_not_sent_unencrypted_by_an_issuer_with_tls(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate.certificate, certificate.key)
    async with open_token_issuer(lambda *_: "t0ken") as plain, open_token_issuer(lambda *_: "t0ken", tls) as issuer:
        settings = oauth2(issuer, tmp_path, tls={"ca": {"file": str(certificate.certificate)}})
        assert await asyncio.to_thread(token_of, settings) == "t0ken"
        issuer.endpoint = f"{plain.url}token"
        with raises(codes.TARGET_UNFIT, "names no `token_endpoint` with https://"):
            await asyncio.to_thread(token_of, settings)
        assert plain.issued == 0


@pytest.mark.sweep
async def test_a_token_is_used_until_shortly_before_it_expires(tmp_path: Path) -> None:
    time_s = 0.0
    async with open_token_issuer(lambda role, lifetime_s: f"{role} {issuer.issued}") as issuer:
        settings = Oauth2.model_validate(oauth2(issuer, tmp_path)["auth"]["oauth2"])
        tokens = open_issuer(settings, Path(), "lane", lambda: time_s)

        async def at(now_s: float) -> str:
            nonlocal time_s
            time_s = now_s
            return await asyncio.to_thread(tokens.token, 5.0)

        first = f"{CLIENT_ID} 1"
        assert [await at(0), await at(3200)] == [first, first]
        issuer.away = True
        with pytest.raises(RetryLaterError, match="it answered 503"):
            await at(3300)
        assert tokens.last() == first
        assert isinstance(tokens.failure, RetryLaterError)
        issuer.away = False
        assert await at(3300) == tokens.last() == f"{CLIENT_ID} 2"
        assert tokens.failure is None


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("said", "used_s"),
    [
        ("3600", 3240),
        ('"3600"', 3240),
        ("3600.5", 3240),
        ("1e300", 86_400),
        pytest.param("9" * 401, 60, id="401 digits"),
        ("1e999", 60),
        ("NaN", 60),
        ("-5", 60),
        ("0", 60),
        ("null", 60),
        ("[]", 60),
        ('"soon"', 60),
    ],
)
async def test_what_an_issuer_says_of_a_lifetime(said: str, used_s: int, tmp_path: Path) -> None:
    times_s = iter((0.0, used_s - 1.0, used_s + 1.0))
    async with open_token_issuer(lambda *_: str(issuer.issued)) as issuer:
        issuer.said = said
        settings = Oauth2.model_validate(oauth2(issuer, tmp_path)["auth"]["oauth2"])
        tokens = open_issuer(settings, Path(), "lane", lambda: next(times_s))
        found = [await asyncio.to_thread(tokens.token, 30.0) for _ in range(3)]
    assert found == ["1", "1", "2"]


@pytest.mark.sweep
async def test_a_refusal_that_cannot_be_read_is_a_refusal(tmp_path: Path) -> None:
    async with open_token_issuer(lambda *_: "t0ken") as issuer, open_token_issuer(lambda *_: "t0ken") as other:
        issuer.endpoint = f"{other.url}token"
        other.page = web.Response(status=400, text="[" * 100_000)
        with raises(codes.TARGET_REFUSES, "refuses the client: it answered 400"):
            await asyncio.to_thread(token_of, oauth2(issuer, tmp_path))


@pytest.mark.sweep
async def test_a_token_is_replaced_though_its_issuer_was_away(tmp_path: Path) -> None:
    async with open_token_issuer(lambda role, lifetime_s: str(issuer.issued)) as issuer, asyncio.timeout(WAIT_S):
        issuer.lifetime_s = 1
        settings = Oauth2.model_validate(oauth2(issuer, tmp_path)["auth"]["oauth2"])
        tokens = open_issuer(settings, Path(), "lane")
        assert await asyncio.to_thread(tokens.token, 5.0) == "1"
        issuer.away = True
        tokens.keep(5.0)
        try:
            await until(lambda: tokens.failure is not None)
            assert tokens.last() == "1"
            issuer.away = False
            await until(lambda: tokens.last() == "3")
            assert tokens.failure is None
        finally:
            tokens.close()


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - no event is sent
        await asyncio.sleep(0.01)


def connected_since(server: PulsarServer, topic: str) -> set[str]:
    """When each of the topic's consumers has connected."""
    stats = server.ask("GET", f"{topic.replace('://', '/')}/stats")
    consumers = [one for subscription in stats["subscriptions"].values() for one in subscription["consumers"]]
    return {f"{one['consumerName']} {one['connectedSince']}" for one in consumers}


@pytest.mark.sweep
@pytest.mark.timeout(WAIT_S + 60)
async def test_a_lane_gets_new_tokens_while_it_runs(pulsar: PulsarServer, tmp_path: Path) -> None:
    topic = pulsar.topic(namespace=EXACT)
    grant(pulsar, topic, CLIENT_ID)
    pulsar.send(topic, [b"1"])
    async with open_token_issuer(lambda role, _: pulsar.token(role, VALID_S)) as issuer, asyncio.timeout(WAIT_S):
        issuer.lifetime_s = SAID_S
        by_issuer = {**oauth2(issuer, tmp_path), "timeout": "10s"}
        cluster = PulsarCluster.model_validate({**pulsar.settings, **by_issuer})
        async with AsyncExitStack() as life, open_lane(source(pulsar, topic, **by_issuer)) as lane:
            assert isinstance(lane, PulsarSourceLane)
            idle = await asyncio.to_thread(open_link, cluster, tmp_path, "lane")
            life.callback(idle.close)
            assert await read(lane, 1) == [b"1"]
            link, since = lane._link, connected_since(pulsar, topic)
            # The tokens so far have expired then, and the broker has asked for others.
            expired_s = time.time() + VALID_S + 3
            while time.time() < expired_s:
                await lane.read(1, 1000, 0.1)
            await asyncio.to_thread(pulsar.send, topic, [b"2"])
            assert await read(lane, 1) == [b"2"]
            # The client answered; nothing was opened again, neither by the lane nor by its client.
            assert lane._link is link
            assert connected_since(pulsar, topic) == since
            issuer.away = True
            assert "is lost; a new one is opened" in str(await failed(lane))
            assert re.search("issuer of tokens .* cannot be used now: it answered 503", str(await failed(lane)))
            with pytest.raises(RetryLaterError, match="it answered 503"), idle.translated():
                await asyncio.to_thread(idle.partitions, topic)
            assert idle.error_of(exceptions.TopicNotFound()).code is codes.TARGET_UNFIT
            issuer.away = False
            await asyncio.to_thread(pulsar.send, topic, [b"3"])
            assert await read(lane, 1) == [b"3"]
            # A token that was revoked does not stop a lane, because the next one is judged first.
            assert lane._link is not None
            assert isinstance(lane._link.error_of(exceptions.AuthenticationError()), RetryLaterError)


@pytest.mark.sweep
@pytest.mark.timeout(WAIT_S + 60)
async def test_a_token_that_expires_and_has_no_successor_is_reported(pulsar: PulsarServer, tmp_path: Path) -> None:
    topic = pulsar.topic(namespace=EXACT)
    grant(pulsar, topic, CLIENT_ID)
    pulsar.send(topic, [b"1"])
    written = tmp_path / "token"
    settings = source(pulsar, topic, auth={"token": {"file": str(written)}}, timeout="10s")
    written.write_text(pulsar.token(CLIENT_ID, VALID_S))
    async with open_lane(settings) as lane, asyncio.timeout(WAIT_S):
        assert await read(lane, 1) == [b"1"]
        assert "is lost; a new one is opened" in str(await failed(lane))
        with raises(codes.TARGET_REFUSES, "refuses who connects"):
            await lane.read(1, 1000, 0.1)
        written.write_text(pulsar.token(CLIENT_ID))
        await asyncio.to_thread(pulsar.send, topic, [b"2"])
        assert await read(lane, 1) == [b"2"]


@pytest.mark.sweep
async def test_a_secret_that_is_replaced_while_a_lane_runs_does_not_stop_it(
    pulsar: PulsarServer, tmp_path: Path
) -> None:
    async with open_token_issuer(lambda role, _: pulsar.token(role)) as issuer, asyncio.timeout(WAIT_S):
        issuer.lifetime_s = 1
        settings = PulsarCluster.model_validate({**pulsar.settings, **oauth2(issuer, tmp_path)})
        link = await asyncio.to_thread(open_link, settings, tmp_path, "lane")
        try:
            issuer.secret = "n3w"
            what = "refuses the client: it answered 401"
            await until(lambda: what in str(link.error_of(exceptions.Timeout())))
            assert isinstance(link.error_of(exceptions.Timeout()), RetryLaterError)
            with raises(codes.TARGET_REFUSES, what):
                await asyncio.to_thread(open_link, settings, tmp_path, "lane")
            oauth2(issuer, tmp_path, "n3w")
            (await asyncio.to_thread(open_link, settings, tmp_path, "lane")).close()
        finally:
            await asyncio.to_thread(link.close)


async def gaps(found: list[float]) -> None:
    """Adds how long the thread of the event loop could not run, each time, until it is cancelled. Unit: seconds."""
    before_s = time.monotonic()
    while True:
        await asyncio.sleep(0.01)
        now_s = time.monotonic()
        found.append(now_s - before_s)
        before_s = now_s


@pytest.mark.sweep
async def test_a_lane_that_closes_while_its_issuer_is_silent_stops_no_other_thread(
    pulsar: PulsarServer, tmp_path: Path
) -> None:
    topic = pulsar.topic(namespace=EXACT)
    grant(pulsar, topic, CLIENT_ID)
    async with open_token_issuer(lambda role, _: pulsar.token(role)) as issuer, asyncio.timeout(WAIT_S):
        issuer.lifetime_s = 1
        settings = {**pulsar.settings, **oauth2(issuer, tmp_path), "timeout": f"{SILENT_S:g}s"}
        link = await asyncio.to_thread(open_link, PulsarCluster.model_validate(settings), tmp_path, "lane")
        issuer.is_silent = True
        # The first token has to be replaced soon, and the client connects when it is first used.
        using = asyncio.create_task(asyncio.to_thread(link.partitions, topic))
        await issuer.asked_silent.wait()
        found = list[float]()
        measuring = asyncio.create_task(gaps(found))
        await asyncio.sleep(0)
        await asyncio.to_thread(link.close)
        await until(lambda: bool(found))
        measuring.cancel()
        await asyncio.gather(measuring, using, return_exceptions=True)
    # The client's own `shutdown` holds the interpreter's lock while its thread waits for a token.
    assert max(found) < SILENT_S / 3


async def test_validate_online_gets_a_token(
    pulsar: PulsarServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = pulsar.topic(namespace=EXACT)
    roles = [ADMIN]

    def online(settings: dict[str, Any]) -> tuple[int, list[dict[str, Any]]]:
        reading = source(pulsar, topic, **settings)
        writing = {"pulsar": {**pulsar.settings, "adminUrl": pulsar.admin_url, "topic": topic, **settings}}
        vertices = [{"name": "in", "source": reading}, {"name": "out", "sink": writing}]
        head = {"apiVersion": "millstream.io/v1alpha1", "kind": "Pipeline", "metadata": {"name": "p"}}
        body = {"vertices": vertices, "edges": [{"from": "in", "to": "out"}]}
        (tmp_path / "p.yaml").write_text(json.dumps({**head, "spec": body}))
        code = main(["validate", "--online", "-o", "json", str(tmp_path / "p.yaml")])
        return code, json.loads(capsys.readouterr().out)["problems"]

    async with open_token_issuer(lambda role, lifetime_s: pulsar.token(roles[0], lifetime_s)) as issuer:
        # The command has a loop of its own.
        assert await asyncio.to_thread(online, oauth2(issuer, tmp_path)) == (0, [])
        grant(pulsar, topic, "reader")
        roles[0] = "reader"
        code, problems = await asyncio.to_thread(online, oauth2(issuer, tmp_path))
        assert code == 2
        assert [one["code"] for one in problems] == ["MS-2514"]
        assert "the web service of Pulsar" in str(problems[0])
        code, problems = await asyncio.to_thread(online, oauth2(issuer, tmp_path, "wr0ng"))
        assert {one["code"] for one in problems} == {"MS-2514"}
        assert "wr0ng" not in str(problems)


@pytest.mark.sweep
async def test_looking_ends_before_its_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert PULSAR_LOOK_S < ONLINE_CHECK_TIMEOUT_S
    monkeypatch.setattr("millstream_connectors.pulsar.looking.PULSAR_LOOK_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        async with open_token_issuer(lambda *_: "t0ken") as issuer, asyncio.timeout(WAIT_S):
            more = {**oauth2(issuer, tmp_path), "timeout": f"{2 * WAIT_S:g}s", "adminUrl": f"http://{host}"}
            settings = PulsarSink.model_validate({"serverAddr": f"pulsar://{host}", "topic": "t", **more})
            with raises(codes.TARGET_AWAY, f"Pulsar at {host} cannot be used now: it did not answer in time"):
                await look(settings, ["t"], tmp_path)
            with raises(codes.TARGET_AWAY, f"the web service of Pulsar at http://{host} cannot be used now"):
                await deduplicates(settings, tmp_path, time.monotonic() + 0.5)
            issuer.is_silent = True
            with raises(codes.TARGET_AWAY, "the issuer of tokens at .* cannot be used now: it did not answer in time"):
                await deduplicates(settings, tmp_path, time.monotonic() + 0.5)


@pytest.mark.sweep
async def test_a_certificate_says_who_connects(pulsar: PulsarServer) -> None:
    topic = pulsar.topic(namespace=EXACT)
    pulsar.send(topic, [b"1"])
    settings = source(pulsar, topic, timeout="5s", **pulsar.certificate_settings)
    with raises(codes.TARGET_REFUSES, "AuthorizationError"):
        async with open_lane(settings):
            pass
    grant(pulsar, topic, USER)
    async with open_lane(settings) as lane:
        assert await read(lane, 1) == [b"1"]


@pytest.mark.parametrize(
    "change",
    [
        {"issuerUrl": "https://user:wr0ng@h"},
        {"clientSecret": None},
        {"clientSecret": "wr0ng"},
        {"privateKey": {"env": "K"}},
        {"clientId": None, "clientSecret": None},
        {"issuerUrl": "http://h", "tls": {"ca": {"env": "CA"}}},
    ],
)
def test_settings_of_a_client_that_cannot_be_meant_are_refused(change: dict[str, Any]) -> None:
    auth = {"issuerUrl": "https://h", "clientId": "c", "clientSecret": {"env": "S"}}
    settings = {"serverAddr": "pulsar://h", "topic": "t", "subscriptionName": "s"}
    Source.model_validate({"pulsar": {**settings, "auth": {"oauth2": auth}}})
    with pytest.raises(ValidationError) as refused:
        Source.model_validate({"pulsar": {**settings, "auth": {"oauth2": {**auth, **change}}}})
    assert all("wr0ng" not in one["msg"] for one in refused.value.errors())


@pytest.mark.parametrize(
    "key",
    [
        "wr0ng",
        pytest.param("[" * 60_000, id="nested"),
        '"wr0ng"',
        '{"client_id": "c", "client_secret": 7}',
        '{"client_id": "c"}',
    ],
)
def test_what_is_not_a_key_file_is_said(key: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(key)
    settings = Oauth2.model_validate({"issuerUrl": "https://h", "privateKey": {"file": "key"}})
    with raises(codes.TARGET_REFUSES, "auth.oauth2.privateKey is not a key file") as stopped:
        open_issuer(settings, tmp_path, "lane")
    assert key not in str(stopped.value)


def test_a_secret_that_is_sent_unencrypted_is_noted() -> None:
    auth = {"issuerUrl": "http://h", "clientId": "c", "clientSecret": {"env": "S"}}
    settings = {"serverAddr": "pulsar+ssl://h", "topic": "t", "subscriptionName": "s", "auth": {"oauth2": auth}}
    (note,) = SOURCE.notes(SOURCE.model.model_validate(settings), ("p",))
    assert note[0] == ("p", "auth", "oauth2", "issuerUrl")
    assert not [*SOURCE.notes(SOURCE.model.model_validate({**settings, "auth": None}), ("p",))]
