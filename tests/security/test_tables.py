"""Tables of others, and the catalogs that name them: nothing in them runs as code, or sends credentials elsewhere."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyiceberg
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from millstream import codes
from millstream.limits import CATALOG_ANSWER_BYTES_MAX
from millstream.record import Position
from millstream.wire.certificates import Certificate, make_certificate
from millstream_connectors.iceberg.client import open_catalog
from millstream_connectors.iceberg.files import DurableFileIO
from millstream_connectors.iceberg.imports import IMPORTING
from millstream_connectors.iceberg.settings import IcebergCatalog
from tests.contract.sinks.sink_targets import iceberg_spec
from tests.contract.sinks.table_lanes import numbers, opened, written
from tests.contract.sources.lanes import open_lane, read_to_end
from tests.support.errors import raises

CODE = "planted_by_a_table"
"""A module that shows that it was imported."""
CLASS = f"{CODE}.Class"
LOCATION = "write.py-location-provider.impl"
NAMING: dict[str, Any] = {
    "py-io-impl": CLASS,
    LOCATION: CLASS,
    "py-catalog-impl": CLASS,
    "s3.retry-strategy-impl": CLASS,
    "auth": {"type": "custom", "impl": CLASS, "custom": {}},
    "metrics-reporter-impl": CLASS,
    "rest.sigv4-enabled": "true",
    "rest.signing-name": "s3tables",
    "DEFAULT_SCHEME": "hdfs",
}
"""Properties with which a client of Iceberg loads code, or starts a JVM."""
COLUMNS = [{"name": "n", "type": "int"}, {"name": "text"}]
LOADING = re.compile(r"\b(eval|exec|compile|__import__|import_module|entry_points|Popen|system)\(")
PLACES = ("defaults", "overrides", "table", "credentials", "metadata")
"""Parts of a catalog's answers."""


