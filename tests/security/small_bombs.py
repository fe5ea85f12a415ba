"""Reads small inputs that stand for gigabytes: `python -m tests.security.small_bombs DIRECTORY` prints, for each, the
MiB by which the process has grown, and what the reader said. With another argument, it writes them."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import resource
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from aiohttp import web

from millstream.extract import Extraction
from millstream.formats.avro import parsed
from millstream.formats.registry import Schema, open_registry
from millstream.spec.formats import SchemaRegistry
from millstream.web.link import linked, translated
from millstream.web.settings import HTTP
from millstream_reader.sources.file.table_file import open_table_file
from millstream_reader.sources.file.text_file import FileMark
from millstream_reader.sources.http_poll.connector import HttpPollSource
from millstream_udf import arrow_values
from tests.support.web_server import open_handler

MIB = 1 << 20
TEXT = {"type": "record", "name": "r", "fields": [{"name": "text", "type": "string"}]}
NULLS = {"type": "record", "name": "r", "fields": [{"name": "many", "type": {"type": "array", "items": "null"}}]}


def rows_of(path: Path, kind: str) -> str:
    """Reads the whole file, as a lane of the file source does."""
    file = open_table_file(str(path), path.name, kind, Extraction(), FileMark())
    rows = 0
    try:
        file.begin()
        while file.fill():
            while (taken := file.take(4096, MIB, now_us=0, closing=True)) is not None:
                rows += len(taken.frame.values()) if taken.frame is not None else 0
                rows += len(taken.invalid)
    finally:
        file.close()
    return f"{rows} rows"


def write_dictionary(path: Path) -> None:
    """A thousand rows with one text of a megabyte, in 507 bytes."""
    once = pa.array(["x" * 1_000_000]).dictionary_encode()
    pq.write_table(pa.table({"text": once.take(pa.array([0] * 1000, pa.int32()))}), path, compression="zstd")


def write_large_cell(path: Path) -> None:
    """A text that no record could hold."""
    pq.write_table(pa.table({"text": ["x" * 40 * MIB]}), path, compression="zstd")


def write_avro(path: Path, records: list[dict[str, object]], schema: dict[str, Any], codec: str) -> None:
    with path.open("wb") as file:
        fastavro.writer(file, schema, records, codec=codec, sync_interval=1 << 30)


def columns_of(count: int) -> bytes:
    """Compressed columns, as a function might return them."""
    batch = pa.record_batch({"n": pa.array([7] * count, pa.int64())})
    target = io.BytesIO()
    with pa.ipc.new_stream(target, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        stream.write_batch(batch)
    return target.getvalue()


def asked(body: bytes, ask: Callable[[str], Awaitable[object]]) -> Callable[[], object]:
    """Asks a server whose every answer is this compressed body. `ask` gets its address."""

    async def answer(request: web.Request) -> web.Response:
        headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
        return web.Response(body=body, headers=headers)

    async def run() -> object:
        async with open_handler(answer) as address:
            return await ask(address)

    return lambda: asyncio.run(run())


async def ask_over_http(address: str) -> object:
    settings = HttpPollSource.model_validate({"url": address, "interval": "1s"})
    async with linked(settings, Path(), "a lane", HTTP) as link:
        with translated(link):
            async with link.session.get(link.url) as answer:
                return await answer.json()


async def ask_registry(address: str) -> object:
    settings = SchemaRegistry.model_validate({"url": address})
    async with open_registry(settings, Path(), "a lane") as registry:
        return await registry.schema(1)


def grown(use: Callable[[], object]) -> tuple[int, str]:
    """By how many MiB the peak of this process has grown, and the result or the error."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        said = str(use())
    except Exception as error:  # noqa: BLE001  # the test compares it
        said = repr(error)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024, said


def written(directory: Path) -> None:
    """In another process: to write them takes what reading them must not."""
    write_dictionary(directory / "dictionary.parquet")
    write_large_cell(directory / "cell.parquet")
    texts: list[dict[str, object]] = [{"text": "x" * 20_000_000}] * 4
    for codec in ("deflate", "bzip2", "xz"):
        write_avro(directory / f"{codec}.avro", texts, TEXT, codec)
    (directory / "answer.gz").write_bytes(gzip.compress(b" " * 400 * MIB, 6))
    (directory / "columns.arrow").write_bytes(columns_of(40_000_000))


def main(directory: Path) -> None:
    columns = (directory / "columns.arrow").read_bytes()
    found = {
        "parquet": grown(lambda: rows_of(directory / "dictionary.parquet", "parquet")),
        "large cell": grown(lambda: rows_of(directory / "cell.parquet", "parquet")),
        "arrow": grown(lambda: arrow_values.unpacked(columns, 40_000_000)),
        "items": grown(lambda: parsed(Schema("AVRO", json.dumps(NULLS)))),
    }
    body = (directory / "answer.gz").read_bytes()
    found["http"] = grown(asked(body, ask_over_http))
    found["registry"] = grown(asked(body, ask_registry))
    for codec in ("deflate", "bzip2", "xz"):
        found[codec] = grown(lambda codec=codec: rows_of(directory / f"{codec}.avro", "avro"))  # type: ignore[misc]
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    (written if sys.argv[2:] else main)(Path(sys.argv[1]))
