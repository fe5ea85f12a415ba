"""What compression of buffers costs and brings: the same records with each kind, in turns.

    python benchmarks/compression.py [--records N] [--times N] [--kinds none,lz4,zstd] [--json]

file (lines) → map (a plain Python function that returns its input) → blackhole, with `millstream run` as it is, for
three kinds of records:

- events in JSON of some 200 bytes, with names, random numbers, a random session id of 16 digits and times,
- rows of the flights demo in CSV, some 100 bytes each,
- text that cannot be compressed, 100 random characters.

Prints medians: wall and processor seconds above those of a run with few records, the broker's part of the latter, the
most memory of the broker (PSS), and the bytes that the first buffer stores for a record, from the metrics. Before that,
what it takes in one process to compress a full pack and to decompress it, for each MB that it gets smaller.
"""

from __future__ import annotations

import argparse
import base64
import json
import math
import os
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
from demo_cost import FLIGHTS, MIB, Seen

from millstream.compression import Compression
from millstream.frame import Frame, build_frame
from millstream.ledger.compression import Compressor, decompressed
from millstream.ledger.packs import Pack
from millstream.limits import FRAME_BYTES_MAX, FRAME_RECORDS_MAX, PACK_BYTES_MAX, PACK_RECORDS_MAX
from millstream.ports import free_ports

FEW = 2_000
_LOOK_S = 0.1
_PORTS = 8
_ROUNDS = 15
_WRITTEN = re.compile(r'^forwarder_write(_bytes)?_total{.*?\bvertex="in".*} (\S+)$', re.MULTILINE)
_FUNCTION = "def process(value: bytes) -> bytes:\n    return value\n"
_PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {{name: compression}}
spec:
  interStepBuffer: {{compression: {{type: {kind}}}}}
  vertices:
    - {{name: in, source: {{file: {{paths: [records.txt]}}}}}}
    - {{name: same, udf: {{python: "same.py:process"}}}}
    - {{name: out, sink: {{blackhole: {{}}}}}}
  edges:
    - {{from: in, to: same, chain: false}}
    - {{from: same, to: out}}
