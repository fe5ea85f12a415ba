"""Reads small inputs that stand for gigabytes: `python -m tests.security.small_bombs DIRECTORY` prints, for each, the
MiB by which the process has grown, and what the reader said. With another argument, it writes them."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import resource
import sys
import zlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from aiohttp import web
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

from millstream.extract import Extraction
from millstream.spec.formats import SchemaRegistry
from millstream_connectors.delta.opening import TableOpening
from millstream_connectors.file.source.csv_parsing import CsvFormat
from millstream_connectors.file.source.table_file import open_any_file, parquet_rows
from millstream_connectors.file.source.text_file import FileMark, TextFormat, open_text_file
from millstream_connectors.http_poll.settings import HttpPollSource
from millstream_connectors.iceberg.settings import IcebergSource
from millstream_connectors.iceberg.source.snapshots import Snapshots
from millstream_connectors.shared.formats.avro import parsed
from millstream_connectors.shared.formats.registry import Schema, open_registry
from millstream_connectors.shared.web.client import linked, translated
from millstream_connectors.shared.web.settings import HTTP
from millstream_udf import arrow_values
from tests.support.web_server import open_handler

MIB = 1 << 20
FIRST_BOUND, BOUNDS = 1 << 20, 3_000_000
TEXT = {"type": "record", "name": "r", "fields": [{"name": "text", "type": "string"}]}
NULLS = {"type": "record", "name": "r", "fields": [{"name": "many", "type": {"type": "array", "items": "null"}}]}


def rows_of(path: Path, kind: str) -> str:
    """Reads the whole file, as a lane of the file source does."""
    file = open_any_file(str(path), path.name, TextFormat(kind, "utf-8", CsvFormat(), Extraction()), FileMark())
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


def lines_of(path: Path, kind: str) -> str:
    """The same for a file of text."""
    text = TextFormat(kind, "utf-8", CsvFormat(), Extraction())
    file = open_text_file(str(path), path.name, text, FileMark())
    rows = invalid = 0
    try:
        file.begin()
        while file.fill() or file.open_line:
            while (taken := file.take(4096, MIB, now_us=0, closing=True)) is not None:
                rows += taken.frame.records if taken.frame is not None else 0
                invalid += len(taken.invalid)
    finally:
        file.close()
    return f"{rows} rows, {invalid} invalid"


def write_dictionary(path: Path) -> None:
    """400 rows with one text of a megabyte, in 507 bytes."""
    once = pa.array(["x" * 1_000_000]).dictionary_encode()
    pq.write_table(pa.table({"text": once.take(pa.array([0] * 400, pa.int32()))}), path, compression="zstd")


def write_large_cell(path: Path) -> None:
    """A text that no record could hold."""
    pq.write_table(pa.table({"text": ["x" * 40 * MIB]}), path, compression="zstd")


def write_lists(directory: Path) -> None:
    """A row with a list of 50 million numbers; rows with texts of a megabyte in lists and structs."""
    many = pa.repeat(0, 50_000_000)
    pq.write_table(pa.table({"list": pa.ListArray.from_arrays([0, len(many)], many)}), directory / "list.parquet")
    texts = pa.array(["x" * 1_000_000]).take(pa.array([0] * 270, pa.int32()))
    inner = pa.table({"struct": pa.StructArray.from_arrays([texts[:100]], ["text"])})
    pq.write_table(inner, directory / "struct.parquet", compression="zstd")
    lists = pa.table({"list": pa.ListArray.from_arrays([0, 270], texts)})
    pq.write_table(lists, directory / "texts.parquet", compression="zstd")
    plain = pa.table({"text": texts})
    path, large = directory / "page.parquet", 1 << 30
    pq.write_table(plain, path, compression="zstd", use_dictionary=False, data_page_size=large)
    # Each text repeats the one before it.
    path = directory / "prefixes.parquet"
    pq.write_table(plain[:100], path, use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"})
    pq.write_table(pa.table({"n" * 1_000_000: range(100)}), directory / "name.parquet", compression="zstd")


def write_page_that_the_footer_hides(path: Path) -> None:
    """A page of 270 MB of texts, of which the footer says that it has a kilobyte."""
    texts = pa.table({"text": pa.array(["x" * 1_000_000]).take(pa.array([0] * 270, pa.int32()))})
    pq.write_table(texts, path, compression="zstd", use_dictionary=False, data_page_size=1 << 30)
    contents = path.read_bytes()
    size = pq.read_metadata(path).row_group(0).column(0).total_uncompressed_size
    said = varint(size)
    assert contents.count(said) > 0
    less = varint(1024)
    # A number of the same length, which begins with the low bits.
    padded = less[:-1] + bytes([less[-1] | 0x80, *[0x80] * (len(said) - len(less) - 1), 0])
    path.write_bytes(contents.replace(said, padded))
    assert pq.read_metadata(path).row_group(0).column(0).total_uncompressed_size == 1024


def rows_of_a_table(path: Path, *, is_remote: bool) -> str:
    """Reads a file as a source of a lake table does."""
    with pa.OSFile(str(path), "rb") as stream:
        return f"{sum(map(len, parquet_rows(stream, 0, is_remote=is_remote)))} rows"


def write_checkpoint(directory: Path) -> None:
    """A Delta table with a checkpoint of kilobytes, in which one text of a megabyte is a thousand paths."""
    table = directory / "delta"
    write_deltalake(table, pa.table({"n": [1]}))
    DeltaTable(table).create_checkpoint()
    (path,) = (table / "_delta_log").glob("*.checkpoint.parquet")
    whole = pq.read_table(path)
    (row,) = (row for row in whole.to_pylist() if row["add"] is not None)
    row["add"]["path"] = "p" * MIB
    rows = pa.Table.from_pylist([row], whole.schema)
    pq.write_table(pa.concat_tables([whole, rows.take(pa.array([0] * 1100))]), path, compression="zstd")


def opened_table(directory: Path) -> int:
    return TableOpening("delta", None, directory, "a lane").open().version()


def write_avro(path: Path, records: list[dict[str, object]], schema: dict[str, Any], codec: str) -> None:
    with path.open("wb") as file:
        fastavro.writer(file, schema, records, codec=codec, sync_interval=1 << 30)


def columns_of(count: int) -> bytes:
    """Compressed columns, as a function might return them."""
    batch = pa.record_batch({"n": pa.repeat(7, count)})
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


def write_metadata(directory: Path) -> None:
    """A table whose metadata, and a manifest, are compressed spaces."""
    catalog = SqlCatalog("c", uri=f"sqlite:///{directory}/catalog.db", warehouse=str(directory))
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", pa.schema({"n": pa.int64()}))
    table.append(pa.table({"n": [1]}))
    metadata = directory / "bomb.gz.metadata.json"
    whole = Path(table.metadata_location.removeprefix("file://")).read_bytes()
    metadata.write_bytes(gzip.compress(whole))
    catalog.register_table("n.gz", str(metadata))
    metadata.write_bytes(spaces(400))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    path = Path(snapshot.manifests(table.io)[0].manifest_path.removeprefix("file://"))
    contents = path.read_bytes()
    sync = contents[-16:]
    block = raw_deflate(b"\0" * MIB) * 400
    path.write_bytes(contents[: contents.index(sync) + 16] + b"\x02" + varint(len(block)) + block + sync)
    write_entries(directory, catalog)


def write_entries(directory: Path, catalog: SqlCatalog) -> None:
    """A table whose list of manifests has a million entries, and one with a file of three million statistics."""
    for name in ("list", "statistics"):
        table = catalog.create_table(f"n.{name}", pa.schema({"n": pa.int64()}))
        table.append(pa.table({"n": [1]}))
        snapshot = table.current_snapshot()
        assert snapshot is not None
        manifest = snapshot.manifests(table.io)[0]
        path = Path(manifest.manifest_path.removeprefix("file://"))
        if name == "list":
            path = Path(snapshot.manifest_list.removeprefix("file://"))
            one = io.BytesIO()
            fastavro.schemaless_writer(one, schema_of(path), next(entries_of(path)) | {"manifest_path": "m"})
            contents, entries = one.getvalue() * 1_200_000, 1_200_000
        else:
            entry = next(entries_of(path))
            entry["data_file"]["lower_bounds"] = [{"key": FIRST_BOUND, "value": b""}]
            one = io.BytesIO()
            fastavro.schemaless_writer(one, schema_of(path), entry)
            bound = varint(1) + varint(FIRST_BOUND) + b"\0"
            assert one.getvalue().count(bound) == 1
            contents, entries = one.getvalue().replace(bound, varint(BOUNDS) + empty_bounds()), 1
        whole = path.read_bytes()
        sync = whole[-16:]
        block = raw_deflate(contents)
        head = whole[: whole.index(sync) + 16]
        path.write_bytes(head + varint(entries) + varint(len(block)) + block + sync)


def empty_bounds() -> bytes:
    """`BOUNDS` numbers of a column in Avro, from `FIRST_BOUND` on, each with a text of no bytes: to have an encoder
    write them one by one takes half a minute."""
    # The first byte of a number has its six low bits, and the others are the same for 64 numbers.
    lows = [bytes([low << 1 | 0x80]) for low in range(64)]
    highs = (varint(number)[1:] + b"\0" for number in range(FIRST_BOUND, FIRST_BOUND + BOUNDS, 64))
    return b"".join(high.join(lows) + high for high in highs)


def schema_of(path: Path) -> Any:
    with path.open("rb") as file:
        return fastavro.reader(file).writer_schema


def entries_of(path: Path) -> Iterator[Any]:
    with path.open("rb") as file:
        yield from fastavro.reader(file)


def raw_deflate(data: bytes) -> bytes:
    """A part of a stream, which may be repeated in it."""
    packing = zlib.compressobj(6, zlib.DEFLATED, -15)
    return packing.compress(data) + packing.flush(zlib.Z_FULL_FLUSH)


def spaces(mib: int) -> bytes:
    """The beginning of a text, compressed with gzip."""
    return bytes.fromhex("1f8b08000000000000ff") + raw_deflate(b" " * MIB) * mib


def varint(size: int) -> bytes:
    """As Avro writes a length."""
    number, made = size << 1, bytearray()
    while number >= 0x80:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*made, number])


def table_of(directory: Path, name: str) -> object:
    catalog = {"sqlite": str(directory / "catalog.db"), "warehouse": str(directory), "name": "c"}
    settings = IcebergSource.model_validate({"catalog": catalog, "table": f"n.{name}"})
    table = Snapshots(settings, directory, "a lane")
    table.open()
    newest = table.newest()
    assert newest is not None
    return table.whole(newest)


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
    write_lists(directory)
    write_page_that_the_footer_hides(directory / "hidden.parquet")
    write_metadata(directory)
    write_checkpoint(directory)
    (directory / "answer.gz").write_bytes(spaces(400))
    (directory / "name.csv.gz").write_bytes(gzip.compress(b"n" * MIB + b",b\n" + b"1,2\n" * 100))
    (directory / "line.gz").write_bytes(spaces(400))
    (directory / "line.zst").write_bytes(zstandard.ZstdCompressor().compress(b" " * 400 * MIB))
    (directory / "columns.arrow").write_bytes(columns_of(40_000_000))


def main(directory: Path) -> None:
    columns = (directory / "columns.arrow").read_bytes()
    found = {
        "parquet": grown(lambda: rows_of(directory / "dictionary.parquet", "parquet")),
        "large cell": grown(lambda: rows_of(directory / "cell.parquet", "parquet")),
        "struct": grown(lambda: rows_of(directory / "struct.parquet", "parquet")),
        "list": grown(lambda: rows_of(directory / "list.parquet", "parquet")),
        "texts": grown(lambda: rows_of(directory / "texts.parquet", "parquet")),
        "page": grown(lambda: rows_of(directory / "page.parquet", "parquet")),
        "prefixes": grown(lambda: rows_of(directory / "prefixes.parquet", "parquet")),
        "name": grown(lambda: rows_of(directory / "name.parquet", "parquet")),
        "hidden page": grown(lambda: rows_of_a_table(directory / "hidden.parquet", is_remote=False)),
        "hidden remote page": grown(lambda: rows_of_a_table(directory / "hidden.parquet", is_remote=True)),
        "name of csv": grown(lambda: lines_of(directory / "name.csv.gz", "csv")),
        "line": grown(lambda: lines_of(directory / "line.zst", "lines")),
        "arrow": grown(lambda: arrow_values.unpacked(columns, 40_000_000)),
        "items": grown(lambda: parsed(Schema("AVRO", json.dumps(NULLS)))),
    }
    body = (directory / "answer.gz").read_bytes()
    found["http"] = grown(asked(body, ask_over_http))
    found["registry"] = grown(asked(body, ask_registry))
    found["metadata"] = grown(lambda: table_of(directory, "gz"))
    found["manifest"] = grown(lambda: table_of(directory, "t"))
    found["list of manifests"] = grown(lambda: table_of(directory, "list"))
    found["checkpoint"] = grown(lambda: opened_table(directory))
    found["statistics"] = grown(lambda: table_of(directory, "statistics"))
    for codec in ("deflate", "bzip2", "xz"):
        found[codec] = grown(lambda codec=codec: rows_of(directory / f"{codec}.avro", "avro"))  # type: ignore[misc]
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    (written if sys.argv[2:] else main)(Path(sys.argv[1]))
