"""Sinks in a bucket of a real server with TLS, whose certificate an authority of the user's own has issued."""

from __future__ import annotations

import asyncio
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from millstream import codes
from millstream.record import Position
from millstream.spec.models import FallbackSink
from tests.contract.sinks.sink_targets import delta_spec, iceberg_spec
from tests.contract.sinks.table_lanes import numbers, opened
from tests.support.errors import raises
from tests.support.object_server import ObjectServer


def sink_of(kind: str, url: str, directory: Path, store: dict[str, str]) -> FallbackSink:
    """A sink below a URL."""
    if kind == "file":
        return FallbackSink.model_validate({"file": {"path": f"{url}out", "store": store}})
    if kind == "delta":
        return delta_spec(f"{url}table", store=store)
    catalog = {"sqlite": str(directory / "catalog.db"), "warehouse": url.rstrip("/")}
    return iceberg_spec(directory, catalog=catalog, store=store)


async def _write(kind: str, url: str, directory: Path, store: dict[str, str]) -> None:
    async with opened(sink_of(kind, url, directory, store)) as lane:
        await lane.write([numbers(1)], Position(1))
        await lane.flush()
        assert lane.durable == Position(1)


def write(kind: str, url: str, directory: Path, store: dict[str, str]) -> None:
    """Write one record, in a process of its own: pyarrow looks for authorities once in a process."""
    asyncio.run(_write(kind, url, directory, store))


@pytest.mark.parametrize(
    "kind", ["file", *(pytest.param(kind, marks=pytest.mark.sweep) for kind in ("delta", "iceberg"))]
)
async def test_a_certificate_is_accepted_if_its_authority_is_named(
    kind: str, objects: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = objects.bucket()
    store = {**objects.settings, "endpoint": objects.encrypted, "timeout": "5s"}
    with raises(codes.TARGET_REFUSES, match="certificate is not accepted .* set SSL_CERT_FILE"):
        await _write(kind, bucket.url(), tmp_path, store)
    assert not bucket.keys()
    monkeypatch.setenv("SSL_CERT_FILE", str(objects.certificate))
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        await asyncio.wrap_future(pool.submit(write, kind, bucket.url(), tmp_path, store))
    assert bucket.keys()
