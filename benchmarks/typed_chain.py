"""What a second function with types costs: two functions, and one that calls both.

    python benchmarks/typed_chain.py [--records N] [--rounds N] [--json]

file (lines of 120 bytes) → price → tax → blackhole, with `millstream run` as it is: with a buffer between the two
functions, with both in a chain, and as one function that calls both and passes the object on. The difference between
the last two is all that the second function costs in a chain: writing and parsing JSON, and the way to its process.
Functions with types (dataclasses, with msgspec), and functions of Arrow's columns with a schema, which pass on their
columns in a chain and need no JSON between them. Figures are processor seconds of all processes for a million records,
above those of a run with few records; medians of the rounds, in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path

from json_map import FEW, run
from typed_records import values_of

OBJECTS = '''\
"""Two functions with types, and both in one."""

from dataclasses import dataclass


@dataclass
class Order:
    id: int
    customer: str
    item: str
    pieces: int
    price: float


@dataclass
class Priced:
    id: int
    customer: str
    item: str
    total: float


@dataclass
class Taxed:
    id: int
    customer: str
    total: float
    tax: float


def price(order: Order) -> Priced:
    return Priced(order.id, order.customer, order.item, order.pieces * order.price)


def tax(order: Priced) -> Taxed:
    return Taxed(order.id, order.customer, order.total, order.total * 0.19)


def both(order: Order) -> Taxed:
    return tax(price(order))
'''
COLUMNS = '''\
"""Two functions of columns, and both in one."""

import pyarrow as pa
import pyarrow.compute as pc

import millstream_udf as udf

TEXT, INT, FLOAT = pa.string(), pa.int64(), pa.float64()
ORDER = pa.schema({"id": INT, "customer": TEXT, "item": TEXT, "pieces": INT, "price": FLOAT})
PRICED = pa.schema({"id": INT, "customer": TEXT, "item": TEXT, "total": FLOAT})


def _with(batch, names, name, column):
    columns = [*(batch[kept] for kept in names), column, batch["parent"]]
    return pa.RecordBatch.from_arrays(columns, names=[*names, name, "parent"])


def _priced(batch):
    return _with(batch, ["id", "customer", "item"], "total", pc.multiply(batch["pieces"], batch["price"]))


def _taxed(batch):
    return _with(batch, ["id", "customer", "total"], "tax", pc.multiply(batch["total"], 0.19))


@udf.map(arrow=True, schema=ORDER)
def price(batch):
    return _priced(batch)


@udf.map(arrow=True, schema=PRICED)
def tax(batch):
    return _taxed(batch)


@udf.map(arrow=True, schema=ORDER)
def both(batch):
    return _taxed(_priced(batch))
'''
KINDS = {"objects": OBJECTS, "columns": COLUMNS}
TWO = """\
    - {{name: price, udf: {{python: "functions.py:price"}}}}
    - {{name: tax, udf: {{python: "functions.py:tax"}}}}
    - {{name: out, sink: {{blackhole: {{}}}}}}
  edges:
    - {{from: in, to: price}}
    - {{from: price, to: tax{chain}}}
    - {{from: tax, to: out}}
"""
ONE = """\
    - {name: both, udf: {python: "functions.py:both"}}
    - {name: out, sink: {blackhole: {}}}
  edges:
    - {from: in, to: both}
    - {from: both, to: out}
"""
HEAD = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: typed}
spec:
  vertices:
    - {name: in, source: {file: {paths: [orders.txt]}}}
"""
WAYS = {
    "a buffer": HEAD + TWO.format(chain=", chain: false"),
    "a chain": HEAD + TWO.format(chain=", chain: true"),
    "one function": HEAD + ONE,
}


def seconds_of(directory: Path, kind: str, pipeline: str, records: int) -> float:
    """Processor seconds of a whole run."""
    directory.mkdir()
    (directory / "orders.txt").write_bytes(b"\n".join(values_of(records)) + b"\n")
    (directory / "functions.py").write_text(KINDS[kind])
    (directory / "pipeline.yaml").write_text(pipeline)
    return run(directory)[0]


def measure(ways: Mapping[str, str], few: int, records: int, rounds: int) -> dict[str, float]:
    """For a million records, by kind and way. `ways`: pipelines by name; `few`: records of the subtracted run."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for kind in KINDS:
            for way, pipeline in ways.items():
                with tempfile.TemporaryDirectory(prefix="millstream-typed-") as name:
                    start = seconds_of(Path(name, "few"), kind, pipeline, few)
                    whole = seconds_of(Path(name, "many"), kind, pipeline, records)
                found.setdefault(f"{kind}, {way}", []).append((whole - start) / (records - few) * 1e6)
    return {name: statistics.median(each) for name, each in found.items()}


def tell(benchmark: str, text: str | None, ways: Mapping[str, str], few: int, records: int) -> None:
    """Measure as the command line says, and print the figures. `text`: what the help says; `records`: the default."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=records)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    options = parser.parse_args()
    if not options.json:
        print(f"load before: {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors", flush=True)
    found = measure(ways, few, options.records, options.rounds)
    if options.json:
        print(json.dumps({"benchmark": benchmark, **found}))
        return
    for name, each in found.items():
        print(f"  {each:6.2f} processor s for a million records: {name}")


if __name__ == "__main__":
    tell("typed_chain", __doc__, WAYS, FEW, 600_000)
