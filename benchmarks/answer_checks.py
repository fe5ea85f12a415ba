"""What it costs to check the answers of functions: processor time of the checks of one answer, beside what `bench map`
takes for as many records in the same run.

    python benchmarks/answer_checks.py
    python benchmarks/answer_checks.py --keys --records 4000000

Processor times are compared, so a busy machine changes both sides alike.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

from millstream.udf.checks import check_parts
from millstream.udf.native.messages import map_answer_of
from millstream_udf.columns import pack_bytes, pack_headers, pack_lists, pack_no_headers, pack_no_lists, pack_offsets
from millstream_udf.wire.udf.v1 import udf_pb2

FRAME_RECORDS = 4096
ROUNDS = 200


def answer(size: int, *, keyed: bool) -> bytes:
    """Of a map that gives back what it gets; with `keyed`, as one that sets keys, headers and parents."""
    message = udf_pb2.SealedMapAnswer(records=FRAME_RECORDS, values=pack_bytes([b"x" * size] * FRAME_RECORDS))
    if keyed:
        message.keys = pack_lists([(b"key-%d" % (number % 1000),) for number in range(FRAME_RECORDS)])
        message.headers = pack_headers([{"source": b"bench"}] * FRAME_RECORDS)
        message.parents = pack_offsets(range(FRAME_RECORDS))
    else:
        message.keys, message.headers = pack_no_lists(FRAME_RECORDS), pack_no_headers(FRAME_RECORDS)
    return message.SerializeToString()


def checks_s(message: bytes) -> float:
    """Processor seconds of the checks of one answer, as values of ours; decoding the message is left out."""
    decoded = udf_pb2.SealedMapAnswer.FromString(message)
    taken = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        check_parts(message)
        map_answer_of(decoded, FRAME_RECORDS)
        taken.append(time.process_time() - begun)
    return statistics.median(taken)


def pipeline_s(records: int, size: int) -> tuple[float, float]:
    """Processor seconds a record of `bench map`: of all processes, and of the map with its function."""
    command = [
        sys.executable,
        "-m",
        "millstream_runner",
        "bench",
        "map",
        "--records",
        str(records),
        "--size",
        str(size),
        # What the map takes is reported for its process.
        "--workers",
        "3",
    ]
    ended = subprocess.run([*command, "-o", "json"], capture_output=True, text=True, check=True)
    result = json.loads(ended.stdout.splitlines()[-1])
    through = result["records_per_s"] * result["elapsed_s"]
    use = {name: process["cpu_s"] for name, process in result["processes"].items()}
    return sum(use.values()) / through, use["map-0"] / through


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a value")
    parser.add_argument("--keys", action="store_true", help="check an answer with keys, headers and parents")
    options = parser.parse_args()
    each = checks_s(answer(options.size, keyed=options.keys)) / FRAME_RECORDS
    whole, of_map = pipeline_s(options.records, options.size)
    print(f"checks      {1e9 * each:8.1f} ns of processor time a record, in answers of {FRAME_RECORDS:,}")
    print(f"bench map   {1e9 * whole:8.1f} ns, of which {1e9 * of_map:.1f} in the map and its function")
    print(f"share       {each / whole:8.2%} of the pipeline, {each / of_map:.2%} of the map")


if __name__ == "__main__":
    main()
