"""Certificates and keys of clients, as they come in files: with names in comments, and with passphrases."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from aiohttp import ClientOSError
from asyncpg.exceptions import ConnectionDoesNotExistError

from millstream import codes
from millstream.codes.code import Code
from millstream.errors import MillstreamError
from millstream.spec.tls import ServerTls
from millstream.wire.certificates import Certificate, make_certificate
from millstream.wire.client_tls import context_of
from millstream_connectors.http.source.replaced import server_context
from millstream_connectors.postgres import client as postgres
from millstream_connectors.postgres.settings import PostgresServer
from millstream_connectors.redis_streams import client as redis
from millstream_connectors.redis_streams.settings import RedisServer
from millstream_connectors.shared.web.client import linked, translated
from millstream_connectors.shared.web.settings import WebServer
from millstream_connectors.sql import client as sql
from millstream_connectors.sql.settings import SqlDatabase
from tests.support.errors import raises

REFUSAL = "[SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca (_ssl.c:2580)"
POSTGRES = {"database": "d", "user": "u", "sslmode": "verify-full", "host": "127.0.0.1", "port": 1}
needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl, which makes certificates, is not installed"
)


@pytest.fixture
def made(tmp_path: Path) -> Certificate:
    made = make_certificate(tmp_path / "made")
    made.certificate.write_text(f"# Autorit\xe9 de certification\n{made.certificate.read_text()}", encoding="utf-8")
    return made


@pytest.fixture
def locked(made: Certificate, tmp_path: Path) -> Path:
    """The key with a passphrase."""
    key = tmp_path / "locked.key"
    command = ["openssl", "pkcs8", "-topk8", "-in", str(made.key), "-out", str(key), "-passout", "pass:passphrase"]
    subprocess.run(command, check=True, capture_output=True)
    return key


def _tls(**files: Path) -> ServerTls:
    return ServerTls.model_validate({name: {"file": str(path)} for name, path in files.items()})


def _postgres(**files: Path) -> PostgresServer:
    return PostgresServer.model_validate({**POSTGRES, **{name: {"file": str(path)} for name, path in files.items()}})


@needs_openssl
@pytest.mark.process
def test_authorities_may_have_names_that_are_not_ascii(made: Certificate, tmp_path: Path) -> None:
    context = context_of(_tls(ca=made.certificate), tmp_path, "test")
    assert len(context.get_ca_certs()) == 1
    texts = [made.certificate.read_text(), made.key.read_text(), made.certificate.read_text()]
    assert len(server_context(texts, "test").get_ca_certs()) == 1


@needs_openssl
@pytest.mark.process
async def test_authorities_of_postgres_may_have_names_that_are_not_ascii(made: Certificate, tmp_path: Path) -> None:
    with raises(codes.TARGET_AWAY):
        await postgres.Login(_postgres(sslRootCert=made.certificate), tmp_path, "test", "test").connect()


async def test_authorities_without_a_certificate_are_refused(tmp_path: Path) -> None:
    """Python would take no text for the authorities of the system."""
    empty = tmp_path / "empty.pem"
    empty.write_text("\xe9", encoding="utf-8")
    with raises(codes.CERTIFICATES, "there is no certificate in it"):
        context_of(_tls(ca=empty), tmp_path, "test")
    with raises(codes.CERTIFICATES, "there is no certificate in it"):
        await postgres.Login(_postgres(sslRootCert=empty), tmp_path, "test", "test").connect()


@needs_openssl
@pytest.mark.process
async def test_a_key_with_a_passphrase_is_refused_without_a_prompt(
    made: Certificate, locked: Path, tmp_path: Path
) -> None:
    with raises(codes.CERTIFICATES, "the private key has a passphrase"):
        context_of(_tls(certificate=made.certificate, key=locked), tmp_path, "test")
    with raises(codes.CERTIFICATES, "the private key has a passphrase"):
        await postgres.Login(_postgres(sslCert=made.certificate, sslKey=locked), tmp_path, "test", "test").connect()


def _lost(cause: BaseException | None) -> BaseException:
    error: BaseException = ConnectionDoesNotExistError("connection was closed in the middle of operation")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "own", "code", "said"),
    [
        (_lost(ssl.SSLError(1, REFUSAL)), True, codes.TARGET_REFUSES, "does not accept `sslCert`"),
        (_lost(None), True, codes.TARGET_AWAY, "cannot be used now, or does not accept `sslCert`: "),
        (ConnectionResetError("reset"), True, codes.TARGET_AWAY, "now, or does not accept `sslCert`: "),
        (_lost(None), False, codes.TARGET_AWAY, "cannot be used now: "),
        (ConnectionRefusedError("refused"), True, codes.TARGET_AWAY, "cannot be used now: "),
    ],
)
def test_postgres_does_not_accept_a_certificate_after_the_handshake(
    error: BaseException, own: bool, code: Code, said: str
) -> None:
    own_files = {"sslCert": Path("role.crt"), "sslKey": Path("role.key")}
    server = _postgres(**own_files) if own else _postgres()
    _says(postgres.Login(server, Path(), "test", "test").error_of(error, opening=True), code, said)


def test_other_servers_do_not_accept_a_certificate_after_the_handshake() -> None:
    from pymysql.err import OperationalError  # type: ignore[import-untyped]
    from redis.exceptions import ConnectionError as RedisLostError
    from sqlalchemy import exc

    said = f"Error while reading from h:6379 : (1, '{REFUSAL}')"
    server = RedisServer.model_validate({"url": "rediss://h"})
    _says(redis.error_of(RedisLostError(said), server, "test"), codes.TARGET_REFUSES, "does not accept")
    lost = OperationalError(2013, f"Lost connection to MySQL server during query ({REFUSAL})")
    database = SqlDatabase.model_validate({"url": "mysql+pymysql://h/d"})
    error = exc.OperationalError(None, None, lost)
    _says(sql.error_of(error, database, "test"), codes.TARGET_REFUSES, "does not accept")


async def test_a_web_server_does_not_accept_a_certificate_after_the_handshake(tmp_path: Path) -> None:
    settings = WebServer.model_validate({"url": "https://h/items"})
    async with linked(settings, tmp_path, "test", ("https",)) as link:
        with raises(codes.TARGET_REFUSES, "does not accept `tls.certificate`"), translated(link):
            raise ClientOSError(1, REFUSAL)
        with raises(codes.TARGET_AWAY, "cannot be reached"), translated(link):
            raise ClientOSError(104, "Connection reset by peer")


def _says(error: MillstreamError, code: Code, said: str) -> None:
    assert error.code is code
    assert said in str(error)
