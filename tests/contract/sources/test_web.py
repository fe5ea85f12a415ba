"""The `sse`, `websocket` and `httpPoll` sources against real servers: what they give, and what they say."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from traceback import format_exception
from typing import Any

import pytest
from aiohttp import web
from pydantic import ValidationError
from ruamel.yaml import YAML

from millstream import codes
from millstream.codes.code import Code
from millstream.limits import RECORD_BYTES_MAX, SSE_ID_BYTES_MAX
from millstream.spec.models import Source
from millstream.wire.certificates import make_certificate
from millstream_reader.source import SourceBatch, is_held_up
from millstream_runner.cli.main import main
from tests.contract.sources.lanes import open_lane, read_to_end, read_until, records_of, values
from tests.support.aws_gate import KEY_ID, REGION, SECRET, SERVICE, open_aws_gate, open_role_service
from tests.support.aws_gate import TOKEN as SESSION_TOKEN
from tests.support.errors import raises
from tests.support.token_endpoint import CLIENT, open_token_endpoint
from tests.support.token_endpoint import SECRET as SECRET_OF_CLIENT
from tests.support.token_issuer import CLIENT_ID, CLIENT_SECRET, open_token_issuer
from tests.support.web_server import HANDLERS, TOKEN, open_web

PAGE = Path(__file__).parents[3] / "docs" / "connectors" / "web.md"

pytestmark = pytest.mark.asyncio


@pytest.fixture
async def address() -> AsyncIterator[str]:
    async with open_web(HANDLERS) as address:
        yield address


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, last + 1)]


async def stream_of(request: web.Request, *parts: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for part in parts:
        await response.write(part)
    return response


# sse


@pytest.mark.guarantee("I1")
async def test_from_any_position_each_event_comes_once_though_the_connection_breaks(address: str) -> None:
    spec = {"sse": {"url": f"http://{address}/events?count=60&per=17"}}
    async with open_lane(spec) as lane:
        assert lane.replayable
        records, _, batches = await read_to_end(lane, records_max=7)
    assert values(records) == numbered(1, 60)
    assert records[0].headers == {"Sse-Event": b"odd", "Sse-Id": b"1"}
    done = 0
    for batch in batches[::3]:
        done = json.loads(batch.position)["given"]
        async with open_lane(spec, batch.position) as lane:
            assert values((await read_to_end(lane))[0]) == numbered(done + 1, 60)


async def test_only_some_types_are_read_and_the_position_follows_the_others(address: str) -> None:
    spec = {"sse": {"url": f"http://{address}/events?count=9", "events": ["odd"], "lastEventId": "2"}}
    async with open_lane(spec) as lane:
        records, _, batches = await read_to_end(lane)
    assert values(records) == [b"3", b"5", b"7", b"9"]
    assert json.loads(batches[-1].position)["place"].partition("\n")[0] == "9"


@pytest.mark.guarantee("I1")
async def test_a_server_that_begins_with_the_last_event_gives_it_once() -> None:
    async def inclusive(request: web.Request) -> web.StreamResponse:
        last = int(request.headers.get("Last-Event-ID", "1"))
        if last == 5:
            return web.Response(status=204)
        return await stream_of(request, *(b"id: %d\ndata: %d\n\n" % (n, n) for n in range(last, last + 3)))

    async with open_web({"/": inclusive}) as address, open_lane({"sse": {"url": f"http://{address}/"}}) as lane:
        assert values((await read_to_end(lane))[0]) == numbered(1, 5)


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize("again", [False, True], ids=["in one run", "in the next run"])
@pytest.mark.parametrize("window", [3, 30], ids=["a few events", "more than a mark names"])
async def test_a_server_that_ignores_the_last_id_stops_the_lane_before_an_event_is_repeated(
    again: bool, window: int
) -> None:
    async def ignorant(request: web.Request) -> web.StreamResponse:
        return await stream_of(request, *(b"retry: 1\nid: %d\ndata: %d\n\n" % (n, n) for n in range(1, window + 1)))

    batches: list[SourceBatch] = []
    async with open_web({"/": ignorant}) as address:
        spec = {"sse": {"url": f"http://{address}/"}}
        async with open_lane(spec) as lane:
            assert values(await read_until(lane, lambda found: len(found) == window, batches)) == numbered(1, window)
            if not again:
                with raises(codes.TARGET_UNFIT, match=r"the event '1' again, .* ignores Last-Event-ID"):
                    await read_until(lane, bool)
        if again:
            with raises(codes.TARGET_UNFIT, match=r"the event '1' again, .* ignores Last-Event-ID"):
                async with open_lane(spec, batches[-1].position) as lane:
                    await read_until(lane, bool)


@pytest.mark.guarantee("I1")
async def test_a_position_of_earlier_versions_continues_and_finds_its_event_again(address: str) -> None:
    spec = {"sse": {"url": f"http://{address}/events?count=9"}}
    async with open_lane(spec) as lane:
        _, _, batches = await read_to_end(lane)
    body = {**json.loads(batches[-1].position), "place": "4"}
    async with open_lane(spec, json.dumps(body).encode()) as lane:
        assert values((await read_to_end(lane))[0]) == numbered(5, 9)

    async def ignorant(request: web.Request) -> web.StreamResponse:
        return await stream_of(request, *(b"id: %d\ndata: %d\n\n" % (n, n) for n in range(2, 9)))

    async with open_web({"/": ignorant}) as other:
        with raises(codes.TARGET_UNFIT, match="the event '4' again"):
            async with open_lane({"sse": {"url": f"http://{other}/"}}, json.dumps(body).encode()) as lane:
                await read_until(lane, lambda found: len(found) == 9)


@pytest.mark.guarantee("I10")
async def test_a_server_that_continues_elsewhere_stops_the_lane() -> None:
    async def forgetful(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Last-Event-ID": "earliest"})
        await response.prepare(request)
        await response.write(b"id: 7\ndata: x\n\n")
        return response

    async with open_web({"/": forgetful}) as address:
        spec = {"sse": {"url": f"http://{address}/", "lastEventId": "3"}}
        with raises(codes.SOURCE_RECORDS_REMOVED, match="'earliest'"):
            async with open_lane(spec):
                pass


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"data: x\n\n", "without an id"),
        (b"id: 1\ndata: x\n\nid: 1\ndata: y\n\nid: 2\ndata: z\n\n", "two events the id '1'"),
        (b"id: " + b"1" * (SSE_ID_BYTES_MAX + 1) + b"\ndata: x\n\n", "ids of more than"),
    ],
)
async def test_events_that_cannot_be_asked_for_again_stop_the_lane_or_count_at_most_once(
    sent: bytes, said: str
) -> None:
    async def serve(request: web.Request) -> web.StreamResponse:
        return await stream_of(request, sent)

    async with open_web({"/": serve}) as address:
        spec = {"sse": {"url": f"http://{address}/"}}
        with raises(codes.TARGET_UNFIT, match=said):
            async with open_lane(spec) as lane:
                await read_until(lane, lambda records: len(records) == 9)
        async with open_lane({"sse": {**spec["sse"], "replay": False}}) as lane:
            assert not lane.replayable
            assert (await read_until(lane, lambda records: len(records) > 0))[0].value == b"x"


async def test_an_event_that_is_too_large_is_named() -> None:
    async def serve(request: web.Request) -> web.StreamResponse:
        if request.headers.get("Last-Event-ID") == "8":
            return web.Response(status=204)
        return await stream_of(request, b"id: 7\ndata: " + b"x" * RECORD_BYTES_MAX + b"x\n\n", b"id: 8\ndata: y\n\n")

    async with open_web({"/": serve}) as address, open_lane({"sse": {"url": f"http://{address}/"}}) as lane:
        records, (invalid,), _ = await read_to_end(lane)
    assert values(records) == [b"y"]
    assert invalid.place.endswith(", 7")
    assert len(invalid.value) <= 1024


# websocket


async def test_messages_of_each_connection_come_and_what_is_lost_is_not_waited_for() -> None:
    connections = 0

    async def breaking(request: web.Request) -> web.StreamResponse:
        nonlocal connections
        connections += 1
        response = web.WebSocketResponse()
        await response.prepare(request)
        assert (await response.receive_str(), await response.receive_str()) == ("hello", "a long s3cret")
        await response.send_str(f"text {connections}")
        await response.send_bytes(b"\x00bytes")
        await response.ping()
        # The answer to the ping, which is read only by a further receive.
        await asyncio.wait_for(response.receive(), 0.3) if connections > 1 else None
        return response

    async with open_web({"/": breaking}) as address:
        subscribe = ["hello", {"env": "SUBSCRIPTION"}]
        spec = {"websocket": {"url": f"ws://{address}/", "subscribe": subscribe}}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SUBSCRIPTION", TOKEN)
            async with open_lane(spec) as lane:
                assert not lane.replayable
                records = await read_until(lane, lambda records: len(records) >= 4)
    assert values(records)[:4] == [b"text 1", b"\x00bytes", b"text 2", b"\x00bytes"]


async def test_a_silent_peer_is_pinged_and_replaced() -> None:
    pings = 0

    async def silent(request: web.Request) -> web.StreamResponse:
        nonlocal pings
        response = web.WebSocketResponse(autoping=False)
        await response.prepare(request)
        await response.send_str(str(pings))
        while not (message := await response.receive()).type.name.startswith("CLOS"):
            pings += message.type.name == "PING"
            if pings == 1:
                await response.pong(message.data)
        return response

    async with open_web({"/": silent}) as address:
        spec = {"websocket": {"url": f"ws://{address}/", "pingInterval": "100ms"}}
        async with open_lane(spec) as lane:
            # The first ping is answered, the second is not.
            assert values(await read_until(lane, lambda records: len(records) == 2)) == [b"0", b"2"]


async def test_a_lane_that_drains_gives_what_it_has_received(address: str) -> None:
    spec = {"websocket": {"url": f"ws://{address}/socket", "subscribe": ['{"count": 500}']}}
    async with open_lane(spec) as lane:
        batches = [await lane.read(10, 1 << 20, 10.0)]
        before = len(records_of(batches))
        waiting = lane.pending() or 0
        await lane.drain()
        while batches[-1].frame is not None:
            batches.append(await lane.read(100, 1 << 20, 0.01))
    found = values(records_of(batches))
    assert found == numbered(1, len(found))
    assert len(found) == before + waiting


async def test_a_message_that_is_too_large_is_counted() -> None:
    async def serve(request: web.Request) -> web.StreamResponse:
        response = web.WebSocketResponse()
        await response.prepare(request)
        await response.send_bytes(b"x" * (RECORD_BYTES_MAX + 1))
        await response.receive()
        return response

    async with open_web({"/": serve}) as address, open_lane({"websocket": {"url": f"ws://{address}/"}}) as lane:
        batch = await lane.read(10, 1 << 20, 20.0)
    assert len(batch.invalid) == 1


# httpPoll


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize("way", ["path", "recordField", "link", "next URL"])
async def test_from_any_position_each_record_comes_once(address: str, way: str) -> None:
    url = f"http://{address}/items?count=50&per=8"
    handlers = dict(HANDLERS)

    async def linked(request: web.Request) -> web.Response:
        since = int(request.query.get("since", 0))
        found = [{"id": n} for n in range(since + 1, min(50, since + 8) + 1)]
        following = f"/linked?since={since + 8}" if since + 8 < 50 else None
        headers = {"Link": f'<{following}>; rel="next"'} if following else {}
        return web.json_response({"items": found, "next": following}, headers=headers)

    async with open_web({**handlers, "/linked": linked}) as more:
        ways: dict[str, dict[str, Any]] = {
            "path": {"path": "next", "parameter": "since"},
            "recordField": {"recordField": "id", "parameter": "since"},
            "link": {"link": True},
            "next URL": {"path": "next"},
        }
        cursor = ways[way]
        url = url if "parameter" in cursor else f"http://{more}/linked"
        spec = {"httpPoll": {"url": url, "records": "items", "cursor": cursor, "stopAtEnd": True}}
        async with open_lane(spec) as lane:
            assert lane.replayable
            records, _, batches = await read_to_end(lane, records_max=5)
        whole = [b'{"id":%d}' % n for n in range(1, 51)]
        assert values(records) == whole
        done = 0
        for batch in batches:
            done += batch.frame.records if batch.frame is not None else 0
            async with open_lane(spec, batch.position) as lane:
                assert values((await read_to_end(lane))[0]) == whole[done:]


@pytest.mark.guarantee("I1", "I15")
async def test_the_last_page_grows_and_one_that_was_changed_stops_the_lane() -> None:
    there = [{"n": 1}, {"n": 2}]

    async def page(request: web.Request) -> web.Response:
        return web.json_response({"items": there, "next": None})

    async with open_web({"/": page}) as address:
        cursor = {"path": "next", "parameter": "since"}
        spec = {"httpPoll": {"url": f"http://{address}/", "records": "items", "cursor": cursor, "interval": "10ms"}}
        batches: list[SourceBatch] = []
        async with open_lane(spec) as lane:
            await read_until(lane, lambda records: len(records) == 2, batches)
            there.append({"n": 3})
            await read_until(lane, lambda records: len(records) == 3, batches)
        async with open_lane(spec, batches[-1].position) as lane:
            there.append({"n": 4})
            assert values(await read_until(lane, lambda records: len(records) == 1)) == [b'{"n":4}']
        for change in (there[:2], [{"n": 0}, *there[1:]]):
            there[:] = change
            with raises(codes.SOURCE_DIFFERS):
                async with open_lane(spec, batches[-1].position):
                    pass


@pytest.mark.guarantee("I1")
async def test_a_server_that_ignores_the_cursor_stops_the_lane_before_a_record_is_repeated() -> None:
    async def ignorant(request: web.Request) -> web.Response:
        return web.json_response([{"id": n} for n in range(1, 4)])

    cursor = {"recordField": "id", "parameter": "since"}
    batches: list[SourceBatch] = []
    async with open_web({"/": ignorant}) as address:
        spec = {"httpPoll": {"url": f"http://{address}/", "cursor": cursor, "interval": "10ms"}}
        async with open_lane(spec) as lane:
            assert len(await read_until(lane, lambda found: len(found) == 3, batches)) == 3
            with raises(codes.TARGET_UNFIT, match=r"after the cursor '3', but returns the record at the cursor"):
                await read_until(lane, bool)
        with raises(codes.TARGET_UNFIT, match="the record at the cursor"):
            async with open_lane(spec, batches[-1].position) as lane:
                await read_until(lane, bool)


async def test_a_cursor_that_is_forgotten_stops_the_lane(address: str) -> None:
    async def gone(request: web.Request) -> web.Response:
        return web.Response(status=410)

    cursor = {"path": "next", "parameter": "since", "start": "5"}
    async with open_web({"/": gone}) as other:
        with raises(codes.SOURCE_RECORDS_REMOVED, match="410"):
            async with open_lane({"httpPoll": {"url": f"http://{other}/", "records": "items", "cursor": cursor}}):
                pass
    # Another meaning of the cursor is another source.
    spec = {"httpPoll": {"url": f"http://{address}/items", "records": "items", "cursor": cursor}}
    async with open_lane(spec) as lane:
        batch = await lane.read(3, 1 << 20, 10.0)
    changed = {**cursor, "path": None, "recordField": "id"}
    with raises(codes.SOURCE_CHANGED):
        async with open_lane({"httpPoll": {**spec["httpPoll"], "cursor": changed}}, batch.position):
            pass


async def test_an_answer_that_is_not_new_is_not_given_again() -> None:
    asked, state = list[str | None](), {"tag": '"1"', "body": "a\nb\n\nc\n"}

    async def status(request: web.Request) -> web.Response:
        asked.append(request.headers.get("If-None-Match"))
        headers = {"ETag": state["tag"]}
        same = request.headers.get("If-None-Match") == state["tag"]
        return web.Response(status=304) if same else web.Response(text=state["body"], headers=headers)

    async with open_web({"/": status}) as address:
        spec = {"httpPoll": {"url": f"http://{address}/", "body": "lines", "interval": "10ms"}}
        batches: list[SourceBatch] = []
        async with open_lane(spec) as lane:
            assert not lane.replayable
            assert values(await read_until(lane, lambda records: len(records) == 3, batches)) == [b"a", b"b", b"c"]
            while len(asked) < 4:
                batches.append(await lane.read(10, 1 << 20, 0.01))
            state.update(tag='"2"', body="d")
            await read_until(lane, lambda records: len(records) == 4, batches)
        async with open_lane(spec, batches[-1].position) as lane:
            before = len(asked)
            while len(asked) < before + 2:
                assert (await lane.read(10, 1 << 20, 0.01)).frame is None
    assert asked[:4] == [None, '"1"', '"1"', '"1"']


@pytest.mark.parametrize("pages", [{"link": True}, {"path": "next"}, {"parameter": "page"}])
async def test_one_poll_has_all_its_pages(pages: dict[str, Any]) -> None:
    async def paged(request: web.Request) -> web.Response:
        n = int(request.query.get("page", 1))
        following = f"/?page={n + 1}" if n < 3 else None
        headers = {"Link": f'<{following}>; rel="next"'} if following else {}
        return web.json_response({"items": [n] if n <= 3 else [], "next": following}, headers=headers)

    async with open_web({"/": paged}) as address:
        poll = {"url": f"http://{address}/", "records": "items", "pages": pages, "stopAtEnd": True}
        async with open_lane({"httpPoll": poll}) as lane:
            assert values((await read_to_end(lane, records_max=2))[0]) == [b"1", b"2", b"3"]


async def test_a_server_that_wants_to_be_left_alone_is() -> None:
    asked = 0

    async def busy(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.Response(status=429, headers={"Retry-After": "3600"}) if asked == 2 else web.json_response([asked])

    async with open_web({"/": busy}) as address:
        spec = {"httpPoll": {"url": f"http://{address}/", "interval": "10ms"}}
        async with open_lane(spec) as lane:
            await read_until(lane, lambda records: len(records) == 1)
            while asked < 2:
                await lane.read(10, 1 << 20, 0.05)
            for _ in range(5):
                assert (await lane.read(10, 1 << 20, 0.05)).frame is None
    assert asked == 2


async def test_a_next_page_on_another_server_is_not_followed(address: str) -> None:
    async def elsewhere(request: web.Request) -> web.Response:
        return web.json_response({"items": [1], "next": f"http://{address}/items"})

    async with open_web({"/": elsewhere}) as other:
        spec = {"httpPoll": {"url": f"http://{other}/", "records": "items", "cursor": {"path": "next"}}}
        with raises(codes.TARGET_UNFIT, match="another server"):
            async with open_lane(spec) as lane:
                await read_until(lane, lambda records: len(records) == 2)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("<html>", "not JSON"),
        ("[1]", "no array at 'items'"),
        ('{"items": [1], "next": [2]}', "neither text nor a whole number"),
    ],
)
async def test_another_answer_than_the_settings_say_is_named(answer: str, said: str) -> None:
    async def serve(request: web.Request) -> web.Response:
        return web.Response(text=answer)

    async with open_web({"/": serve}) as address:
        cursor = {"path": "next", "parameter": "since"}
        with raises(codes.TARGET_UNFIT, match=said):
            async with open_lane({"httpPoll": {"url": f"http://{address}/", "records": "items", "cursor": cursor}}):
                pass


# All of them


def url_of(kind: str, address: str, path: str) -> str:
    return f"{'ws' if kind == 'websocket' else 'http'}://{address}{path}"


PATHS = {"sse": "/events", "websocket": "/socket", "httpPoll": "/items"}


@pytest.mark.guarantee("I5")
@pytest.mark.parametrize("kind", ["sse", "httpPoll"])
async def test_a_server_that_cannot_be_read_is_not_taken_for_a_silent_one(kind: str) -> None:
    busy = asyncio.Event()

    async def nothing_new(request: web.Request) -> web.StreamResponse:
        if busy.is_set():
            return web.Response(status=503)
        if kind == "httpPoll":
            return web.Response(text="")
        response = await stream_of(request, b"retry: 10\n\n")
        await busy.wait()
        return response

    async def read_until_held_up(held_up: bool) -> None:
        async with asyncio.timeout(30):
            while is_held_up(lane) != held_up:
                assert (await lane.read(10, 1000, 0.02)).frame is None

    more = {"body": "lines", "interval": "10ms"} if kind == "httpPoll" else {}
    async with (
        open_web({"/": nothing_new}) as address,
        open_lane({kind: {"url": f"http://{address}/", **more}}) as lane,
    ):
        await lane.read(10, 1000, 0.02)
        assert not is_held_up(lane)
        busy.set()
        await read_until_held_up(True)
        busy.clear()
        await read_until_held_up(False)


@pytest.mark.parametrize("kind", PATHS)
@pytest.mark.parametrize(
    ("path", "more", "code", "said"),
    [
        ("/closed", {"auth": {"token": {"env": "WRONG"}}}, codes.TARGET_REFUSES, "status 401"),
        ("/nothing", {}, codes.TARGET_UNFIT, "status 404"),
        ("/moved", {}, codes.TARGET_UNFIT, "redirects to http://elsewhere:80"),
        ("/busy", {}, codes.TARGET_AWAY, "status 503"),
        ("/", {"url": "://127.0.0.1:1/"}, codes.TARGET_AWAY, "cannot be reached"),
        ("/", {"headers": {"X": {"env": "TWO_LINES"}}}, codes.WEB_SETTINGS, "the header 'X' cannot be sent"),
        ("/", {"url": {"env": "WRONG"}}, codes.WEB_SETTINGS, "is not a usable URL"),
    ],
)
async def test_what_does_not_fit_is_said_without_secrets(
    kind: str, path: str, more: dict[str, Any], code: Code, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def moved(request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": "http://elsewhere/?key=wr0ng"})

    async def busy(request: web.Request) -> web.Response:
        return web.Response(status=503)

    monkeypatch.setenv("WRONG", "wr0ng")
    monkeypatch.setenv("TWO_LINES", "wr0ng\nX-More: b")
    async with open_web({**HANDLERS, "/moved": moved, "/busy": busy}) as address:
        whole = f"/closed{PATHS[kind]}" if path == "/closed" else path
        settings = {"url": url_of(kind, address, f"{whole}?key=wr0ng"), **more}
        if isinstance(settings["url"], str) and settings["url"].startswith("://"):
            settings["url"] = ("ws" if kind == "websocket" else "http") + settings["url"]
        with raises(code, match=said) as stopped:
            async with open_lane({kind: settings}) as lane:
                await lane.read(1, 1000, 1.0)
    assert "wr0ng" not in str(stopped.value)


@asynccontextmanager
async def garbage() -> AsyncIterator[str]:
    """Host and port of a server that does not speak HTTP."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"220 mail.example.org ESMTP\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"


