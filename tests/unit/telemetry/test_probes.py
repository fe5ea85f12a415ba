"""The endpoint for metrics and probes: what it answers, and clients that misuse it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from millstream.clock import SystemClock
from millstream.limits import HTTP_HEAD_BYTES_MAX, HTTP_HEADERS_MAX, METRICS_CLIENT_CONNECTIONS_MAX
from millstream.ports import free_ports
from millstream.telemetry.endpoint import Answer, Probes, open_endpoint
from millstream.wire.accepting import NO_HEAD
from millstream.wire.connections import ConnectionLimits, Connections, Lease, Refusals

GET = b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.fixture
async def port() -> AsyncIterator[int]:
    number = free_ports(1)
    async with open_endpoint("127.0.0.1", number, lambda: b"a 1\n", lambda: "not yet", SystemClock()):
        yield number


async def said(reader: asyncio.StreamReader, *, has_body: bool = True) -> tuple[int, dict[str, str], bytes]:
    """The next answer."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.strip().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    body = await reader.readexactly(int(headers["Content-Length"])) if has_body else b""
    return int(first.split()[1]), headers, body


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    async with asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            yield reader, writer
        finally:
            writer.close()


async def test_requests_of_one_connection_are_answered_in_order_however_they_are_cut(port: int) -> None:
    async with connected(port) as (reader, writer):
        sent = GET % b"/metrics" + GET % b"/livez?a=b" + b"HEAD /metrics HTTP/1.1\r\n\r\n" + GET % b"/readyz"
        for at in range(0, len(sent), 7):
            writer.write(sent[at : at + 7])
            await asyncio.sleep(0)
        status, headers, body = await said(reader)
        assert (status, body) == (200, b"a 1\n")
        assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert (await said(reader))[::2] == (200, b"ok\n")
        assert (await said(reader, has_body=False))[1]["Content-Length"] == "4"
        assert (await said(reader))[::2] == (503, b"not yet\n")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (GET % b"/", 404),
        (GET % b"http://a", 404),
        (GET % b"ftp://a/metrics", 404),
        (b"DELETE /metrics HTTP/1.1\r\n\r\n", 405),
        (b"GET /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 400),
        (b"GET /metrics HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 0\r\n\r\nabcde", 400),
        (b"GET /metrics HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"GET  /metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET /metrics HTTP/2.0\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\na b: c\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\na: \x00\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * (HTTP_HEADERS_MAX + 1) + b"\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\na: " + b"b" * HTTP_HEAD_BYTES_MAX, 431),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
    ],
)
async def test_what_is_not_answered(port: int, request_: bytes, status: int) -> None:
    async with connected(port) as (reader, writer):
        writer.write(request_)
        found, _, _ = await said(reader)
        assert found == status
        if status in (400, 431):
            assert await reader.read() == b""
    async with connected(port) as (reader, writer):
        writer.write(b"GET /livez HTTP/1.0\r\n\r\n")
        assert (await said(reader))[::2] == (200, b"ok\n")
        assert await reader.read() == b""


@pytest.mark.parametrize(
    ("target", "status"),
    [
        (b"http://a/readyz", 503),
        (b"HTTPS://b:9090/readyz?c=http://d/livez", 503),
        (b"/%72eadyz", 503),
        (b"/livez%3Fa", 404),
        (b"//a/readyz", 404),
    ],
)
async def test_a_target_may_be_a_whole_address_or_encoded(port: int, target: bytes, status: int) -> None:
    async with connected(port) as (reader, writer):
        writer.write(GET % target)
        assert (await said(reader))[0] == status


async def test_a_connection_closes_if_one_of_several_headers_says_so(port: int) -> None:
    async with connected(port) as (reader, writer):
        writer.write(b"GET /livez HTTP/1.1\r\nConnection: close\r\nConnection: te\r\n\r\n")
        assert (await said(reader))[1]["Connection"] == "close"
        assert await reader.read() == b""