"""


def events() -> Iterator[str]:
    rng = random.Random(1)
    number = 0
    while True:
        number += 1
        yield json.dumps(
            {
                "id": number,
                "user": f"user-{rng.randrange(100_000)}",
                "session": f"{rng.getrandbits(64):016x}",
                "amount": round(rng.random() * 100, 2),
                "currency": rng.choice(("EUR", "USD", "GBP")),
                "items": [rng.randrange(1000) for _ in range(3)],
                "at": f"2026-01-01T{rng.randrange(24):02d}:{rng.randrange(60):02d}:{rng.random() * 60:06.3f}Z",
                "page": f"/shop/{rng.choice(('shoes', 'shirts', 'hats'))}/{rng.randrange(10_000)}",
                "paid": rng.random() < 0.9,
            }
        )


def rows() -> Iterator[str]:
    file = next((FLIGHTS / "data").glob("*.csv"))
    while True:
        with file.open() as text:
            yield from (line.rstrip("\n") for line in islice(text, 1, None))


def noise() -> Iterator[str]:
    rng = random.Random(1)
    while True:
        yield base64.b64encode(rng.randbytes(75)).decode()


RECORDS: dict[str, Callable[[], Iterator[str]]] = {"JSON": events, "CSV": rows, "random": noise}


def write(directory: Path, of: str, records: int) -> None:
    directory.mkdir()
    with (directory / "records.txt").open("w") as file:
        file.writelines(f"{line}\n" for line in islice(RECORDS[of](), records))
    (directory / "same.py").write_text(_FUNCTION)


def run(directory: Path, kind: str) -> dict[str, float]:
    """The figures of one run."""
    (directory / "pipeline.yaml").write_text(_PIPELINE.format(kind=kind))
    port = free_ports(_PORTS)
    command = [sys.executable, "-m", "millstream_runner", "run", "--fresh", "--data-dir", "state", "pipeline.yaml"]
    command += ["--metrics-port-base", str(port)]
    seen, written = Seen(), (0.0, 1.0)
    before, begun_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with (directory / "output").open("wb") as output:
        started = subprocess.Popen(command, cwd=directory, stdout=output, stderr=subprocess.STDOUT)
        while started.poll() is None:
            with suppress(psutil.Error):
                seen.look(started.pid, directory / "state", 0, 0.0, memory=True)
            written = max(written, stored(port))
            with suppress(subprocess.TimeoutExpired):
                started.wait(_LOOK_S)
    wall_s, after = time.monotonic() - begun_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    if started.returncode:
        sys.exit((directory / "output").read_text()[-4000:])
    return {
        "wall s": wall_s,
        "processor s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "broker s": sum(seconds for name, seconds in seen.seconds.values() if name in ("broker", "nats-server")),
        "broker MiB": seen.pss.get("broker", 0) / MIB,
        "stored bytes": written[0] / written[1],
    }


def stored(port: int) -> tuple[float, float]:
    """Bytes and records that the source has stored so far."""
    size = records = 0.0
    for number in range(_PORTS):
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port + number}/metrics") as answer:
            for is_size, value in _WRITTEN.findall(answer.read().decode()):
                size += float(value) if is_size else 0.0
                records += 0.0 if is_size else float(value)
    return size, max(records, 1.0)


def alone(of: str, kind: str) -> tuple[float, float]:
    """The share of a full pack of these records that is left, and milliseconds for each MB by which it gets smaller."""
    lines = (line.encode() for line in RECORDS[of]())
    times_us = array("q", [1_700_000_000_000_000]) * FRAME_RECORDS_MAX
    frames: list[Frame] = []
    while (
        len(frames) < PACK_RECORDS_MAX // FRAME_RECORDS_MAX
        and sum(one.size for one in frames) < PACK_BYTES_MAX - FRAME_BYTES_MAX
    ):
        values = list(islice(lines, FRAME_RECORDS_MAX))
        frames.append(build_frame(values, times_us, ingest_time_us=times_us[0]))
    data = Pack(frames).encode()
    # After this glibc keeps what is freed, as it does in a lane that has run for a while.
    bytearray(31 * MIB)
    seconds = []
    for _ in range(_ROUNDS):
        begun_s = time.process_time()
        compressed = Compressor(Compression(kind)).stored(data)
        decompressed(compressed)
        seconds.append(time.process_time() - begun_s)
    saved = len(data) - len(compressed)
    return len(compressed) / len(data), statistics.median(seconds) * 1000 / (saved / 1e6) if saved else math.inf


def measure(records: int, times: int, kinds: list[str]) -> dict[str, dict[str, dict[str, float]]]:
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    with tempfile.TemporaryDirectory(prefix="millstream-compression-") as name:
        for of in RECORDS:
            few, many = Path(name, f"{of}-few"), Path(name, f"{of}-many")
            write(few, of, FEW)
            write(many, of, records)
            start = run(few, "none")
            for _ in range(times):
                for kind in kinds:
                    one = run(many, kind)
                    for figure in ("wall s", "processor s", "broker s"):
                        one[figure] -= start[figure]
                    found.setdefault(of, {}).setdefault(kind, []).append(one)
            (many / "records.txt").unlink()
    return {
        of: {
            kind: {figure: statistics.median(one[figure] for one in runs) for figure in runs[0]}
            for kind, runs in by_kind.items()
        }
        for of, by_kind in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--kinds", default="none,lz4,zstd")
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    options = parser.parse_args()
    print(f"load before: {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors", flush=True)
    subprocess.run([sys.executable, "-c", "import demo; demo.prepare()"], cwd=FLIGHTS, check=True)
    kinds = options.kinds.split(",")
    for of in RECORDS:
        for kind in (one for one in kinds if one != "none"):
            left, ms = alone(of, kind)
            print(f"{of}, a pack alone, {kind}: {left:.2f} is left, {ms:.2f} ms for each MB saved", flush=True)
    found: dict[str, Any] = measure(options.records, options.times, kinds)
    for of, by_kind in found.items():
        print(f"{of}, {options.records:,} records")
        for kind, figures in by_kind.items():
            shown = ", ".join(f"{value:,.1f} {figure}" for figure, value in figures.items())
            print(f"  {kind:<5} {options.records / figures['wall s']:>12,.0f} records/s: {shown}")
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