@pytest.mark.parametrize("kind", PATHS)
async def test_no_stack_trace_has_the_url_of_a_server_that_does_not_speak_http(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with garbage() as address:
        monkeypatch.setenv("HOOK", url_of(kind, address, "/hooks/wr0ng ü?key=wr0ng"))
        with raises(codes.TARGET_AWAY, match=f"the server at {address} cannot be reached: ") as stopped:
            async with open_lane({kind: {"url": {"env": "HOOK"}, "timeout": "5s"}}) as lane:
                await lane.read(1, 1000, 1.0)
    assert "wr0ng" not in "".join(format_exception(stopped.value))


@pytest.mark.parametrize("kind", PATHS)
async def test_over_tls_and_with_a_token(kind: str, tmp_path: Path) -> None:
    made = make_certificate(tmp_path / "tls")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(made.certificate, made.key)
    (tmp_path / "token").write_text(TOKEN)
    scheme = "wss" if kind == "websocket" else "https"
    more: dict[str, dict[str, Any]] = {
        "sse": {},
        "websocket": {"subscribe": ['{"count": 100}']},
        "httpPoll": {"records": "items"},
    }
    async with open_web(HANDLERS, tls=context) as address:
        settings = {
            "url": f"{scheme}://{address}/closed{PATHS[kind]}",
            "auth": {"token": {"file": "token"}},
            **more[kind],
        }
        trusting = {**settings, "tls": {"ca": {"file": str(made.certificate)}}}
        async with open_lane({kind: trusting}, base_dir=tmp_path) as lane:
            await read_until(lane, lambda records: len(records) >= 30)
        with raises(codes.TARGET_REFUSES, match="no encrypted connection"):
            async with open_lane({kind: settings}, base_dir=tmp_path):
                pass


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"sse": {"url": "http://user:wr0ng@host/"}}, "not a usable URL"),
        ({"sse": {"url": "ws://host/"}}, "not a usable URL"),
        ({"sse": {"url": "http://host/", "tls": {}}}, "no effect"),
        ({"sse": {"url": "http://host/", "replay": False, "lastEventId": "1"}}, "no effect"),
        ({"sse": {"url": "http://host/", "auth": {"token": "wr0ng"}}}, "may only refer to"),
        ({"sse": {"url": "http://h/", "auth": {"token": {"env": "A"}}, "headers": {"authorization": "x"}}}, "which"),
        ({"sse": {"url": "http://host/", "replay": False}, "guarantee": "exactlyOnce"}, "at most once"),
        ({"websocket": {"url": "ws://host/"}, "guarantee": "exactlyOnce"}, "at most once"),
        ({"websocket": {"url": "ws://host/"}, "guarantee": "atLeastOnce"}, "at most once"),
        ({"httpPoll": {"url": "http://host/"}, "guarantee": "exactlyOnce"}, "`cursor` makes it exactly once"),
        ({"httpPoll": {"url": "http://host/", "cursor": {}}}, "exactly one|none of"),
        ({"httpPoll": {"url": "http://host/", "cursor": {"recordField": "id"}}}, "no parameter carries"),
        ({"httpPoll": {"url": "http://host/", "cursor": {"link": True, "parameter": "p"}}}, "needs no parameter"),
        ({"httpPoll": {"url": "http://h/", "cursor": {"link": True}, "pages": {"link": True}}}, "from page to page"),
        ({"httpPoll": {"url": "http://host/", "body": "lines", "records": "a"}}, "needs a JSON answer"),
    ],
)
async def test_settings_that_cannot_hold_are_refused(spec: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said) as refused:
        Source.model_validate(spec)
    if "user:" in str(spec):
        assert "wr0ng" not in refused.value.errors()[0]["msg"]


