"""The HTTP source against strangers: those who hold connections, those who cannot show who they are, and bad requests.

One client of these tests is 127.0.0.1, where the honest sender is; the stranger connects from 127.0.0.2.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from millstream.clock import SystemClock
from millstream.errors import UserError
from millstream.limits import HTTP_HEAD_TIMEOUT_S, HTTP_IDLE_TIMEOUT_S
from millstream.record import SOURCE_INPUT, LaneId
from millstream.spec.models import Source
from millstream.wire.connections import TOO_MANY, TOO_MANY_OF_CLIENT, ConnectionLimits, Connections, client_of
from millstream_connectors.http.settings import HttpSource
from millstream_connectors.http.source import lane as http_source
from millstream_connectors.http.source.lane import HttpSourceLane, open_http
from millstream_connectors.opening_sources import extraction_of
from millstream_reader.connector import SourceOwner

LIMIT_S = 90.0
STRANGER = "127.0.0.2"
LANE = LaneId("in", SOURCE_INPUT, 0)


@asynccontextmanager
async def serving(
    spec: dict[str, Any] | None = None,
    base_dir: Path = Path(),
    *,
    head_timeout_s: float = HTTP_HEAD_TIMEOUT_S,
    idle_timeout_s: float = HTTP_IDLE_TIMEOUT_S,
) -> AsyncIterator[HttpSourceLane]:
    """A lane that commits at once what it is sent."""
    source = Source.model_validate({"http": {"port": 0, **(spec or {})}})
    assert isinstance(source.settings, HttpSource)
    owner = SourceOwner(LANE, 1, b"", base_dir, SystemClock(), extraction_of(source))
    limits = partial(ConnectionLimits, head_timeout_s=head_timeout_s, idle_timeout_s=idle_timeout_s)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http_source, "ConnectionLimits", limits)
        async with asyncio.timeout(LIMIT_S), open_http(source.settings, owner) as lane:

            async def commit() -> None:
                while True:
                    batch = await lane.read(4096, 1 << 20, 1.0)
                    await lane.committed(batch.position)

            committing = asyncio.ensure_future(commit())
            try:
                yield lane
            finally:
                committing.cancel()


class Client:
    """Bytes to and from a lane."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, text: str | bytes) -> None:
        self._writer.write(text.encode() if isinstance(text, str) else text)
        await self._writer.drain()

    async def answer(self) -> tuple[int, dict[str, str], Any]:
        """Status, headers by lower-case names, and the JSON of the next answer."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = await self._reader.readexactly(int(headers["content-length"]))
        return int(head[0].split()[1]), headers, json.loads(body)

    async def post(self, body: str = "x", *headers: str) -> int:
        """The status."""
        await self.send(request(body, *headers))
        return (await self.answer())[0]

    async def closed(self) -> None:
        """Wait until the other side has closed the connection."""
        with suppress(ConnectionError):
            while await self._reader.read(65536):
                pass


def request(body: str, *headers: str) -> str:
    lines = ["POST /vertices/in HTTP/1.1", "Host: h", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join((*lines, "", body))


@asynccontextmanager
async def connected(
    lane: HttpSourceLane, source: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Client]:
    port = int(lane.address.split(":")[2].split("/")[0])
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, local_addr=(source, 0), ssl=tls, server_hostname="localhost" if tls is not None else None
    )
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


async def until(condition: Callable[[], bool]) -> None:
    """Within the limit of `serving`."""
    for _ in count():
        if condition():
            return
        await asyncio.sleep(0.01)


def refused(lane: HttpSourceLane, reason: str) -> int:
    return lane.listener().refused.get(reason, 0)


# Connections


@pytest.mark.guarantee("I8")
async def test_an_honest_client_is_served_while_a_stranger_drips_bytes(caplog: pytest.LogCaptureFixture) -> None:
    async with serving({"connectionsMax": 40, "clientConnectionsMax": 20}, head_timeout_s=1.0) as lane:

        async def drip() -> None:
            """A byte a tenth of a second, as long as the connection lives; then another connection."""
            text = request("x" * 1000, "X-Slow: " + "y" * 4000)
            while True:
                with suppress(OSError):
                    async with connected(lane, STRANGER) as client, asyncio.TaskGroup() as watching:
                        closed = watching.create_task(client.closed())
                        for byte in text:
                            if closed.done():
                                break
                            await client.send(byte)
                            await asyncio.wait([closed], timeout=0.1)
                        closed.cancel()
                await asyncio.sleep(0.1)

        dripping = [asyncio.ensure_future(drip()) for _ in range(60)]
        try:
            await until(lambda: refused(lane, TOO_MANY_OF_CLIENT) >= 40)
            for number in range(20):
                async with connected(lane) as client:
                    assert await client.post(str(number)) == 200
            assert lane.listener().connections <= 21, "the stranger's, and the last one of the honest client"
            # The slow ones lose their places, too, where no new ones need them.
            for task in dripping[10:]:
                task.cancel()
            await until(lambda: refused(lane, "no request in time") >= 10)
            async with connected(lane) as client:
                assert await client.post("last") == 200
        finally:
            for task in dripping:
                task.cancel()
            await asyncio.wait(dripping)
        await until(lambda: lane.listener().connections == 0)
    told = [record.getMessage() for record in caplog.records if "refuses" in record.getMessage()]
    assert len(told) == 1, "a line a minute, however many there are"
    assert STRANGER in told[0]


@pytest.mark.guarantee("I8")
async def test_too_many_connections_are_answered_at_once_and_take_nobodys_place() -> None:
    async with serving({"connectionsMax": 4, "clientConnectionsMax": 2}) as lane:
        async with connected(lane, STRANGER) as first, connected(lane, STRANGER), connected(lane, STRANGER) as third:
            # The oldest one that has shown nothing gives way.
            status, headers, told = await first.answer()
            assert (status, headers["retry-after"], headers["connection"]) == (429, "1", "close")
            assert told == {"error": "too many connections of one client; try again"}
            await first.closed()
            async with connected(lane) as one, connected(lane) as two:
                assert [await one.post(), await two.post(), await third.post()] == [200, 200, 200]
                async with connected(lane, "127.0.0.3") as fifth:
                    assert await fifth.post() == 200
                    # All have sent something.
                    async with connected(lane, "127.0.0.4") as sixth:
                        status, headers, _ = await sixth.answer()
                        assert (status, headers["retry-after"]) == (503, "1")
        await until(lambda: lane.listener().connections == 0)
        async with connected(lane, STRANGER) as again:
            assert await again.post() == 200
        assert lane.listener().refused == {TOO_MANY_OF_CLIENT: 1, TOO_MANY: 2}


@pytest.mark.guarantee("I8")
async def test_strangers_at_the_address_of_senders_take_no_place_of_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENS", "one\ntwo")
    limits = {"connectionsMax": 12, "clientConnectionsMax": 4, "auth": {"token": {"env": "TOKENS"}}}
    async with serving(limits) as lane, AsyncExitStack() as stack:
        of_one = [await stack.enter_async_context(connected(lane)) for _ in range(4)]
        assert [await client.post("a", "Authorization: Bearer one") for client in of_one] == [200] * 4
        for _ in range(3):
            # More than all places, from the same address, silent or with a wrong token.
            for number in range(20):
                silent = await stack.enter_async_context(connected(lane))
                if number % 2:
                    await silent.send(request("x", "Authorization: Bearer wrong"))
            assert [await client.post("b", "Authorization: Bearer one") for client in of_one] == [200] * 4
            async with connected(lane) as other:
                assert await other.post("c", "Authorization: Bearer two") == 200
            # A sender has a limit of its own.
            async with connected(lane) as fifth:
                assert await fifth.post("d", "Authorization: Bearer one") == 429


@pytest.mark.guarantee("I8")
@pytest.mark.parametrize("turns", range(8))
async def test_senders_get_an_answer_whenever_the_source_stops(turns: int, caplog: pytest.LogCaptureFixture) -> None:
    senders: list[socket.socket] = []
    try:
        async with serving() as lane:
            port = int(lane.address.split(":")[2].split("/")[0])
            for _ in range(10):
                sender = socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)
                sender.sendall(request("x").encode())
                senders.append(sender)
                # They wait to be accepted, are being accepted, or are in progress.
                for _ in range(turns):
                    await asyncio.sleep(0)
        answers = [await asyncio.to_thread(sender.recv, 65536) for sender in senders]
        assert {answer.split()[1] for answer in answers} <= {b"200", b"503"}
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)
    finally:
        for sender in senders:
            sender.close()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_connections_stay_below_what_the_process_may_open() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Both ends are in this process, beside what it has open already.
    most = 256 + len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        async with serving() as lane:
            port = int(lane.address.split(":")[2].split("/")[0])
            strangers: list[asyncio.StreamWriter] = []
            try:
                for number in range(90):
                    address = (f"127.0.1.{number // 30}", 0)
                    strangers.append((await asyncio.open_connection("127.0.0.1", port, local_addr=address))[1])
                await until(lambda: sum(lane.listener().refused.values()) + lane.listener().connections == 90)
                assert lane.listener().connections <= most // 2
                async with connected(lane) as client:
                    assert await client.post() == 200
            finally:
                for writer in strangers:
                    writer.transport.abort()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.guarantee("I8")
async def test_idle_and_silent_connections_are_closed() -> None:
    async with serving(head_timeout_s=0.3, idle_timeout_s=0.6) as lane:
        async with connected(lane) as silent:
            status, _, told = await silent.answer()
            assert (status, told) == (408, {"error": "no request came within 0.3 s"})
            await silent.closed()
        async with connected(lane) as client:
            assert await client.post() == 200
            await client.closed()
        # The first byte of another head does not keep it open.
        async with connected(lane) as client:
            assert await client.post() == 200
            await client.send("POST /vertices/in HT")
            await client.closed()
        await until(lambda: lane.listener().connections == 0)


@pytest.mark.guarantee("I8")
async def test_a_body_slower_than_the_least_rate_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_source, "HTTP_BODY_GRACE_S", 0.5)
    monkeypatch.setattr(http_source, "HTTP_BODY_RATE_MIN", 1000)
    async with serving() as lane, connected(lane) as slow, connected(lane) as steady:
        await slow.send(request("")[:-2].replace("Length: 0", "Length: 1000") + "\r\n12345")
        await steady.send(request("").replace("Length: 0", "Length: 4000"))
        for _ in range(10):
            await steady.send("x" * 400)
            await asyncio.sleep(0.1)
        assert (await steady.answer())[0] == 200
        status, _, told = await slow.answer()
        assert status == 408
        assert "only 5 bytes of the body arrived" in told["error"]
        await slow.closed()
        assert refused(lane, "status 408") == 1


# Requests that two readers could read differently

CHUNKED = "Transfer-Encoding: chunked"
BAD = {
    "both lengths": f"POST /vertices/in HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n{CHUNKED}\r\n\r\n0\r\n\r\n",
    "two lengths": "POST /vertices/in HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "a length that is none": "POST /vertices/in HTTP/1.1\r\nHost: h\r\nContent-Length: +3\r\n\r\nabc",
    "a chunk size that is none": f"POST /vertices/in HTTP/1.1\r\nHost: h\r\n{CHUNKED}\r\n\r\nxyz\r\nabc\r\n0\r\n\r\n",
    "a negative chunk": f"POST /vertices/in HTTP/1.1\r\nHost: h\r\n{CHUNKED}\r\n\r\n-1\r\nabc\r\n0\r\n\r\n",
    "a chunk longer than its size": f"POST /vertices/in HTTP/1.1\r\nHost: h\r\n{CHUNKED}\r\n\r\n1\r\nabc\r\n0\r\n\r\n",
    "another encoding": "POST /vertices/in HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked, x\r\n\r\n0\r\n\r\n",
    "a folded header": "POST /vertices/in HTTP/1.1\r\nHost: h\r\nX-A: b\r\n c\r\nContent-Length: 1\r\n\r\na",
    "a space before the colon": "POST /vertices/in HTTP/1.1\r\nHost: h\r\nContent-Length : 1\r\n\r\na",
    "NUL in a header": "POST /vertices/in HTTP/1.1\r\nHost: h\r\nX-A: b\0c\r\nContent-Length: 1\r\n\r\na",
    "a bare carriage return": "POST /vertices/in HTTP/1.1\r\nHost: h\r\nX-A: b\rX-B: c\r\nContent-Length: 1\r\n\r\na",
    "too many headers": request("a", *(f"X-{number}: 1" for number in range(2000))),
    "a header too long": request("a", "X-Long: " + "x" * 20_000),
    "a line too long": "POST /" + "x" * 20_000 + " HTTP/1.1\r\nHost: h\r\n\r\n",
    "no HTTP": "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
async def test_a_request_that_can_be_read_in_two_ways_is_refused_and_its_connection_closed(bad: str) -> None:
    async with serving() as lane, connected(lane) as client:
        # What follows would be taken for a second request where the first is read differently.
        await client.send(bad + request("smuggled"))
        status, _, told = await client.answer()
        assert status == 400
        assert "x" * 20 not in told["error"], "no echo"
        await client.closed()
        assert lane.pending() == 0


# Who sends


async def test_tokens_are_rotated_without_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream_connectors.http.source.replaced.REREAD_INTERVAL_S", 0.0)
    file = tmp_path / "token"
    file.write_text("old\n")
    async with serving({"auth": {"token": {"file": "token"}}}, tmp_path) as lane, connected(lane) as client:

        async def statuses() -> list[int]:
            return [await client.post("", f"Authorization: Bearer {token}") for token in ("old", "new", "ne")]

        assert await statuses() == [200, 401, 401]
        file.write_text("old\nnew\n")
        assert await statuses() == [200, 200, 401]
        file.write_text("new\n")
        assert await statuses() == [401, 200, 401]
        # What cannot be used does not take the place of what can.
        for text in ("", " \n\n"):
            file.write_text(text)
            assert await statuses() == [401, 200, 401]
        file.unlink()
        assert await statuses() == [401, 200, 401]
        assert refused(lane, "status 401") == 11


class Authority:
    """Makes certificates."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir()
        self._openssl("req", "-x509", "-subj", "/CN=authority", *self._new("ca"), "-out", self.path("ca.pem"))

    def path(self, name: str) -> str:
        return str(self._directory / name)

    def issue(self, name: str) -> None:
        """`<name>.pem` and `<name>.key`, for localhost."""
        more = ("-CA", self.path("ca.pem"), "-CAkey", self.path("ca.key"), "-addext", "subjectAltName=DNS:localhost")
        self._openssl("req", "-x509", "-subj", f"/CN={name}", *self._new(name), *more, "-out", self.path(f"{name}.pem"))

    def client(self, certificate: str | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.path("ca.pem"))
        if certificate is not None:
            context.load_cert_chain(self.path(f"{certificate}.pem"), self.path(f"{certificate}.key"))
        return context

    def _new(self, name: str) -> tuple[str, ...]:
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
        return (*curve, "-nodes", "-days", "2", "-keyout", self.path(f"{name}.key"))

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=20)


