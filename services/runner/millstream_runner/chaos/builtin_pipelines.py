"""The built-in pipelines of chaos, whose results the oracle computes independently. Pure except `write`.

`mesh`: a generator numbers records, a function gives each a new random id, two file sinks of different formats get all
of them. A function that ran twice for a record must take effect once: both sinks agree on its id.

`windows`: a generator numbers records, a function makes none to two of each, SQL counts and sums them by key and
window, a file sink gets the results.

`push`: a feeder sends records by HTTP until they are acknowledged, a function gives each a new random id, an HTTP
target and a file sink get all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from millstream.files import make_private_directories, write_private

_MESH = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {{name: chaos-mesh}}
spec:
  # So that a disk that is filled on purpose may be a small one.
  limits: {{bufferMaxBytes: 16Mi}}
  vertices:
    - name: numbers
      source: {{generator: {{records: {records}, rpu: {rate}, duration: 1s, msgSize: 60}}}}
    - name: brand
      udf: {{python: "functions.py:brand"{held}}}
    - name: left
      sink: {{file: {{path: left, format: jsonl, rolling: {{maxAge: 100ms}}}}}}
    - name: right
      sink:
        file:
          path: right
          format: csv
          columns: [{{name: number, type: int}}, {{name: id, type: string}}]
          rolling: {{maxAge: 250ms}}
  edges:
    - {{from: numbers, to: brand}}
    - {{from: brand, to: left}}
    - {{from: brand, to: right}}
"""

_WINDOWS = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {{name: chaos-windows}}
spec:
  vertices:
    - name: numbers
      source:
        generator:
          records: {records}
          rpu: {rate}
          duration: 1s
          msgSize: 60
          keyCount: 17
          start: "2024-01-01T00:00:00Z"
          eventTimeStep: {step_us}us
    - name: multiply
      udf: {{python: "functions.py:multiply"{held}}}
    - name: sums
      partitions: 2
      udf:
        groupBy: {{window: {{fixed: {{length: 1s}}}}, keyed: true}}
        sql:
          query: >
            SELECT key, window_start AS start, count(*) AS n, sum(value.number) AS total
            FROM window GROUP BY key, window_start
          value: {{format: json, fields: "number BIGINT, copy INT"}}
    - name: results
      sink:
        file:
          path: results
          format: parquet
          columns:
            - {{name: key, type: string}}
            - {{name: start, type: timestamp}}
            - {{name: n, type: int}}
            - {{name: total, type: int}}
          rolling: {{maxAge: 100ms}}
  edges:
    - {{from: numbers, to: multiply}}
    - {{from: multiply, to: sums}}
    - {{from: sums, to: results}}
"""

_PUSH = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {{name: chaos-push}}
spec:
  vertices:
    - name: orders
      partitions: 2
      source:
        http: {{port: {source_port}}}
        keys: [key]
    - name: stamp
      partitions: 2
      udf: {{python: "functions.py:stamp"{held}}}
    - name: delivered
      sink:
        http: {{url: "http://127.0.0.1:{target_port}/", batch: {{maxRecords: 20}}, timeout: 3s}}
        retryStrategy: {{backoff: {{interval: 50ms, factor: 2, cap: 500ms}}}}
    - name: kept
      sink: {{file: {{path: kept, format: jsonl, rolling: {{maxAge: 100ms}}}}}}
  edges:
    - {{from: orders, to: stamp}}
    - {{from: stamp, to: delivered}}
    - {{from: stamp, to: kept}}
"""

_FUNCTIONS = '''\
"""Functions of the pipelines that ship for chaos."""

import json
import uuid

import millstream_udf as udf


def brand(value: bytes) -> str:
    """A random id for the record: a second call for the same record gives another."""
    return json.dumps({"number": json.loads(value)["number"], "id": str(uuid.uuid4())})


def stamp(value: bytes) -> str:
    """The same, with what was sent."""
    record = json.loads(value)
    return json.dumps({"number": record["number"], "nonce": record["nonce"], "id": str(uuid.uuid4())})


@udf.map
def multiply(record: udf.Record) -> list[udf.Message]:
    """None, one or two of each record, by its number."""
    number = json.loads(record.value)["number"]
    return [
        udf.Message(json.dumps({"number": number, "copy": copy}), keys=record.keys) for copy in range(number % 3)
    ]
'''


@dataclass(frozen=True, slots=True)
class Ports:
    """External ports of `push`: free ones on the loopback."""

    source: int
    """The next one is free, too."""
    target: int


@dataclass(frozen=True, slots=True)
class BuiltinPipeline:
    """A built-in pipeline."""

    name: str
    """What the user calls it; it also tells the oracle what to compute."""
    text: str
    """The pipeline with placeholders for `records`, `rate`, ports, and the sandbox of functions."""
    seconds_per_kill: float
    """How long its records last for each kill."""
    records: int = 20_000
    """Number of records, unless an option says otherwise."""


SHIPPED = {
    "mesh": BuiltinPipeline("mesh", _MESH, 2.0),
    "windows": BuiltinPipeline("windows", _WINDOWS, 6.0, records=8_000),
    "push": BuiltinPipeline("push", _PUSH, 2.0),
}


def write(
    shipped: BuiltinPipeline, directory: Path, records: int, rate: int, ports: Ports, *, sandboxed: bool = False
) -> Path:
    """Write the pipeline and its functions, in a strict sandbox or not, into `directory`; returns the pipeline file."""
    make_private_directories(directory)
    file = directory / f"{shipped.name}.yaml"
    step_us = round(1_000_000 / rate) if rate else 1000
    text = shipped.text.format(
        records=records,
        rate=rate,
        step_us=step_us,
        source_port=ports.source,
        target_port=ports.target,
        held=", sandbox: strict" if sandboxed else "",
    )
    write_private(file, text)
    functions = directory / "functions.py"
    if not functions.exists():
        # The processes of a run may be reading it.
        write_private(functions, _FUNCTIONS)
    return file
