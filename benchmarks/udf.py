"""How fast a Python function is, by itself and behind its socket.

    python benchmarks/udf.py [--seconds 3] [--grpc] [--json]

Four figures:
  * stage: the function stage alone (unpack columns, call, pack), records per second of CPU;
  * stream: the same function in its own process, as a pipeline calls it, records per second of wall clock;
  * leg: what a frame there and back costs the pipeline's process and the function's, milliseconds of processor time;
  * slow: an async function that waits 20 ms a record with 500 in flight; its limit is 25,000 records/s.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import runpy
import sys
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import uvloop

from millstream.frame import Frame, build_frame
from millstream.spec.protocols import FunctionKind
from millstream.udf.function import open_local_function
from millstream.udf.protocol import StreamName
from millstream.udf.sidecar import SidecarSpec, python_command
from millstream_udf import freed_memory
from millstream_udf.answering import answer_map, context_of
from millstream_udf.calls_socket import SUFFIX
from millstream_udf.defining import define
from millstream_udf.execution import open_function
from millstream_udf.wire.udf.v1 import udf_pb2

RECORD_BYTES = 100
SLOW_DELAY_S = 0.02
SLOW_IN_FLIGHT = 500
FUNCTIONS = Path(__file__).parent / "udf_functions.py"


def frame_of(records: int) -> Frame:
    """Values of random-looking, equal size."""
    values = [b"%0*d" % (RECORD_BYTES, index) for index in range(records)]
    return build_frame(values, array("q", range(records)), ingest_time_us=0)


async def measure_stage(function: Callable[..., Any], records: int, seconds: float) -> float:
    """Records per second of CPU."""
    hello = udf_pb2.Hello(protocol_version=1, kind=udf_pb2.KIND_MAP)
    call = udf_pb2.SealedMapCall(call_id=1, frame=frame_of(records).encode())
    async with open_function(define(function, "function"), context_of(hello)) as opened:
        lane = opened.lane()
        await answer_map(lane, hello, call)
        calls, began, ends = 0, time.process_time(), time.monotonic() + seconds
        while time.monotonic() < ends:
            await answer_map(lane, hello, call)
            calls += 1
        return calls * records / (time.process_time() - began)


@dataclass(frozen=True, slots=True)
class Streamed:
    """Of a function in a process of its own."""

    records_per_s: float
    """Of wall clock."""
    caller_ms: float
    """Processor time of a frame here."""
    function_ms: float
    """And there."""


async def measure_stream(
    function: str, records: int, in_flight: int, seconds: float, env: dict[str, str], *, over_grpc: bool
) -> Streamed:
    """Through a process of its own."""
    frame = frame_of(records)
    done = 0
    spec = SidecarSpec(python_command(f"{FUNCTIONS}:{function}"), "udf", "benchmark", function, env=env)
    async with open_local_function(spec, log=lambda _, line: print(line, file=sys.stderr)) as sidecar:
        if over_grpc:
            Path(sidecar.address.removeprefix("unix:") + SUFFIX).unlink()
        async with sidecar.open_map(FunctionKind.MAP, StreamName("benchmark", function, "in.0", 0)) as stream:
            await stream.call(frame, watermark_us=0)
            process = psutil.Process(sidecar.statistics().pid)
            began, here, there, calls = time.monotonic(), time.process_time(), sum(process.cpu_times()[:2]), 0

            async def caller() -> None:
                nonlocal done, calls
                while time.monotonic() - began < seconds:
                    answer = await stream.call(frame, watermark_us=0)
                    done += answer.records
                    calls += 1

            async with asyncio.TaskGroup() as tasks:
                for _ in range(in_flight):
                    tasks.create_task(caller())
            return Streamed(
                done / (time.monotonic() - began),
                1e3 * (time.process_time() - here) / calls,
                1e3 * (sum(process.cpu_times()[:2]) - there) / calls,
            )


async def measure(seconds: float, *, over_grpc: bool) -> dict[str, float]:
    """All figures."""
    functions = runpy.run_path(str(FUNCTIONS))
    figures = {}
    for name in ("identity", "take_record", "give_message", "keep_half"):
        for records in (1, 2000, 4096):
            if records > 1 or name == "identity":
                rate = await measure_stage(functions[name], records, seconds / 4)
                figures[f"stage {name} frames of {records}"] = rate
    for records, in_flight in ((1, 1), (1, 16), (500, 8), (2000, 8), (4096, 8)):
        streamed = await measure_stream("identity", records, in_flight, seconds, {}, over_grpc=over_grpc)
        figures[f"stream identity frames of {records} in flight {in_flight}"] = streamed.records_per_s
        if in_flight > 1:
            figures[f"leg frames of {records}, caller ms"] = streamed.caller_ms
            figures[f"leg frames of {records}, function ms"] = streamed.function_ms
    for records, in_flight in ((100, 12), (500, 4), (1, 500)):
        env = {"MILLSTREAM_UDF_CONCURRENCY": str(SLOW_IN_FLIGHT)}
        streamed = await measure_stream("slow", records, in_flight, seconds, env, over_grpc=over_grpc)
        share = streamed.records_per_s / (SLOW_IN_FLIGHT / SLOW_DELAY_S)
        figures[f"slow frames of {records} calls {in_flight} share of limit"] = share
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each stream figure")
    parser.add_argument("--grpc", action="store_true", help="calls without the socket beside gRPC")
    parser.add_argument("--json", action="store_true", help="one object on the last line")
    arguments = parser.parse_args()
    # As in a worker.
    freed_memory.keep()
    figures = uvloop.run(measure(arguments.seconds, over_grpc=arguments.grpc))
    for name, figure in figures.items():
        print(f"{name:50} {figure:12,.2f}" if figure < 10 else f"{name:50} {figure:12,.0f}")
    if arguments.json:
        print(json.dumps({name: round(figure, 3) for name, figure in figures.items()}))


if __name__ == "__main__":
    main()
