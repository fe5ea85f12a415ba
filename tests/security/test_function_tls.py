"""Functions on another machine: the connection is encrypted, and each side sees that the other is the right one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest

from millstream import codes
from millstream.spec.loading import load
from millstream.udf.function import open_remote_function
from millstream.udf.protocol import ClientTls
from millstream.wire.certificates import Certificate, make_certificate
from millstream_udf.context import Context
from millstream_udf.loading import load as load_function
from millstream_udf.server import Server
from millstream_udf.thread import open_thread
from tests.mesh.conftest import PipelineFiles
from tests.support.errors import raises
from tests.support.pipelines import open_pipeline

RECORDS = 500


@pytest.fixture
def files(tmp_path: Path) -> PipelineFiles:
    return PipelineFiles(tmp_path)


@pytest.fixture
def server_side(tmp_path: Path) -> Certificate:
    return make_certificate(tmp_path / "certificates", "function.example", "server")


@pytest.fixture
def own(tmp_path: Path) -> Certificate:
    return make_certificate(tmp_path / "certificates", "vertex.example", "vertex")


@asynccontextmanager
async def serving(directory: Path, server_side: Certificate, own: Certificate | None) -> AsyncIterator[str]:
    """A function of the SDK behind a TLS port, which asks for the certificate `own`. Its address."""
    definition = load_function(f"{directory / 'functions.py'}:identity")
    pair = (server_side.key.read_bytes(), server_side.certificate.read_bytes())
    asked = own.certificate.read_bytes() if own is not None else None
    credentials = grpc.ssl_server_credentials([pair], asked, require_client_auth=own is not None)
    async with open_thread(definition, Context("p", "map")) as thread, asyncio.TaskGroup() as tasks:
        transport = grpc.aio.server()
        transport.add_generic_rpc_handlers((Server(definition, thread, tasks).handlers(),))
        port = transport.add_secure_port("127.0.0.1:0", credentials)
        await transport.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            await transport.stop(None)


async def test_a_function_behind_tls_gets_each_record_and_both_sides_know_each_other(
    files: PipelineFiles, tmp_path: Path, server_side: Certificate, own: Certificate
) -> None:
    async with serving(tmp_path, server_side, own) as address:
        named = {"ca": server_side.certificate, "certificate": own.certificate, "key": own.key}
        tls = ", ".join(f"{name}: {{file: {path.relative_to(tmp_path)}}}" for name, path in named.items())
        path = files.write(
            files.generator(RECORDS)
            + f"- name: map\n  udf: {{address: '{address}', tls: {{{tls}, serverName: function.example}}}}\n"
            + files.file_sink("out"),
            ["in -> map", "map -> out"],
        )
        async with open_pipeline(path, tmp_path / "broker") as run:
            await run.run()
    assert files.numbers("out") == list(range(RECORDS))


async def test_whoever_has_another_certificate_is_not_the_function(
    files: PipelineFiles, server_side: Certificate, own: Certificate
) -> None:
    async with serving(files.directory, server_side, own) as address:
        right = ClientTls(
            ca=server_side.certificate.read_bytes(),
            certificate=own.certificate.read_bytes(),
            key=own.key.read_bytes(),
            server_name="function.example",
        )
        async with open_remote_function(address, tls=right, timeout_s=30) as client:
            assert client.description.language == "python"
        for wrong in (
            None,
            ClientTls(),
            ClientTls(right.ca, right.certificate, right.key, "another.example"),
            ClientTls(right.ca, server_name=right.server_name),
            ClientTls(own.certificate.read_bytes(), right.certificate, right.key, right.server_name),
        ):
            with raises(codes.FUNCTION_NOT_STARTED):
                async with open_remote_function(address, tls=wrong, timeout_s=1):
                    pass


EXPOSED = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
    - name: pushed
      source: {http: {host: 10.0.0.1, auth: {token: {env: TOKEN}}}}
    - name: near
      udf: {address: "127.0.0.1:7000"}
    - name: far
      udf: {address: "functions.example:7000"}
    - name: encrypted
      udf: {address: "functions.example:7000", tls: {}}
    - name: sum
      udf:
        groupBy: {window: {fixed: {length: 1m}}}
        sql: {query: "SELECT reflect('java.lang.Math', 'random') AS r FROM window", unsafe: true}
    - name: out
      sink: {http: {url: "http://results.example/", headers: {Authorization: {env: TOKEN}}}}
    - name: safe
      sink: {http: {url: "https://results.example/", headers: {Authorization: {env: TOKEN}}}}
    - name: local
      sink: {http: {url: "http://localhost:80/", headers: {Authorization: {env: TOKEN}}}}
  edges:
    - {from: pushed, to: near}
    - {from: near, to: far}
    - {from: far, to: encrypted}
    - {from: encrypted, to: sum}
    - {from: sum, to: out}
    - {from: sum, to: safe}
    - {from: sum, to: local}
"""


def test_validate_points_at_what_others_may_read_and_at_what_may_do_everything(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(EXPOSED)

    notes = {note.path: note.what for note in load(path).notes}

    assert list(notes) == [
        "spec.vertices[0].source.http.auth",
        "spec.vertices[2].udf.address",
        "spec.vertices[4].udf.sql.unsafe",
        "spec.vertices[5].sink.http.url",
    ]
    assert "records are sent to functions.example unencrypted" in notes["spec.vertices[2].udf.address"]
