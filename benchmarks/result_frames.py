"""What it costs to hand sessions over and to make frames of their results, next to Arrow writing the same columns.

    python benchmarks/result_frames.py [--results N] [--json]

Each result has a window of its own, as sessions have, so its headers say bounds that no other has. Processor time per
result, the least of five runs; Arrow writes values, keys and bounds (as numbers) as an IPC stream, in the same run. A
hand-over names the rows of each session, two pieces here.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from millstream.wire.reduce.v1 import wal_pb2
from millstream_reduce.batches import HEADERS
from millstream_reduce.lane.units import _frame_of
from millstream_reduce.values import Piece, Window, WindowContents, WindowTable

TIMES = 5
TIMEOUT_US = 43_200_000_000


def least_us(call: Callable[[], object], results: int) -> float:
    """Microseconds of the processor per result."""
    seconds = []
    for _ in range(TIMES):
        begun = time.process_time()
        call()
        seconds.append(time.process_time() - begun)
    return min(seconds) / results * 1e6


def written(table: pa.Table) -> None:
    with pa.ipc.new_stream(pa.BufferOutputStream(), table.schema) as writer:
        writer.write_table(table)


def handed_over(windows: WindowTable) -> bytes:
    return wal_pb2.HandOver(closed_us=0, table=windows.message()).SerializeToString()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=int, default=10_000)
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    options = parser.parse_args()
    count = options.results
    starts = [1_357_000_000_000_000 + index * 1_234_567 for index in range(count)]
    columns: dict[str, Any] = {
        "window": pa.array(range(count), pa.int32()),
        "value": pa.array([b'{"tailnum":"N%d","flights":7}' % index for index in range(count)], pa.binary()),
        "keys": pa.array([[f"N{index}"] for index in range(count)], pa.list_(pa.string())),
        "headers": pa.nulls(count, HEADERS),
        "tags": pa.nulls(count, pa.list_(pa.string())),
    }
    rows = pa.table(columns)
    bounds: dict[str, Any] = {"start": pa.array(starts), "end": pa.array([start + TIMEOUT_US for start in starts])}
    plain = pa.table({"value": columns["value"], "keys": columns["keys"], **bounds})
    contents = [
        WindowContents(
            Window(start, start + TIMEOUT_US, b"N%d" % start), (Piece(1, 0, 99, 5, 3), Piece(1, 99, 9, 0, 2))
        )
        for start in starts
    ]
    windows = WindowTable.of(contents)
    handing_over = least_us(lambda: handed_over(windows), count)
    ours, arrow = least_us(lambda: _frame_of(windows, rows, 0), count), least_us(lambda: written(plain), count)
    if options.json:
        figures = {"frame_us": round(ours, 3), "hand_over_us": round(handing_over, 3), "arrow_us": round(arrow, 3)}
        print(json.dumps({"benchmark": "result_frames", **figures}))
    else:
        print(f"{ours:.2f} µs of the processor per result, and {handing_over:.2f} to hand its window over;")
        print(f"Arrow writes the columns alone in {arrow:.2f}")


if __name__ == "__main__":
    main()
