"""How a client shows a real server who it is, and sees that it is the right one; faults are said, and no secret."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from millstream import codes
from millstream.buffers.jetstream.access_file import load_access
from millstream.buffers.jetstream.server import open_nats_server
from millstream.errors import InfrastructureError, UserError
from millstream.nats.access import BrokerAccess
from millstream.nats.client import nats_errors
from millstream.nats.connection import BrokerConnection, open_connection
from millstream.wire.certificates import make_certificate
from tests.nats_process import open_nats_process
from tests.support.children import together
from tests.support.errors import raises
from tests.support.nats_users import new_nkey, signed_user

SECRET = "s3cret-of-the-broker"
SERVER = 'listen: "127.0.0.1:-1"\njetstream {{ store_dir: "{store}" }}\n'


async def answers(access: BrokerAccess) -> bool:
    async with open_connection(access) as connection:
        return "error" not in await connection.api("INFO")


def written(directory: Path, text: str, name: str = "access.yaml") -> Path:
    path = directory / name
    path.write_text(text)
    return path


class TestCredentials:
    """Each way to say who one is."""

    async def test_a_password_in_a_file_or_the_environment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        written(tmp_path, f"{SECRET}\n", "password")
        monkeypatch.setenv("BROKER_PASSWORD", SECRET)
        users = f'authorization {{{{ users: [{{{{user: me, password: "{SECRET}"}}}}] }}}}\n'
        async with open_nats_process(tmp_path / "server", SERVER + users) as server:
            for place in ("{file: password}", "{env: BROKER_PASSWORD}"):
                path = written(tmp_path, f"user: me\npassword: {place}\n")
                assert await answers(load_access(path, server.url))

    async def test_a_token(self, tmp_path: Path) -> None:
        written(tmp_path, SECRET, "token")
        async with open_nats_process(
            tmp_path / "server", f'{SERVER}authorization {{{{ token: "{SECRET}" }}}}\n'
        ) as server:
            assert await answers(load_access(written(tmp_path, "token: {file: token}\n"), server.url))

    async def test_an_nkey(self, tmp_path: Path) -> None:
        nkeys = pytest.importorskip("nkeys", reason="the extra nkeys is not installed")
        seed, public = new_nkey(nkeys, nkeys.PREFIX_BYTE_USER)
        written(tmp_path, seed, "seed.nk")
        users = f"authorization {{{{ users: [{{{{nkey: {public}}}}}] }}}}\n"
        async with open_nats_process(tmp_path / "server", SERVER + users) as server:
            assert await answers(load_access(written(tmp_path, "nkey: {file: seed.nk}\n"), server.url))

    async def test_a_credentials_file(self, tmp_path: Path) -> None:
        nkeys = pytest.importorskip("nkeys", reason="the extra nkeys is not installed")
        conf, credentials = signed_user(nkeys)
        written(tmp_path, credentials, "me.creds")
        access_file = written(tmp_path, "creds: me.creds\n")
        async with open_nats_process(tmp_path / "server", conf) as server:
            access = load_access(access_file, server.url)
            async with open_connection(access) as connection:
                assert connection.is_up
        read = access.client_options()["user_credentials"]
        # Both for one connection, which needs a seed and its JWT.
        assert read.data == credentials
        written(tmp_path, "-----BEGIN NATS", "me.creds")
        assert read.data == credentials
        # The file while it is being replaced. A client that connects again would read it without an end.
        with pytest.raises(nats_errors.InvalidUserCredentialsError):
            assert read.data
        (tmp_path / "me.creds").unlink()
        with pytest.raises(nats_errors.InvalidUserCredentialsError):
            assert read.data

    async def test_wrong_ones_are_said_at_once_and_without_the_secret(self, tmp_path: Path) -> None:
        written(tmp_path, SECRET, "wrong")
        users = "authorization {{ users: [{{user: me, password: right}}] }}\n"
        async with open_nats_process(tmp_path / "server", SERVER + users) as server:
            for text, who in (
                ("user: me\npassword: {file: wrong}\n", "user me"),
                ("token: {file: wrong}\n", "the user of the token"),
                ("{}\n", "a client without credentials"),
            ):
                access = load_access(written(tmp_path, text), server.url)
                assert SECRET not in repr(access)
                begun_s = time.monotonic()
                with pytest.raises(
                    InfrastructureError, match=f"refuses {who} .Authorization Violation.*credentials"
                ) as raised:
                    # So long that a test would not wait for it to end by itself.
                    async with open_connection(access, timeout_s=1000.0):
                        pass
                assert SECRET not in str(raised.value)
                assert time.monotonic() - begun_s < 100


class TestTls:
    """Encrypted connections."""

    async def test_the_server_is_the_one_it_should_be(self, tmp_path: Path) -> None:
        async with open_tls(tmp_path) as url:
            assert await answers(load_access(written(tmp_path, "tls: {ca: server/server.pem}\n"), url))
            make_certificate(tmp_path / "other")
            for text in ("{}\n", "tls: {}\n", "tls: {ca: other/server.pem}\n"):
                with pytest.raises(
                    InfrastructureError, match=r"an encrypted connection.*self.signed certificate.*`tls`"
                ):
                    await answers(load_access(written(tmp_path, text), url))

    async def test_its_name_may_be_another_than_that_of_the_url(self, tmp_path: Path) -> None:
        async with open_tls(tmp_path, "broker.example.org") as url:
            named = "tls: {ca: server/server.pem, serverName: broker.example.org}\n"
            assert await answers(load_access(written(tmp_path, named), url))
            with raises(codes.BROKER_REFUSES, match=r"an encrypted connection.*127\.0\.0\.1"):
                await answers(load_access(written(tmp_path, "tls: {ca: server/server.pem}\n"), url))

    async def test_a_client_shows_its_certificate(self, tmp_path: Path) -> None:
        made = make_certificate(tmp_path / "client", "client")
        async with open_tls(tmp_path, more=f'ca_file: "{made.certificate}", verify: true') as url:
            own = "tls: {ca: server/server.pem, certificate: client/server.pem, key: client/server.key}\n"
            assert await answers(load_access(written(tmp_path, own), url))
            with pytest.raises(InfrastructureError):
                async with open_connection(
                    load_access(written(tmp_path, "tls: {ca: server/server.pem}\n"), url), timeout_s=2.0
                ):
                    pass

    async def test_nothing_is_told_to_a_server_that_offers_no_encryption(self, tmp_path: Path) -> None:
        written(tmp_path, SECRET, "password")
        text = "user: me\npassword: {file: password}\ntls: {}\n"
        async with open_nats_process(tmp_path / "server", SERVER + "debug: true\ntrace: true\n") as server:
            with raises(codes.BROKER_REFUSES, match=r"an encrypted connection.*it does not offer encryption"):
                await answers(load_access(written(tmp_path, text), server.url))
            assert "[CONNECT" not in (tmp_path / "server" / "log").read_text()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("user: me\n", "`user` and `password` belong together"),
        ("user: me\npassword: {file: p}\ntoken: {file: p}\n", "more than one kind of credentials: `user`, `token`"),
        ("user: me\npassword: secret\n", "password"),
        ("pasword: {file: p}\n", "unknown field `pasword`"),
        ("token: {file: nowhere}\n", "there is no file"),
        ("token: {env: NO_SUCH_VARIABLE}\n", "the environment variable NO_SUCH_VARIABLE is not set"),
        ("creds: p\n", "this is not the JWT and the seed of a user"),
        ("nkey: {file: p}\n", "this is not the seed of an NKey"),
        ("creds: nowhere.creds\n", "nowhere.creds cannot be read: No such file"),
        ("tls: {ca: nowhere.pem}\n", "the certificates cannot be used: No such file"),
        ("tls: {ca: p}\n", "the certificates cannot be used"),
        ("tls: {certificate: p}\n", "`certificate` and `key` belong together"),
        ("- user\n", "is not a mapping"),
        ("{\n", "not YAML"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(tmp_path: Path, text: str, said: str) -> None:
    written(tmp_path, SECRET, "p")
    with pytest.raises(UserError) as raised:
        load_access(written(tmp_path, text), "nats://127.0.0.1:4222")
    assert said in str(raised.value)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    "url", ["nats://me:s3cret@127.0.0.1:4222", "nats://t0ken@127.0.0.1", "me:s3cret@127.0.0.1:4222"]
)
def test_a_url_with_a_secret_is_refused_without_showing_it(url: str) -> None:
    with raises(codes.BROKER_ADDRESS, match="--broker-access") as raised:
        load_access(None, url)
    assert "s3cret" not in str(raised.value)
    assert "t0ken" not in str(raised.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:4222", "nats://", "nats://host:port"])
def test_a_url_of_something_else_is_refused(url: str) -> None:
    with raises(codes.BROKER_ADDRESS):
        load_access(None, url)


@asynccontextmanager
async def open_tls(directory: Path, name: str = "127.0.0.1", more: str = "") -> AsyncIterator[str]:
    made = make_certificate(directory / "server", name)
    tls = f'tls {{{{ cert_file: "{made.certificate}", key_file: "{made.key}", {more} }}}}\n'
    async with open_nats_process(directory / "server", SERVER + tls) as server:
        yield server.url


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_connection_that_is_closed_while_its_server_is_away_leaves_nothing_behind(
    tmp_path: Path, run: Callable[[Coroutine[Any, Any, None]], None], encrypted: bool
) -> None:
    """What went on trying to reach the server would keep the process from its end."""

    async def close(connection: BrokerConnection, looks: int) -> None:
        while connection.is_up:  # noqa: ASYNC110  # it is looked at in any state
            await asyncio.sleep(0)
        for _ in range(looks):
            await asyncio.sleep(0.001)
        await connection.close()

    async def main() -> None:
        async with asyncio.timeout(60), open_nats_server(tmp_path / "broker", tls=encrypted) as server:
            connections = [BrokerConnection(server.access, "test") for _ in range(12)]
            for connection in connections:
                await connection.open(30)
            await server.kill()
            await together(*(close(one, 8 * looks) for looks, one in enumerate(connections)))
            left = [task for task in asyncio.all_tasks() if "_attempt_reconnect" in repr(task)]
            assert not left

    run(main())
