"""How fast each source gives records, next to what limits it, measured in the same run.

    python benchmarks/sources.py [--records N] [--only NAME] [--json]

The limit of the generator is copying its values once; of lines and JSON lines, reading the file by blocks of 1 MiB; of
CSV, Python's csv module over the same text, and where Arrow parses it (in files of more than 8 MiB, and where it is
loaded anyway) also Arrow's own reader in one thread, which makes columns and no text of them; of HTTP, the same client
and server with a handler that only reads the body. All in one process, read as a vertex reads: 4,096 records or 1 MiB
at a time. Seconds are those of the CPU, so that what else the machine does is left out as far as it can be: each is the
least of three runs, in turns with its limit. For HTTP they include the client.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import importlib
import io
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
from aiohttp import web

from millstream.clock import SystemClock
from millstream.limits import FRAME_BYTES_MAX, FRAME_RECORDS_MAX, MIB
from millstream.record import SOURCE_INPUT, LaneId
from millstream.spec.models import Source
from millstream_connectors.http.source.lane import HttpSourceLane
from millstream_connectors.opening_sources import open_source
from millstream_reader.source import SourceLane

RECORD_BYTES = 100
HTTP_CONNECTIONS = 16
BATCH_RECORDS = 250
TIMES = 3


@dataclass(frozen=True)
class Result:
    """One source."""

    name: str
    records_per_s: float
    mb_per_s: float
    limit: str
    limit_records_per_s: float

    def line(self) -> str:
        share = self.records_per_s / self.limit_records_per_s
        return (
            f"{self.name:32} {self.records_per_s:12,.0f} records/s {self.mb_per_s:8.1f} MB/s"
            f"   limit ({self.limit}) {self.limit_records_per_s:13,.0f}   share {share:6.1%}"
        )


@asynccontextmanager
async def open_lane(spec: dict[str, Any], folder: Path) -> AsyncIterator[SourceLane]:
    source = Source.model_validate(spec)
    lane = LaneId("in", SOURCE_INPUT, 0)
    async with open_source(source, lane, 1, b"", base_dir=folder, clock=SystemClock()) as opened:
        yield opened


async def rate_of(spec: dict[str, Any], folder: Path) -> tuple[float, float]:
    """Records and seconds."""
    count, began = 0, time.process_time()
    async with open_lane(spec, folder) as lane:
        while True:
            batch = await lane.read(FRAME_RECORDS_MAX, FRAME_BYTES_MAX, 1.0)
            count += batch.frame.records if batch.frame is not None else 0
            if batch.ended:
                return count, time.process_time() - began


async def measure(
    name: str, spec: dict[str, Any], folder: Path, size: int, limit_name: str, limit: Callable[[], None]
) -> Result:
    limits, runs = [], []
    for _ in range(TIMES):
        began = time.process_time()
        limit()
        limits.append(time.process_time() - began)
        count, seconds = await rate_of(spec, folder)
        runs.append(seconds)
    seconds = min(runs)
    return Result(name, count / seconds, size / seconds / 1e6, limit_name, count / min(limits))


def read_raw(path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        while file.read(MIB):
            pass


def parse_csv(path: Path) -> None:
    for _ in csv.reader(io.StringIO(path.read_text())):
        pass


def parse_csv_by_arrow(path: Path) -> None:
    from pyarrow import csv as arrow_csv

    arrow_csv.read_csv(path, arrow_csv.ReadOptions(use_threads=False))


def copy_values(records: int) -> None:
    values = bytes(FRAME_RECORDS_MAX * RECORD_BYTES)
    for _ in range(records // FRAME_RECORDS_MAX):
        bytes(bytearray(values))


def generator_spec(records: int, **settings: Any) -> dict[str, Any]:
    return {"generator": {"rpu": 0, "records": records, "msgSize": RECORD_BYTES, **settings}}


async def measure_generator(records: int, folder: Path) -> list[Result]:
    count = 4 * records
    size = count * RECORD_BYTES
    shares = {"lateShare": 0.01, "lateBy": "1h", "outOfOrderShare": 0.1, "outOfOrderBy": "1s"}
    specs = {
        "generator": generator_spec(count),
        "generator, 100 keys": generator_spec(count, keyCount=100),
        "generator, late shares": generator_spec(count, **shares),
    }
    return [
        await measure(name, spec, folder, size, "copying the values", lambda: copy_values(count))
        for name, spec in specs.items()
    ]


async def measure_files(records: int, folder: Path) -> list[Result]:
    lines, objects, table = folder / "lines.txt", folder / "objects.jsonl", folder / "table.csv"
    part = folder / "part.csv"
    with lines.open("w") as file:
        file.writelines(f"{index:0{RECORD_BYTES - 1}d}\n" for index in range(records))
    with objects.open("w") as file:
        file.writelines(
            f'{{"id":{index},"at":"2024-01-01T00:{index // 60 % 60:02d}:{index % 60:02d}Z","who":"user-{index % 1000}",'
            f'"pad":"{"x" * 30}"}}\n'
            for index in range(records // 2)
        )
    # The smaller one has fewer bytes than a file that Arrow parses.
    for path, rows in ((part, records // 8), (table, records // 2)):
        with path.open("w") as file:
            file.write("id,at,who,what,amount,place,note\n")
            file.writelines(
                f"{index},2024-01-01T00:{index // 60 % 60:02d}:{index % 60:02d}Z,user-{index % 1000},bought,"
                f"{index % 97}.5,shop {index % 13},nothing to add here at all\n"
                for index in range(rows)
            )
    event_time = {"eventTime": {"field": "at"}, "keys": ["who"]}
    typed = {"columns": [{"name": "id", "type": "int"}, {"name": "amount", "type": "float"}]}
    cases: list[tuple[str, Path, dict[str, Any]]] = [
        ("lines", lines, {"file": {"paths": ["lines.txt"]}}),
        ("jsonl", objects, {"file": {"paths": ["objects.jsonl"], "format": "jsonl"}}),
        ("jsonl, time and key", objects, {"file": {"paths": ["objects.jsonl"], "format": "jsonl"}, **event_time}),
        ("csv", part, {"file": {"paths": ["part.csv"], "format": "csv"}}),
        (
            "csv, types, time, key",
            part,
            {"file": {"paths": ["part.csv"], "format": "csv", "csv": typed}, **event_time},
        ),
    ]
    results = []
    for name, path, spec in cases:
        limit_name, limit = ("csv module", parse_csv) if path is part else ("reading the file", read_raw)
        size = path.stat().st_size
        results.append(await measure(name, spec, folder, size, limit_name, partial(limit, path)))
    importlib.import_module("pyarrow.csv")
    size = table.stat().st_size
    for name, _, spec in cases[-2:]:
        large = {**spec, "file": {**spec["file"], "paths": ["table.csv"]}}
        for limit_name, limit in (("csv module", parse_csv), ("Arrow's reader", parse_csv_by_arrow)):
            found = await measure(f"{name}, by Arrow", large, folder, size, limit_name, partial(limit, table))
            results.append(found)
    return results


async def post_all(address: str, bodies: int, body: bytes, content_type: str) -> float:
    """Seconds for so many requests over a few connections."""
    left = iter(range(bodies))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=HTTP_CONNECTIONS)) as session:

        async def sender() -> None:
            for _ in left:
                async with session.post(address, data=body, headers={"Content-Type": content_type}) as answer:
                    answer.raise_for_status()

        began = time.process_time()
        async with asyncio.TaskGroup() as senders:
            for _ in range(HTTP_CONNECTIONS):
                senders.create_task(sender())
        return time.process_time() - began


@asynccontextmanager
async def bare_server() -> AsyncIterator[str]:
    """The limit: it reads the body and says yes."""

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.json_response({"committed": 1})

    application = web.Application(client_max_size=MIB)
    application.router.add_post("/", answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


async def commit_at_once(lane: SourceLane) -> None:
    while True:
        batch = await lane.read(FRAME_RECORDS_MAX, FRAME_BYTES_MAX, 1.0)
        await lane.committed(batch.position)


async def measure_http(records: int, folder: Path) -> list[Result]:
    value = b'{"text":"%b"}' % (b"x" * (RECORD_BYTES - 11))
    batch = (value + b"\n") * BATCH_RECORDS
    cases = [
        ("http, one a request", 1, value, "application/json", max(1, records // 200)),
        (f"http, {BATCH_RECORDS} a request", BATCH_RECORDS, batch, "application/x-ndjson", 400),
    ]
    results = []
    for name, records_each, body, content_type, bodies in cases:
        limits, runs = [], []
        spec = {"http": {"port": 0, "buffer": HTTP_CONNECTIONS * BATCH_RECORDS}}
        for _ in range(TIMES):
            async with bare_server() as address:
                limits.append(await post_all(address, bodies, body, content_type))
            async with open_lane(spec, folder) as lane, asyncio.TaskGroup() as tasks:
                assert isinstance(lane, HttpSourceLane)
                committing = tasks.create_task(commit_at_once(lane))
                runs.append(await post_all(lane.address, bodies, body, content_type))
                committing.cancel()
        count, seconds, limit_s = bodies * records_each, min(runs), min(limits)
        mb_per_s = count * RECORD_BYTES / seconds / 1e6
        results.append(Result(name, count / seconds, mb_per_s, "a bare handler", count / limit_s))
    return results


PARTS: dict[str, Callable[[int, Path], Awaitable[list[Result]]]] = {
    "generator": measure_generator,
    "files": measure_files,
    "http": measure_http,
}


async def run(records: int, only: str | None) -> list[Result]:
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, part in PARTS.items():
            if only in (None, name):
                results += await part(records, Path(folder))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--only", choices=sorted(PARTS))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results = uvloop.run(run(arguments.records, arguments.only))
    lines = (
        [json.dumps([asdict(result) for result in results])] if arguments.json else [item.line() for item in results]
    )
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
