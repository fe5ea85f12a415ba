"""The HTTP sink against a real server: order, keys, and what each kind of answer leads to."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

import pytest
from aiohttp import web

from millstream import codes
from millstream.errors import UserError
from millstream.frame import build_frame
from millstream.record import Position
from millstream_connectors.http.settings import HttpSink
from millstream_connectors.http.sink import open_http_sink
from millstream_connectors.shared.web.client import retry_after_s
from millstream_writer.sink import Guarantee, SinkFailure, SinkFrame, SinkLane
from tests.contract.sinks.http_target import HttpTarget, Request, open_http_target
from tests.support.errors import raises
from tests.unit.writer.sink_frames import sink_frame

END = Position(9)
BASIC = {"user": "me", "password": {"env": "TOKEN"}}


@asynccontextmanager
async def opened(target: HttpTarget, **options: object) -> AsyncIterator[SinkLane]:
    async with open_http_target(target):
        spec = HttpSink.model_validate({"url": target.url, **options})
        async with asyncio.timeout(20), open_http_sink(spec, Path(), "p/out/in.0") as lane:
            yield lane


def letters(text: str) -> list[bytes]:
    return [letter.encode() for letter in text]


async def test_each_record_is_one_request_with_its_id_as_the_key() -> None:
    target = HttpTarget()
    headers = {"X-Team": "flights"}
    async with opened(target, method="PUT", headers=headers, idempotencyHeader="X-Key") as lane:
        assert lane.guarantee is Guarantee.EXACTLY_ONCE_IDEMPOTENT
        assert lane.durable is None
        frames = [sink_frame(letters("ab"), 1), sink_frame(letters("c"), 4, ids=["source-id"])]
        assert not (await lane.write(frames, END)).failures
    assert [request.body for request in target.requests] == letters("abc")
    assert [request.headers["X-Key"] for request in target.requests] == ["out/in/0/1/0", "out/in/0/1/1", "source-id"]
    assert {(request.method, request.headers["X-Team"]) for request in target.requests} == {("PUT", "flights")}
    assert len(target.connections) == 1


async def test_a_records_headers_are_those_of_its_request() -> None:
    headers = {
        "x-team": b"a",
        "Window-Start": b"2026",
        "traceparent": b"00-",
        "not a name": b"1",
        "content": "\u00fc\n".encode(),
        "long": b"a" * 1025,
        "x-key": b"mine",
    }
    target = HttpTarget()
    async with opened(target, headers={"X-Team": "flights"}, idempotencyHeader="X-Key") as lane:
        frame = build_frame([b"a"], array("q", [0]), ingest_time_us=0, headers=[headers])
        assert not (await lane.write([SinkFrame(frame, 1, 0, "out/in/0/1/")], END)).failures
    (request,) = target.requests
    assert request.headers["x-window-start"] == "2026"
    assert (request.headers["X-Team"], request.headers["X-Key"]) == ("flights", "out/in/0/1/0"), "the sink's own count"
    assert not {name.lower() for name in request.headers} & {"traceparent", "x-content", "x-long", "not a name"}


async def test_batches_are_lines_and_are_cut_the_same_whatever_part_of_a_frame_is_given() -> None:
    target = HttpTarget()
    async with opened(target, batch={"maxRecords": 4}) as lane:
        whole = sink_frame(letters("abcdefghij"), 7)
        await lane.write([whole], END)
        first = [(request.key, request.body) for request in target.requests]
        assert first[0] == ("out/in/0/7/0..out/in/0/7/3", b"a\nb\nc\nd\n")
        assert first[2] == ("out/in/0/7/8..out/in/0/7/9", b"i\nj\n")
        assert target.requests[0].headers["Content-Type"] == "application/x-ndjson"
        # Tried again: only the last six of ten.
        target.requests.clear()
        await lane.write([whole.take(range(4, 10))], END)
        assert [(request.key, request.body) for request in target.requests] == first[1:]
        # Without the first of a batch, that batch is another one, and those behind it are not.
        target.requests.clear()
        await lane.write([whole.take(range(5, 10))], END)
        cut = ("out/in/0/7/5..out/in/0/7/7", b"f\ng\nh\n")
        assert [(request.key, request.body) for request in target.requests] == [cut, first[2]]


async def test_a_batch_is_bounded_in_bytes_and_a_large_record_goes_alone() -> None:
    target, large = HttpTarget(), b"d" * 3_000_000
    async with opened(target, batch={"maxRecords": 100, "maxBytes": 10}) as lane:
        await lane.write([sink_frame([b"aaaa", b"bbbb", b"c", large, b"e"], 1)], END)
    assert [request.body for request in target.requests] == [b"aaaa\nbbbb\n", b"c\n", large + b"\n", b"e\n"]


async def test_values_of_several_lines_cannot_break_a_batch() -> None:
    target = HttpTarget()
    async with opened(target, batch={"maxRecords": 10}) as lane:
        result = await lane.write([sink_frame([b'{\n"a": 1}', b"two\nlines", b"c"], 1)], END)
    assert [request.body for request in target.requests] == [b'{ "a": 1}\nc\n']
    ((failure,),) = result.failures
    assert (failure.index, failure.retryable, failure.reason) == (1, False, "value has a line break and is not JSON")


async def test_what_the_target_refuses_is_not_tried_again_and_does_not_stop_the_others() -> None:
    target = HttpTarget(lambda request: 400 if request.body == b"b" else 200)
    async with opened(target) as lane:
        result = await lane.write([sink_frame(letters("abc"), 1)], END)
    assert [request.body for request in target.requests] == letters("abc")
    assert result.failures == [[SinkFailure(1, "HTTP status 400", retryable=False, detail="says 400")]]


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504])
async def test_nothing_overtakes_a_record_that_is_to_be_tried_again(status: int) -> None:
    target = HttpTarget(lambda request: status if request.body == b"b" else 200)
    async with opened(target) as lane:
        result = await lane.write([sink_frame(letters("abc"), 1), sink_frame(letters("d"), 2)], END)
    assert [request.body for request in target.requests] == letters("ab")
    (first, waiting), (behind,) = result.failures
    assert (first.index, first.reason, first.retryable, first.attempted) == (1, f"HTTP status {status}", True, True)
    assert [(f.index, f.retryable, f.attempted) for f in (waiting, behind)] == [(2, True, False), (0, True, False)]


async def test_a_redirect_is_not_followed() -> None:
    target = HttpTarget(lambda request: web.Response(status=302, headers={"Location": "/elsewhere"}))
    async with opened(target) as lane:
        result = await lane.write([sink_frame(letters("a"), 1)], END)
    assert len(target.requests) == 1
    assert [(f.reason, f.retryable) for f in result.failures[0]] == [("HTTP status 302", False)]


async def test_the_target_says_when_to_come_again() -> None:
    target = HttpTarget(lambda request: web.Response(status=429, headers={"Retry-After": "7"}))
    async with opened(target) as lane:
        result = await lane.write([sink_frame(letters("a"), 1)], END)
    assert result.failures[0][0].delay_s == 7


def test_retry_after_may_be_a_date_and_may_be_nonsense() -> None:
    now = datetime(2024, 1, 1, tzinfo=UTC)
    texts = {
        format_datetime(datetime(2024, 1, 1, 0, 0, 30, tzinfo=UTC), usegmt=True): 30,
        format_datetime(datetime(2023, 1, 1, tzinfo=UTC), usegmt=True): 0,
        "9" * 30: 3600,
        "soon": 0,
        "-5": 0,
        "": 0,
    }
    assert {text: retry_after_s({"Retry-After": text}, now) for text in texts} == texts
    assert retry_after_s({}, now) == 0


async def test_a_connection_broken_off_counts_as_not_written() -> None:
    target = HttpTarget(lambda request: None)
    async with opened(target) as lane:
        result = await lane.write([sink_frame(letters("ab"), 1)], END)
        assert [(f.reason, f.retryable, f.attempted) for f in result.failures[0]] == [
            ("target cannot be reached", True, True)
        ] * 2
        target.answer = lambda request: 200
        assert not (await lane.write([sink_frame(letters("ab"), 1)], END)).failures
    keys = [request.key for request in target.requests if request.body == b"a"]
    assert len(set(keys)) == 1


async def test_a_large_body_is_sent_once_in_each_attempt_and_always_whole() -> None:
    """aiohttp repeats a PUT by itself; some versions then send only what they have not yet read of a large body."""
    large = b"".join(b"%08d" % n for n in range(400_000))
    target = HttpTarget()
    async with opened(target, method="PUT") as lane:
        assert not (await lane.write([sink_frame(letters("a"), 1)], END)).failures
        target.answer = lambda request: None
        for _ in range(2):
            ((failure,),) = (await lane.write([sink_frame([large], 2)], END)).failures
            assert (failure.reason, failure.retryable) == ("target cannot be reached", True)
        target.answer = lambda request: 200
        assert not (await lane.write([sink_frame([large], 2)], END)).failures
    assert [len(request.body) for request in target.requests] == [1, *([len(large)] * 3)]
    assert all(request.body == large for request in target.requests[1:])


async def test_a_target_that_went_away_and_came_back_is_reached_again() -> None:
    target = HttpTarget()
    async with opened(target) as lane:
        await lane.write([sink_frame(letters("a"), 1)], END)
        spec_port = target.port
    assert target.port == spec_port
    spec = HttpSink.model_validate({"url": target.url})
    async with asyncio.timeout(20), open_http_sink(spec, Path(), "p/out/in.0") as lane:
        result = await lane.write([sink_frame(letters("b"), 2)], END)
        assert [f.reason for f in result.failures[0]] == ["target cannot be reached"]
        async with open_http_target(target):
            assert not (await lane.write([sink_frame(letters("b"), 2)], END)).failures
    assert [request.body for request in target.requests] == letters("ab")


async def test_a_slow_target_is_given_up_after_the_timeout() -> None:
    target = HttpTarget(held=asyncio.Event())
    async with opened(target, timeout="50ms") as lane:
        result = await lane.write([sink_frame(letters("ab"), 1)], END)
        assert target.held is not None
        target.held.set()
    first, waiting = result.failures[0]
    assert (first.reason, first.detail) == ("target did not answer in time", "within 0.05 s")
    assert not waiting.attempted


async def test_a_long_answer_does_not_matter() -> None:
    target = HttpTarget(lambda request: web.Response(body=b"x" * 1_000_000))
    async with opened(target) as lane:
        assert not (await lane.write([sink_frame(letters("abc"), 1)], END)).failures
    assert [request.body for request in target.requests] == letters("abc")


async def test_the_trace_goes_on_in_the_target() -> None:
    target = HttpTarget()
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with opened(target) as lane:
        item = sink_frame(letters("a"), 1)
        frame = item.frame.traced(traceparent)
        await lane.write([type(item)(frame, item.sequence, 0, item.id_prefix)], END)
        await lane.write([item], END)
    assert [request.headers.get("traceparent") for request in target.requests] == [traceparent, None]


@pytest.mark.parametrize(
    "options", [{"headers": {"X-Bad": "a\r\nX-More: b"}}, {"headers": {"X Bad": "a"}}, {"idempotencyHeader": "Key:"}]
)
async def test_headers_that_cannot_be_sent_are_the_users_to_change(options: dict[str, object]) -> None:
    with raises(codes.WEB_SETTINGS):
        async with opened(HttpTarget(), **options):
            pass


async def test_what_a_header_or_the_url_refers_to_is_looked_up_when_the_sink_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = HttpTarget()
    async with open_http_target(target):
        monkeypatch.setenv("SINK_TOKEN", "s3cret")
        (tmp_path / "target").write_text(f"{target.url}\n")
        headers = {"Authorization": {"env": "SINK_TOKEN", "prefix": "Bearer "}}
        spec = HttpSink.model_validate({"url": {"file": "target"}, "headers": headers})
        async with asyncio.timeout(20), open_http_sink(spec, tmp_path, "p/out/in.0") as lane:
            assert not (await lane.write([sink_frame(letters("a"), 1)], END)).failures
    assert [request.headers["Authorization"] for request in target.requests] == ["Bearer s3cret"]
    assert "s3cret" not in repr(spec)


async def test_no_failure_repeats_a_secret_that_the_target_repeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def repeated(request: Request) -> web.Response:
        known = f"{request.headers['Authorization']} {request.headers['X-Key']}"
        return web.Response(status=403, text=f"/records?key=of-url does not know {known} {'x' * 400}")

    target = HttpTarget(repeated)
    async with open_http_target(target):
        for name, value in (("TOKEN", "of-auth"), ("KEY", "of-header"), ("URL", f"{target.url}?key=of-url")):
            monkeypatch.setenv(name, value)
        for auth, shown in (({"token": {"env": "TOKEN"}}, "Bearer …"), ({"basic": BASIC}, "Basic …")):
            headers = {"X-Key": {"env": "KEY", "prefix": "Key "}}
            spec = HttpSink.model_validate({"url": {"env": "URL"}, "headers": headers, "auth": auth})
            async with asyncio.timeout(20), open_http_sink(spec, tmp_path, "p/out/in.0") as lane:
                result = await lane.write([sink_frame(letters("a"), 1)], END)
            [[failure]] = result.failures
            assert failure.detail.startswith(f"/…?… does not know {shown} Key … xxx")
            assert len(failure.detail) == 300


async def test_no_failure_has_the_url_of_a_target_that_does_not_speak_http(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"220 mail.example.org ESMTP\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        monkeypatch.setenv("URL", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hooks/s3cret")
        spec = HttpSink.model_validate({"url": {"env": "URL"}})
        async with asyncio.timeout(20), open_http_sink(spec, tmp_path, "p/out/in.0") as lane:
            result = await lane.write([sink_frame(letters("a"), 1)], END)
    [[failure]] = result.failures
    assert (failure.reason, failure.retryable) == ("target cannot be reached", True)
    assert "(status 400)" in failure.detail
    assert "s3cret" not in failure.detail


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"headers": {"A": {"env": "NO_SUCH_TOKEN"}}}, "http sink: the header 'A': .* NO_SUCH_TOKEN is not set"),
        ({"url": {"file": "nowhere"}}, "http sink: url: there is no file .*nowhere"),
        ({"url": {"file": "no-url"}}, "is not a usable URL"),
        ({"headers": {"A": {"file": "two-lines"}}}, "http sink: the header 'A' cannot be sent"),
    ],
)
async def test_a_reference_that_leads_nowhere_is_the_users_to_mend_and_no_message_holds_a_value(
    tmp_path: Path, options: dict[str, object], reason: str
) -> None:
    (tmp_path / "no-url").write_text("s3cret")
    (tmp_path / "two-lines").write_text("s3cret\nmore\n")
    spec = HttpSink.model_validate({"url": "http://127.0.0.1:1/", **options})
    with pytest.raises(UserError, match=reason) as caught:
        async with open_http_sink(spec, tmp_path, "p/out/in.0"):
            pass
    assert "s3cret" not in str(caught.value)


async def test_any_id_of_a_source_makes_a_key() -> None:
    target = HttpTarget()
    ids = ["plain 50%", "zwei\nzeilen", "schl\u00fcssel\n", "\u00fc%0A"]
    async with opened(target) as lane:
        assert not (await lane.write([sink_frame(letters("abcd"), 1, ids=ids)], END)).failures
    keys = [request.key for request in target.requests]
    assert keys == ["plain 50%", "zwei%0Azeilen", "schl%C3%BCssel%0A", "%C3%BC%250A"]
