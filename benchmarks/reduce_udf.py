"""How fast groups of records go through a reduce function: in this process, and behind gRPC in Python and Go.

    python benchmarks/reduce_udf.py [--records 1000000] [--json]

A record has 100 bytes. Figures, records per second of wall clock:
  * encode: the messages alone, which is the most that one client can send;
  * here: the function in this process, as in a Spark worker, which is what a server can be compared to;
  * python, go: the function in its own process, over the gRPC stream;
  * each for one group with all records, and for groups of 100.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from millstream.udf.function import open_local_function
from millstream.udf.native.reduce_client import reduce_over_grpc
from millstream.udf.native.reduce_parts import PartEncoder
from millstream.udf.sidecar import SidecarSpec, python_command
from millstream.wire.reduce.v1 import engine_pb2
from millstream_udf.groups import Group, Part
from millstream_udf.reduce_arrow import ArrowRows
from millstream_udf.reducing import Answer, load
from millstream_udf.values import Message, Window

RECORD_BYTES = 100
BATCH_RECORDS = 10_000
"""As many come to a Spark task at a time, unless a setting of Spark's says otherwise."""
GROUP_RECORDS = 100
FUNCTIONS = Path(__file__).parent / "reduce_functions.py"
GO_EXAMPLE = Path(__file__).parents[1] / "examples" / "udf-go"
WINDOW = Window(0, 60_000_000)

Parts = Callable[[int], Iterator[Part]]
Reduce = Callable[[Iterable[Part]], Iterable[Answer]]


def one_group(records: int) -> Iterator[Part]:
    """All records in one."""
    batch = _batch()
    last = records // BATCH_RECORDS - 1
    for index in range(last + 1):
        groups = [] if index else [Group(WINDOW, ("key",))]
        yield Part(groups, [BATCH_RECORDS], ArrowRows(batch), index < last)


def small_groups(records: int) -> Iterator[Part]:
    """Of 100 records each."""
    batch = _batch()
    some = BATCH_RECORDS // GROUP_RECORDS
    for index in range(records // BATCH_RECORDS):
        groups = [Group(WINDOW, (str(index * some + key),)) for key in range(some)]
        yield Part(groups, [GROUP_RECORDS] * some, ArrowRows(batch))


def _batch() -> pa.RecordBatch:
    values = [b"%0*d" % (RECORD_BYTES, index) for index in range(BATCH_RECORDS)]
    times = pa.array(range(BATCH_RECORDS), pa.timestamp("us", tz="UTC"))
    return pa.record_batch({"value": pa.array(values, pa.binary()), "event_time": times})


def rate(reduce: Reduce, parts: Parts, records: int) -> float:
    """Records per second; checks that every one was counted."""
    began = time.perf_counter()
    counted = 0
    for answer in reduce(parts(records)):
        if answer.failures:
            raise RuntimeError(answer.failures[0].detail)
        counted += sum(int(item.value if isinstance(item, Message) else item) for item in answer.results)
    took_s = time.perf_counter() - began
    if counted != records:
        raise RuntimeError(f"{counted:,} records were counted, of {records:,}")
    return records / took_s


async def behind(command: list[str], name: str, records: int) -> dict[str, float]:
    """Of a function in its own process."""
    figures = {}
    spec = SidecarSpec(command, "udf", "benchmark", "reduce")
    async with open_local_function(spec, log=lambda _, line: print(line, file=sys.stderr)) as sidecar:
        program = engine_pb2.UdfProgram(address=sidecar.address, pipeline="benchmark", vertex="reduce")

        def reduce(parts: Iterable[Part]) -> Iterable[Answer]:
            return reduce_over_grpc(program, parts)

        await asyncio.to_thread(rate, reduce, one_group, BATCH_RECORDS)
        for parts in (one_group, small_groups):
            figures[f"{name}, {parts.__name__}"] = await asyncio.to_thread(rate, reduce, parts, records)
    return figures


def built_go(directory: str) -> list[str] | None:
    """The command of the Go function, where there is a Go toolchain."""
    go = shutil.which("go")
    if go is None:
        return None
    binary = Path(directory) / "counting"
    subprocess.run([go, "build", "-o", str(binary), "./counting"], cwd=GO_EXAMPLE, check=True)
    return [str(binary)]


def _encode(parts: Iterable[Part]) -> None:
    encoder = PartEncoder()
    for part in parts:
        for _ in encoder.messages(part):
            pass


def measure(records: int) -> dict[str, float]:
    """All figures."""
    figures = {}
    _encode(one_group(BATCH_RECORDS))
    for parts in (one_group, small_groups):
        began = time.perf_counter()
        _encode(parts(records))
        figures[f"encode, {parts.__name__}"] = records / (time.perf_counter() - began)
    names = ("values", "records", "arrow", "adding")
    for name in names:
        reducer = load(f"{FUNCTIONS}:{name}")
        for parts in (one_group, small_groups):
            figures[f"here {name}, {parts.__name__}"] = rate(reducer, parts, records)
    for name in names:
        figures |= asyncio.run(behind(python_command(f"{FUNCTIONS}:{name}"), f"python {name}", records))
    with tempfile.TemporaryDirectory() as directory:
        if (command := built_go(directory)) is not None:
            figures |= asyncio.run(behind(command, "go", records))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000, help="for each figure")
    parser.add_argument("--json", action="store_true", help="one object on the last line")
    arguments = parser.parse_args()
    figures = measure(max(1, arguments.records // BATCH_RECORDS) * BATCH_RECORDS)
    for name, figure in figures.items():
        print(f"{name:30} {figure:12,.0f}")
    if arguments.json:
        print(json.dumps({name: round(figure) for name, figure in figures.items()}))


if __name__ == "__main__":
    main()