@pytest.fixture(autouse=True)
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that can be imported."""
    directory = tmp_path / "code"
    directory.mkdir()
    (directory / f"{CODE}.py").write_text("class Class:\n    def __init__(self, *args, **named): ...\n")
    monkeypatch.syspath_prepend(str(directory))


def ran() -> bool:
    return sys.modules.pop(CODE, None) is not None


def local_table(directory: Path, properties: dict[str, Any]) -> Table:
    """A table with ten rows, whose metadata its author has changed."""
    uri, warehouse = f"sqlite:///{directory / 'catalog.db'}", str(directory / "warehouse")
    catalog = SqlCatalog("default", uri=uri, warehouse=warehouse)
    catalog.create_namespace_if_not_exists("shop")
    types: dict[str, pa.DataType] = {"n": pa.int64(), "text": pa.string()}
    table = catalog.create_table("shop.numbers", pa.schema(types))
    table.append(pa.table({"n": range(10), "text": [f"text {n}" for n in range(10)]}))
    metadata = Path(table.metadata_location.removeprefix("file://"))
    said = json.loads(metadata.read_text())
    said["properties"].update(properties)
    metadata.write_text(json.dumps(said))
    catalog.close()
    return table


@dataclass
class Catalog:
    """A REST catalog that answers as its operator likes."""

    table: Table
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    redirect: str = ""
    answered: list[str] = field(default_factory=list)

    async def config(self, request: web.Request) -> web.Response:
        self.answered.append(request.headers.get("Authorization", ""))
        if self.redirect:
            raise web.HTTPTemporaryRedirect(self.redirect)
        return web.json_response({name: self.parts.get(name, {}) for name in ("defaults", "overrides")})

    async def load(self, request: web.Request) -> web.Response:
        metadata = json.loads(self.table.metadata.model_dump_json())
        metadata["properties"].update(self.parts.get("metadata", {}))
        credentials = [{"prefix": "", "config": self.parts["credentials"]}] if "credentials" in self.parts else []
        answer = {
            "metadata-location": self.table.metadata_location,
            "metadata": metadata,
            "config": self.parts.get("table", {}),
            "storage-credentials": credentials,
        }
        return web.json_response(answer)

    @asynccontextmanager
    async def serve(self, context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_get("/v1/config", self.config)
        app.router.add_get("/v1/namespaces/shop/tables/numbers", self.load)
        server = TestServer(app, host="127.0.0.1", scheme="https" if context is not None else "http")
        await server.start_server(ssl=context)
        try:
            yield str(server.make_url("")).rstrip("/")
        finally:
            await server.close()


async def rows_of(catalog: dict[str, Any]) -> int:
    """What a source reads from the table."""
    spec = {"iceberg": {"catalog": catalog, "table": "shop.numbers"}}
    async with open_lane(spec) as lane:
        return len((await read_to_end(lane))[0])


@pytest.mark.parametrize(
    "place",
    [pytest.param(one, marks=() if one in ("defaults", "table") else pytest.mark.sweep) for one in PLACES],
)
async def test_what_a_catalog_answers_loads_no_code(tmp_path: Path, place: str) -> None:
    catalog = Catalog(local_table(tmp_path, {}))
    async with catalog.serve() as address:
        for name, value in NAMING.items():
            if place in ("defaults", "overrides") or isinstance(value, str):
                catalog.parts = {place: {name: value, "/bin/sh": "x"}}
                table = await asyncio.to_thread(_loaded, {"rest": address})
                assert not ran(), name
                # What keeps files safe from a loss of power stays.
                assert type(table.io) is DurableFileIO, name
                assert table.io.properties.keys() <= {"s3.connect-timeout", "s3.request-timeout"}, name
        assert await rows_of({"rest": address}) == 10


def _loaded(settings: dict[str, Any]) -> Table:
    catalog = open_catalog(IcebergCatalog.model_validate(settings), None, Path("."), "test", create=False)
    with catalog:
        return catalog.load_table("shop.numbers")


async def test_properties_of_a_table_load_no_code(tmp_path: Path) -> None:
    named = {name: value for name, value in NAMING.items() if isinstance(value, str)}
    local_table(tmp_path, named)
    assert await rows_of({"sqlite": str(tmp_path / "catalog.db")}) == 10
    with raises(codes.TARGET_UNFIT, match=f"{LOCATION} names code"):
        async with opened(iceberg_spec(tmp_path, columns=COLUMNS)):
            pass
    del named[LOCATION]
    other = tmp_path / "other"
    other.mkdir()
    local_table(other, named)
    async with opened(iceberg_spec(other, columns=COLUMNS)) as lane:
        await written(lane, 1)
    assert not ran()


async def test_a_property_that_appears_between_commits_loads_no_code(tmp_path: Path) -> None:
    local_table(tmp_path, {})
    async with opened(iceberg_spec(tmp_path, columns=COLUMNS, commitEvery="1h")) as lane:
        await lane.write([numbers(1)], Position(1))
        with SqlCatalog("default", uri=f"sqlite:///{tmp_path / 'catalog.db'}") as catalog:
            table = catalog.load_table("shop.numbers")
            metadata = Path(table.metadata_location.removeprefix("file://"))
            said = json.loads(metadata.read_text())
            said["location"] = f"__import__('{CODE}')"
            said["properties"][LOCATION] = "builtins.eval"
            metadata.write_text(json.dumps(said))
        with raises(codes.TARGET_UNFIT):
            await lane.flush()
    assert not ran()


def test_every_import_by_name_of_the_client_is_known() -> None:
    """A newer version may have more of them."""
    root = Path(pyiceberg.__file__).parent
    found = set[str]()
    for file in root.rglob("*.py"):
        text = file.read_text("utf-8")
        for node in ast.walk(ast.parse(text)) if LOADING.search(text) else ():
            called = node.func if isinstance(node, ast.Call) else None
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            is_builtin = isinstance(called, ast.Name) and name in ("eval", "exec", "compile", "__import__")
            if is_builtin or name in ("import_module", "entry_points", "Popen", "system"):
                found.add(".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__"))
    known = {module.__name__.removeprefix("pyiceberg").removeprefix(".") for module in IMPORTING}
    # Its names are literals in its own code.
    assert found == known | {"transforms"}
    assert all(type(vars(module)["importlib"]).__name__ == "_Imports" for module in IMPORTING)


async def test_credentials_go_to_the_address_of_the_pipeline_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = local_table(tmp_path, {})
    thief = Catalog(table)
    async with thief.serve() as elsewhere:
        named = {"uri": elsewhere, "oauth2-server-uri": f"{elsewhere}/v1/config", "header.X-To": elsewhere}
        catalog = Catalog(table, {"overrides": named})
        async with catalog.serve() as address:
            assert await rows_of({"rest": address, "token": "s3cret"}) == 10
            catalog.redirect = f"{elsewhere}/v1/config?s3cret"
            with raises(codes.TARGET_UNFIT, match="redirects are not followed") as caught:
                await rows_of({"rest": address, "token": "s3cret"})
            catalog.redirect = ""
            for variable in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
                monkeypatch.setenv(variable, elsewhere)
            assert await rows_of({"rest": address, "token": "s3cret"}) == 10
    assert catalog.answered == ["Bearer s3cret"] * 3
    assert thief.answered == []
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("variable", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
async def test_the_authorities_of_a_catalog_are_those_of_the_pipeline_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    ours, other = (make_certificate(tmp_path / "tls", file=name) for name in ("ours", "other"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(ours.certificate, ours.key)
    catalog = Catalog(local_table(tmp_path, {}))

    async def reached(environment: Certificate, ca: Path | None) -> int:
        monkeypatch.setenv(variable, str(environment.certificate))
        return await rows_of({"rest": address, **({} if ca is None else {"ca": str(ca)})})

    async with catalog.serve(context) as address:
        assert await reached(other, ours.certificate) == 10
        for ca in (other.certificate, None):
            with raises(codes.TARGET_REFUSES, match="certificate"):
                await reached(ours, ca)
        with raises(codes.CERTIFICATES, match=r"no-such\.pem"):
            await reached(ours, tmp_path / "no-such.pem")


async def test_an_answer_without_end_is_refused(tmp_path: Path) -> None:
    catalog = Catalog(local_table(tmp_path, {}), {"defaults": {"x": "x" * (CATALOG_ANSWER_BYTES_MAX + 1)}})
    async with catalog.serve() as address:
        with raises(codes.TARGET_UNFIT, match=f"more than {CATALOG_ANSWER_BYTES_MAX} bytes"):
            await rows_of({"rest": address})
