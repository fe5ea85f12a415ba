"""Windows of a few records, and requests for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from millstream.wire.reduce.v1 import engine_pb2, wal_pb2
from millstream_reduce.batches import encoded, value_fields_of
from millstream_reduce.log.entries import entry_buffers, segment_name
from millstream_reduce.spark.wire import SparkClient
from millstream_reduce.values import Piece, Window, WindowContents, WindowTable

QUERY = "SELECT key, count(*) AS n, sum(value.n) AS total, window_start FROM window GROUP BY key, window_start"


def sql(query: str = QUERY, *, unsafe: bool = False) -> engine_pb2.Program:
    value = engine_pb2.ValueSchema(format="json", fields="n BIGINT")
    return engine_pb2.Program(sql=engine_pb2.SqlProgram(query=query, value=value, unsafe=unsafe), keyed=True)


def write_windows(
    directory: Path,
    *numbers: Sequence[int],
    columns: Mapping[int, pa.DataType] | None = None,
    key_of: Callable[[int], Sequence[str]] = lambda n: ["odd" if n % 2 else "even"],
) -> list[WindowContents]:
    """A log with one window, of one entry, for each list; a record for each number, with its parity or
    `key_of` it as its key. The values of the windows in `columns` are Arrow columns, with numbers of this type, and the
    others JSON."""
    directory.mkdir(parents=True, exist_ok=True)
    windows, offset = [], 0
    with (directory / segment_name(1)).open("wb") as segment:
        for index, of_window in enumerate(numbers):
            kind = (columns or {}).get(index)
            values: Any = pa.array([json.dumps({"n": n}).encode() for n in of_window], pa.binary())
            if kind is not None:
                texts = pa.array(["more"] * len(of_window))
                values = pa.StructArray.from_arrays([texts, pa.array(of_window).cast(kind)], names=["text", "n"])
            body = encoded(
                batch := pa.record_batch({
                    "value": values,
                    "event_time": pa.array([index * 1_000_000] * len(of_window), pa.timestamp("us", tz="UTC")),
                    "keys": pa.array([list(key_of(n)) for n in of_window], pa.list_(pa.string())),
                })
            )  # fmt: skip
            append = wal_pb2.Append(rows=len(of_window), has_keys=True, value_fields=value_fields_of(batch))
            entry = wal_pb2.Entry(append=append)
            buffers = entry_buffers(index + 1, entry.SerializeToString(), body)
            length = sum(map(len, buffers))
            segment.write(b"".join(buffers))
            rows = len(of_window)
            start_us = index * 1_000_000
            window = Window(start_us, start_us + 1_000_000)
            windows.append(WindowContents(window, (Piece(1, offset, length, 0, rows),)))
            offset += length
    return windows


def request(
    directory: Path, windows: Sequence[WindowContents], program: engine_pb2.Program | None = None
) -> engine_pb2.RunRequest:
    table = WindowTable.of(windows).message()
    return engine_pb2.RunRequest(program=program or sql(), directory=str(directory), windows=table)


def totals(table: pa.Table) -> dict[tuple[int, str], tuple[int, int]]:
    """Count and sum by window and key, of results of `QUERY`."""
    rows: list[tuple[int, dict[str, Any]]] = [
        (row["window"], json.loads(row["value"])) for row in table.select(["window", "value"]).to_pylist()
    ]
    found = {(window, row["key"]): (row["n"], row["total"]) for window, row in rows}
    assert len(found) == len(rows)
    return found


async def until_running(client: SparkClient) -> None:
    """Wait until a job runs. Requests that come before it does may become one job with it."""
    while not (await client.describe()).running:  # noqa: ASYNC110  # another process has no event to wait for
        await asyncio.sleep(0.01)


def expected_totals(*numbers: Sequence[int]) -> dict[tuple[int, str], tuple[int, int]]:
    found: dict[tuple[int, str], tuple[int, int]] = {}
    for window, of_window in enumerate(numbers):
        for n in of_window:
            key = (window, "odd" if n % 2 else "even")
            count, total = found.get(key, (0, 0))
            found[key] = (count + 1, total + n)
    return found