async def test_one_client_gets_no_more_connections_than_its_limit(port: int) -> None:
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(METRICS_CLIENT_CONNECTIONS_MAX)]
    try:
        for reader, writer in connections:
            writer.write(GET % b"/livez")
            assert (await said(reader))[0] == 200
        # The oldest one gives way, so clients that keep connections open keep no probe out.
        async with connected(port) as (reader, writer):
            writer.write(GET % b"/livez")
            assert (await said(reader))[0] == 200
        with suppress(ConnectionError):
            assert await connections[0][0].read() == b""
        connections[1][1].write(GET % b"/livez")
        assert (await said(connections[1][0]))[0] == 200
    finally:
        for _, writer in connections:
            writer.close()


async def test_an_error_of_the_metrics_is_answered_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> bytes:
        raise RuntimeError("no metrics")

    number = free_ports(1)
    async with (
        open_endpoint("127.0.0.1", number, fail, lambda: None, SystemClock()),
        connected(number) as (
            reader,
            writer,
        ),
    ):
        writer.write(GET % b"/metrics" + GET % b"/readyz")
        assert (await said(reader))[0] == 500
        assert (await said(reader))[0] == 200
    assert "no metrics" in caplog.text


class Pipe(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False
        self.reads = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


def opened(
    make: Callable[[], Answer], limits: ConnectionLimits
) -> tuple[asyncio.Protocol, Pipe, Refusals, Connections]:
    refusals, connections = Refusals("here", SystemClock()), Connections(limits)
    lease = connections.admit("10.0.0.1")
    assert isinstance(lease, Lease)
    connection, pipe = Probes({"/a": make}, limits, refusals).connection(lease), Pipe()
    connection.connection_made(pipe)
    return connection, pipe, refusals, connections


@pytest.mark.guarantee("I8")
async def test_a_client_that_reads_nothing_is_answered_no_further() -> None:
    connection, pipe, _, connections = opened(lambda: Answer(b"x"), ConnectionLimits())
    connection.pause_writing()
    connection.data_received(GET % b"/a" * 2)
    assert (pipe.written, pipe.reads) == (b"", False)
    connection.resume_writing()
    assert (pipe.written.count(b"200 OK"), pipe.reads) == (2, True)
    connection.connection_lost(None)
    assert connections.count == 0


@pytest.mark.guarantee("I8")
async def test_a_silent_client_is_closed() -> None:
    limits = ConnectionLimits(head_timeout_s=0.01, idle_timeout_s=0.01)
    connection, pipe, refusals, _ = opened(lambda: Answer(b"x"), limits)
    idle, idle_pipe, _, _ = opened(lambda: Answer(b"x"), limits)
    idle.data_received(GET % b"/a")
    async with asyncio.timeout(10):
        while not (pipe.closed and idle_pipe.closed):  # noqa: ASYNC110 - a transport has no event for it
            await asyncio.sleep(0.01)
    assert pipe.written.startswith(b"HTTP/1.1 408 ")
    assert refusals.counts == {NO_HEAD: 1}
    assert idle_pipe.written.count(b"HTTP/1.1") == 1
    for one in (connection, idle):
        one.connection_lost(None)


@pytest.mark.parametrize("empty", [b"\r\n", b"\r\n\r\n", b"\r"])
async def test_an_empty_line_after_a_request_is_no_request(empty: bytes) -> None:
    limits = ConnectionLimits(idle_timeout_s=0.01)
    connection, pipe, refusals, _ = opened(lambda: Answer(b"x"), limits)
    connection.data_received(GET % b"/a" + empty)
    connection.data_received(GET % b"/a" + empty)
    async with asyncio.timeout(10):
        while not pipe.closed:  # noqa: ASYNC110 - a transport has no event for it
            await asyncio.sleep(0.01)
    assert (pipe.written.count(b"200 OK"), pipe.written.count(b"HTTP/1.1")) == (2, 2)
    assert refusals.counts == {}
    connection.connection_lost(None)


@pytest.mark.process
def test_a_worker_with_an_endpoint_loads_no_http_server_and_no_exporter() -> None:
    imports = "import millstream_worker.__main__, millstream.telemetry.endpoint, millstream.telemetry.export, sys"
    unused = ["aiohttp", "opentelemetry.exporter.otlp.proto.grpc", "opentelemetry.sdk.trace", "requests"]
    ended = subprocess.run(
        [sys.executable, "-c", f"{imports}; print([name for name in {unused} if name in sys.modules])"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert ended.stdout.strip() == "[]"