def online(path: Path, kind: str, settings: dict[str, Any]) -> int:
    (path / "p.yaml").write_text(
        "apiVersion: millstream.io/v1alpha1\nkind: Pipeline\nmetadata: {name: p}\nspec:\n  vertices:\n"
        f"  - name: in\n    source: {{{kind}: {json.dumps(settings)}}}\n"
        "  - name: out\n    sink: {blackhole: {}}\n  edges:\n  - {from: in, to: out}\n"
    )
    return main(["validate", "--online", "-o", "json", str(path / "p.yaml")])


@pytest.mark.parametrize("kind", PATHS)
async def test_validate_online_says_what_is_wrong(
    kind: str, address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = {"records": "items"} if kind == "httpPoll" else {}
    right, wrong = ({"url": url_of(kind, address, f"{closed}{PATHS[kind]}"), **more} for closed in ("", "/closed"))
    # The command has a loop of its own.
    assert await asyncio.to_thread(online, tmp_path, kind, right) == 0
    capsys.readouterr()
    assert await asyncio.to_thread(online, tmp_path, kind, wrong) == 2
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert (problem["code"], problem["path"]) == ("MS-2514", f"spec.vertices[0].source.{kind}")


async def test_the_page_shows_what_runs(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [
        YAML(typ="safe", pure=True).load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.S)
    ]
    sources = [vertex["source"] for (vertex,) in blocks if "source" in vertex]
    assert {kind for source in sources for kind in source} >= set(PATHS)
    for name in ("PRICES_TOKEN", "ORDERS_TOKEN", "TRADES_TOKEN"):
        monkeypatch.setenv(name, TOKEN)

    async def trades(request: web.Request) -> web.StreamResponse:
        response = web.WebSocketResponse()
        await response.prepare(request)
        assert json.loads(await response.receive_str()) == {"op": "subscribe", "channel": "trades"}
        await response.send_str("1")
        await response.receive()
        return response

    async with open_web({**HANDLERS, "/trades": trades}) as own:
        for source in sources:
            (kind,) = set(source) & set(PATHS)
            path = "/trades" if kind == "websocket" else PATHS[kind]
            local = {**source[kind], "url": url_of(kind, own, f"/closed{path}")}
            async with open_lane({**source, kind: local}) as lane:
                assert await read_until(lane, lambda records: len(records) >= 1)


async def test_requests_are_signed_as_services_of_aws_demand_it(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLL_SECRET", SECRET)
    cursor = {"path": "next", "parameter": "since"}
    async with open_aws_gate(f"http://{address}") as gate:
        aws = {"region": REGION, "service": SERVICE, "accessKey": KEY_ID, "secretKey": {"env": "POLL_SECRET"}}
        url = f"{gate.url}/items?count=20&per=8&fields=a,b*&of=%C3%A9+(x)&empty"
        poll = {"url": url, "records": "items", "cursor": cursor, "stopAtEnd": True, "auth": {"aws": aws}}
        async with open_lane({"httpPoll": poll}) as lane:
            assert len((await read_to_end(lane))[0]) == 20
        assert gate.refused == []
        monkeypatch.setenv("POLL_SECRET", "another one")
        with raises(codes.TARGET_REFUSES, "status 403"):
            async with open_lane({"httpPoll": poll}) as lane:
                await read_to_end(lane)


async def test_the_role_of_a_pod_signs_and_is_asked_again_before_its_keys_expire(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    cursor = {"path": "next", "parameter": "since"}
    async with open_role_service() as service, open_aws_gate(f"http://{address}", SESSION_TOKEN) as gate:
        for name, value in service.environment(tmp_path).items():
            monkeypatch.setenv(name, value)
        auth = {"aws": {"region": REGION, "service": SERVICE}}
        poll = {"url": f"{gate.url}/items?count=20&per=8", "records": "items", "cursor": cursor, "auth": auth}
        spec = {"httpPoll": {**poll, "stopAtEnd": True, "interval": "10ms"}}
        # botocore renews keys that are valid for less than a quarter of an hour whenever it can.
        service.valid_s = 800.0
        async with open_lane(spec) as lane:
            assert len((await read_to_end(lane))[0]) == 20
        assert (gate.refused, service.given >= 2) == ([], True)
        service.status = 503
        with raises(codes.TARGET_AWAY, "AWS gives no credentials now"):
            async with open_lane(spec):
                pass
        service.status = 403
        with raises(codes.TARGET_REFUSES, "AccessDenied"):
            async with open_lane(spec):
                pass


# Tokens of an issuer


def polled(address: str, auth: dict[str, Any]) -> dict[str, Any]:
    """A source of four records in two pages."""
    cursor = {"path": "next", "parameter": "since"}
    poll = {"url": f"http://{address}/closed", "records": "items", "cursor": cursor, "interval": "10ms"}
    return {"httpPoll": {**poll, "stopAtEnd": True, "auth": {"oauth2": auth}}}


@asynccontextmanager
async def open_closed(accepts: Callable[[str], bool]) -> AsyncIterator[str]:
    """A server that wants a token, and repeats others in its refusal."""

    async def closed(request: web.Request) -> web.StreamResponse:
        given = request.headers.get("Authorization", "")
        if not accepts(given.removeprefix("Bearer ")):
            return web.Response(status=401, text=f"not {given}")
        since = int(request.query.get("since", 0))
        items = [{"id": n} for n in range(since + 1, since + 3)]
        return web.json_response({"items": items, "next": since + 2 if since < 2 else None})

    async with open_web({"/closed": closed}) as address:
        yield address


async def test_each_request_has_a_token_that_has_not_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLL_SECRET", CLIENT_SECRET)
    async with open_token_issuer(lambda role, lifetime_s: f"{role}-{issuer.issued}") as issuer:
        issuer.said = "1e-9"
        client = {**issuer.settings, "clientId": CLIENT_ID, "clientSecret": {"env": "POLL_SECRET"}}
        async with open_closed(lambda token: token == f"{CLIENT_ID}-{issuer.issued}") as address:
            spec = polled(address, client)
            async with open_lane(spec) as lane:
                assert len((await read_to_end(lane))[0]) == 4
            assert issuer.issued == 2
            issuer.away = True
            with raises(codes.TARGET_AWAY, "answered 503"):
                async with open_lane(spec):
                    pass
            issuer.away = False
            async with open_lane(spec) as lane:
                assert len((await read_to_end(lane))[0]) == 4
            issuer.secret = "another"
            issuer.echoes = True
            with raises(codes.TARGET_REFUSES, "invalid_client") as refused:
                async with open_lane(spec):
                    pass
            assert CLIENT_SECRET not in "".join(format_exception(refused.value))


async def test_a_client_may_name_where_tokens_are_issued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLL_SECRET", SECRET_OF_CLIENT)
    with open_token_endpoint() as endpoint:
        client = {"tokenEndpointUrl": endpoint.url, "clientId": CLIENT, "clientSecret": {"env": "POLL_SECRET"}}
        basic = {**client, "authMethod": "client_secret_basic", "scope": "read"}
        async with open_closed(lambda token: token.endswith(".")) as address:
            async with open_lane(polled(address, basic)) as lane:
                assert len((await read_to_end(lane))[0]) == 4
            assert endpoint.scopes == ["read"]
            with raises(codes.TARGET_REFUSES, "invalid_client"):
                async with open_lane(polled(address, client)) as lane:
                    await read_to_end(lane)
        async with open_closed(lambda token: False) as address:
            with raises(codes.TARGET_REFUSES, "status 401"):
                async with open_lane(polled(address, basic)) as lane:
                    await read_to_end(lane)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"issuerUrl": "https://h", "tokenEndpointUrl": "https://h/token"}, "together"),
        ({}, "issuerUrl"),
        ({"tokenEndpointUrl": "https://h/token", "clientId": "other", "privateKey": {"env": "K"}}, "one place"),
    ],
)
async def test_a_client_has_one_issuer_and_one_secret(settings: dict[str, Any], said: str) -> None:
    client = {"clientId": "c", "clientSecret": {"env": "S"}} if "clientId" not in settings else {}
    with pytest.raises(ValidationError, match=said):
        Source.model_validate(polled("h", {**client, **settings}))
