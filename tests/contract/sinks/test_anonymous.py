"""Anonymous access to Google Cloud Storage: a server on this machine stands for the store, and for the address at which
a machine of that cloud gets its tokens. It shows only which credentials are sent; it keeps no objects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import obstore
import pyarrow as pa
import pytest
from aiohttp import web
from deltalake import write_deltalake

from millstream_connectors.delta.client import FAILURES, options_of
from millstream_connectors.shared.objects.settings import ObjectStore, parse_url
from millstream_connectors.shared.objects.stores import make_store


class Google:
    """What was requested, with the tokens that were sent."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.requests: list[tuple[str, str]] = []
        self.tokens: set[str] = set()
        self.asked_for_a_token = False

    async def answer(self, request: web.Request) -> web.Response:
        if "computeMetadata" in request.path:
            self.asked_for_a_token = True
            return web.json_response({"access_token": "of-the-machine", "expires_in": 3600, "token_type": "Bearer"})
        await request.read()
        self.requests.append((request.method, request.path))
        self.tokens.add(request.headers.get("Authorization", "").removeprefix("Bearer").strip())
        if "list-type" in request.query:
            return web.Response(text="<ListBucketResult/>")
        return web.Response(status=404 if request.method == "GET" else 200, headers={"ETag": '"1"'})


@pytest.fixture
async def google(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Google]:
    google = Google()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", google.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0]
        google.endpoint = f"http://{host}:{port}"
        monkeypatch.setenv("GCE_METADATA_HOST", f"{host}:{port}")
        yield google
    finally:
        await runner.cleanup()


async def test_an_object_is_written_and_removed_without_the_token_of_the_machine(google: Google) -> None:
    settings = ObjectStore.model_validate({"endpoint": google.endpoint, "anonymous": True})

    def use() -> None:
        store = make_store(parse_url("gs://lake/out"), settings, Path(), "test")
        assert list(obstore.list(store, "out")) == []
        obstore.put(store, "out/a", b"1", mode="create", use_multipart=False)
        obstore.delete(store, ["out/a"])

    await asyncio.to_thread(use)
    assert [method for method, _ in google.requests] == ["GET", "PUT", "DELETE"]
    assert (google.asked_for_a_token, google.tokens) == (False, {""})


async def test_a_table_is_written_without_the_token_of_the_machine(google: Google) -> None:
    settings = ObjectStore.model_validate({"endpoint": google.endpoint, "anonymous": True})
    options = options_of("gs://lake/table", settings, Path(), "test")

    def use() -> None:
        # The server keeps nothing, so the table is not found after it was written.
        with suppress(*FAILURES):
            write_deltalake("gs://lake/table", pa.table({"n": [1]}), storage_options=options)

    await asyncio.to_thread(use)
    assert "PUT" in {method for method, _ in google.requests}
    assert (google.asked_for_a_token, google.tokens) == (False, {""})
