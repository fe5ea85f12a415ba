"""The built-in pipelines of chaos, whose results the oracle computes independently. Pure except `write`.

`mesh`: a generator numbers records, a function gives each a new random id, two file sinks of different formats get all
of them. A function that ran twice for a record must take effect once: both sinks agree on its id.

`windows`: a generator numbers records, a function makes none to two of each, SQL counts and sums them by key and
window, a file sink gets the results.

`push`: a feeder sends records by HTTP until they are acknowledged, a function gives each a new random id, an HTTP
target and a file sink get all of them.

`state`: a generator numbers records, a function gives each a key, another one remembers several things for each key and
puts out what they are after the record, a file sink gets that, and another one the records that failed.
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

_STATE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {{name: chaos-state}}
spec:
  vertices:
    - name: numbers
      source:
        generator:
          records: {records}
          rpu: {rate}
          duration: 1s
          msgSize: 100
          start: "2024-01-01T00:00:00Z"
          eventTimeStep: 1ms
    - name: deal
      udf: {{python: "functions.py:deal", env: [{{name: KEYS, value: "{keys}"}}]{held}}}
    - name: remember
      partitions: {partitions}
      udf:
        python: "functions.py:Remembering"
        state: {{maxBytes: {state_bytes}}}
        retryStrategy: {{backoff: {{interval: 1ms, steps: 6}}}}{held_block}
    - name: totals
      sink: {{file: {{path: totals, format: jsonl, rolling: {{maxAge: 100ms}}}}}}
    - name: refused
      sink: {{file: {{path: refused, format: jsonl, rolling: {{maxAge: 250ms}}}}}}
  edges:
    - {{from: numbers, to: deal}}
    - {{from: deal, to: remember}}
    - {{from: remember, to: totals}}
    - {{from: remember, to: refused, kind: deadLetter}}
"""

_FUNCTIONS = '''\
"""Functions of the pipelines that ship for chaos."""

import json
import os
import uuid
from datetime import timedelta

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


@udf.map
def deal(record: udf.Record) -> udf.Message:
    """Even numbers go to many keys in turn, odd ones to a hundred keys, of which ten at a time are busy."""
    half, odd = divmod(json.loads(record.value)["number"], 2)
    busy = half // 200 % 10 * 10 + half % 10
    return udf.Message(record.value, keys=(f"hot-{busy}" if odd else f"key-{half % int(os.environ['KEYS'])}",))


# By this process: a record fails again for the next one.
failed_once = set()


@udf.map
class Remembering:
    """What is remembered of each key. Busy keys have more."""

    records = udf.counter()
    total = udf.value(int, default=0)
    last = udf.value(bytes)
    digits = udf.map_state(str, int)
    recent = udf.list_state(int, max_items=5)
    session = udf.value(int, default=0, ttl=timedelta(seconds=1))

    def process(self, record: udf.Record) -> dict:
        number, (key,) = json.loads(record.value)["number"], record.keys
        self.total += number
        self.last = record.value
        row = {"key": key, "number": number, "count": self.records.add(1), "total": self.total}
        if key.startswith("hot"):
            digit = str(number // 2 % 7)
            self.digits[digit] = self.digits.get(digit, 0) + 1
            self.recent.append(number)
            self.session += 1
            row |= {"digits": dict(self.digits), "recent": list(self.recent), "session": self.session}
        if number % 97 == 3:
            raise udf.DeadLetter("as it is meant to be")
        if number % 1009 == 5:
            raise ValueError("it fails each time")
        if number % 101 == 7 and number not in failed_once:
            failed_once.add(number)
            raise ValueError("it fails once")
        return row
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
    keyed: bool = False
    """Whether the numbers of keys and of partitions can be chosen."""


SHIPPED = {
    "mesh": BuiltinPipeline("mesh", _MESH, 2.0),
    "windows": BuiltinPipeline("windows", _WINDOWS, 6.0, records=8_000),
    "push": BuiltinPipeline("push", _PUSH, 2.0),
    "state": BuiltinPipeline("state", _STATE, 2.0, keyed=True),
}
KEYS = 1000
"""Keys of a pipeline that has keys, unless an option says otherwise."""
PARTITIONS = 4
_KEY_STATE_BYTES = 400
"""More than what is remembered for a key that is not busy."""
_BUSY_STATE_BYTES = 1 << 20
"""More than what is remembered for those that are."""


def write(
    shipped: BuiltinPipeline,
    directory: Path,
    records: int,
    rate: int,
    ports: Ports,
    *,
    keys: int = KEYS,
    partitions: int = PARTITIONS,
    sandboxed: bool = False,
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
        held_block="\n        sandbox: strict" if sandboxed else "",
        keys=keys,
        partitions=partitions,
        state_bytes=keys * _KEY_STATE_BYTES + _BUSY_STATE_BYTES,
    )
    write_private(file, text)
    functions = directory / "functions.py"
    if not functions.exists():
        # The processes of a run may be reading it.
        write_private(functions, _FUNCTIONS)
    return file