async def test_certificates_are_replaced_without_dropping_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream_connectors.http.source.replaced.REREAD_INTERVAL_S", 0.0)
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    for authority in (old, new):
        authority.issue("server")
    files = {name: tmp_path / name for name in ("chain", "key")}

    def install(authority: Authority, *names: str) -> None:
        for name, suffix in zip(names, ("pem", "key"), strict=False):
            files[name].write_text(Path(authority.path(f"server.{suffix}")).read_text())

    install(old, "chain", "key")
    tls = {"certificate": {"file": "chain"}, "key": {"file": "key"}}
    async with serving({"tls": tls}, tmp_path) as lane:
        assert lane.address.startswith("https://")
        async with connected(lane, tls=old.client()) as client:
            assert await client.post() == 200
            # Half replaced: the certificate does not fit the key, and the old ones stay.
            install(new, "chain")
            async with connected(lane, tls=old.client()) as other:
                assert await other.post() == 200
            install(new, "chain", "key")
            async with connected(lane, tls=new.client()) as other:
                assert await other.post() == 200
            with pytest.raises(ssl.SSLError):
                async with connected(lane, tls=old.client()):
                    pass
            assert await client.post() == 200, "a connection from before goes on"
        await until(lambda: refused(lane, "TLS handshakes") == 1)
        await until(lambda: lane.listener().connections == 0)


async def test_only_clients_with_a_certificate_get_in_where_an_authority_is_given(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    for name in ("server", "sender"):
        ours.issue(name)
    theirs.issue("sender")
    tls = {name: {"file": ours.path(file)} for name, file in (("certificate", "server.pem"), ("key", "server.key"))}
    async with serving({"tls": {**tls, "clientCa": {"file": ours.path("ca.pem")}}}) as lane:
        async with connected(lane, tls=ours.client("sender")) as client:
            assert await client.post() == 200
        foreign = ours.client()
        foreign.load_cert_chain(theirs.path("sender.pem"), theirs.path("sender.key"))
        for context in (ours.client(), foreign):
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                async with connected(lane, tls=context) as client:
                    await client.post()
        # Who never begins with the handshake loses the place as well.
        await until(lambda: refused(lane, "TLS handshakes") == 2)
    async with serving({"tls": tls}, head_timeout_s=0.3) as lane, connected(lane) as plain:
        await plain.closed()
        await until(lambda: lane.listener().connections == 0)


async def test_certificates_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    authority.issue("server")
    tls = {"certificate": {"file": authority.path("server.pem")}, "key": {"file": authority.path("ca.key")}}
    with pytest.raises(UserError, match=r"lane .*`tls`: the certificates cannot be used: KEY_VALUES_MISMATCH"):
        async with serving({"tls": tls}):
            pass


# Where it listens


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_listening_to_the_network_needs_to_know_who_sends_or_to_be_meant(host: str) -> None:
    with pytest.raises(ValidationError, match=r"other machines can reach .*do not have to authenticate"):
        HttpSource.model_validate({"host": host})
    for more in ({"allowUnauthenticated": True}, {"auth": {"token": {"env": "T"}}}):
        HttpSource.model_validate({"host": host, **more})
    for loopback in ("127.0.0.1", "127.9.9.9", "::1", "localhost"):
        HttpSource.model_validate({"host": loopback})


async def test_a_name_that_leads_to_the_network_is_refused_when_it_is_looked_up() -> None:
    # An empty part of an address is how a name looks to a check that looks nothing up.
    with pytest.raises(UserError, match=r"any machine, without authentication, on 0 \(0\.0\.0\.0\)"):
        async with serving({"host": "0"}):
            pass
    async with serving({"host": "0", "allowUnauthenticated": True}) as lane, connected(lane) as client:
        assert await client.post() == 200


def test_one_client_is_one_address_or_one_network_and_never_has_all_places() -> None:
    assert client_of("10.0.0.1") == client_of("::ffff:10.0.0.1") == "10.0.0.1"
    assert client_of("2001:db8:1:2::3") == client_of("2001:db8:1:2:ffff::9%eth0") != client_of("2001:db8:1:3::3")
    fitting = ConnectionLimits(500, 400).fitting(256)
    assert (fitting.connections_max, fitting.client_connections_max) == (128, 64)
    connections = Connections(ConnectionLimits(3, 2))
    leases = [connections.admit("10.0.0.1") for _ in range(3)]
    assert leases[2] == TOO_MANY_OF_CLIENT
    assert not isinstance(leases[0], str)
    for _ in range(2):
        leases[0].release()
    assert connections.count == 1
