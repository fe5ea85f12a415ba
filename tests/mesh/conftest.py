"""Pipelines of a few vertices, with their functions, in a test's own directory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from millstream.dead_letter import Envelope, read_envelope

FUNCTIONS = """\
import base64
import json
import os
import random
import time
import uuid

import millstream_udf as udf
from millstream_udf import Drop, DeadLetter, Message, Retry


def identity(value):
    return value


def slow(value):
    time.sleep(0.002)
    return value


def held(value):
    # For as long as a test wants its input to wait.
    while os.path.exists(os.path.join(os.path.dirname(__file__), "hold")):
        time.sleep(0.01)
    return value


@udf.map
def by_parity(record):
    number = json.loads(record.value)["number"]
    tags = ["even" if number % 2 == 0 else "odd"]
    if number % 10 == 0:
        tags.append("ten")
    return Message(record.value, tags=tags)


@udf.map
def twice_or_not(record):
    number = json.loads(record.value)["number"]
    if number % 3 == 0:
        return []
    return [Message(json.dumps({"number": number, "copy": copy})) for copy in range(2)]


@udf.map
def many(record):
    # More than fit into one frame.
    row = json.loads(record.value)
    return [Message(json.dumps({"number": row["number"], "copy": copy})) for copy in range(4200)]


@udf.map
def spread(record):
    # Large frames for each of a few partitions, which cannot be compressed.
    number = json.loads(record.value)["number"]
    filler = [base64.b85encode(random.Random(copy).randbytes(800)).decode() for copy in range(1000)]
    return [
        Message(json.dumps({"number": number, "copy": copy, "filler": filler[copy]}), keys=[f"key-{copy % 8}"])
        for copy in range(1000)
    ]


@udf.map
class Totals:
    total = udf.value(int, default=0)
    # So much that all slots of the changelog are written anew several times.
    note = udf.value(str, default="")

    def process(self, record):
        number = json.loads(record.value)["number"]
        self.total += number
        self.note = str(number) * 4000
        return {"number": number, "key": record.keys[0], "total": self.total}


@udf.map
def whimsical(record):
    row = json.loads(record.value)
    whim, copies = str(uuid.uuid4()), random.choice((1, 2, 3)) if row["number"] % 7 else 0
    return [Message(json.dumps({**row, "whim": whim, "of": copies, "copy": copy})) for copy in range(copies)]


@udf.map
def branded(record):
    row = json.loads(record.value)
    return Message(json.dumps({**row, "keys": list(record.keys), "id": str(uuid.uuid4())}))


@udf.map
def picky(record, context):
    number = json.loads(record.value)["number"]
    if number % 10 == 1:
        raise ValueError(f"number {number} is bad")
    if number % 10 == 2:
        raise Drop("unwanted")
    if number % 10 == 3:
        raise DeadLetter("hopeless")
    if number % 10 == 4 and context.attempt == 0:
        raise ValueError("works the second time")
    return record.value


@udf.map
def countdown(record):
    row = json.loads(record.value)
    rounds = row.get("rounds", row["number"] % 4)
    if rounds == 0:
        return Message(json.dumps({"number": row["number"]}), tags=["done"])
    return Message(json.dumps({"number": row["number"], "rounds": rounds - 1}), tags=["again"])


@udf.map
def slow_countdown(record):
    time.sleep(0.0005)
    return countdown(record)


@udf.source_transform
def dated(record):
    row = json.loads(record.value)
    if row["number"] % 5 == 4:
        return None
    return Message(record.value, keys=[str(row["number"] % 7)], event_time=row["number"] * 1_000_000)
"""


class PipelineFiles:
    """A directory with a pipeline, its functions and what its file sinks wrote."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "functions.py").write_text(FUNCTIONS, encoding="utf-8")

    def write(self, vertices: str, edges: Sequence[str], *, more: str = "") -> Path:
        """The pipeline file. `vertices` is YAML of the list; `edges` are `from -> to`, `from => to` for one with a
        buffer where it would be chained by default, or YAML of an edge; `more` is YAML of further members of the
        spec."""
        lines = ["apiVersion: millstream.io/v1alpha1", "kind: Pipeline", "metadata: {name: p}", "spec:"]
        lines += ["  vertices:", *(f"    {line}" for line in vertices.strip("\n").splitlines()), "  edges:"]
        for edge in edges:
            start, _, end = edge.replace("=>", "->").partition(" -> ")
            more_of_edge = ", chain: false" if " => " in edge else ""
            lines.append(f"    - {{from: {start}, to: {end}{more_of_edge}}}" if end else f"    - {edge}")
        lines += [f"  {line}" for line in more.splitlines()]
        path = self.directory / "pipeline.yaml"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    def rows(self, sink: str) -> list[dict[str, Any]]:
        """What a JSON lines sink has written, file by file."""
        files = sorted((self.directory / sink).glob("*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]

    def envelopes(self, sink: str) -> list[Envelope]:
        """What a sink of dead letters has stored."""
        return [read_envelope(json.dumps(row)) for row in self.rows(sink)]

    def numbers(self, sink: str) -> list[int]:
        """The `number` of each row."""
        return [row["number"] for row in self.rows(sink)]

    @staticmethod
    def generator(records: int | None, **options: object) -> str:
        """YAML of a source vertex `in` that numbers its records. None: it makes records until it is drained."""
        end = {} if records is None else {"records": records}
        settings = json.dumps({**end, "rpu": 0, "msgSize": 40} | options)
        return f"- name: in\n  source: {{generator: {settings}}}\n"

    @staticmethod
    def fed_source() -> str:
        """YAML of a source vertex `in` that gets what `feed` gives it, and goes on waiting for more."""
        return "- name: in\n  source: {file: {paths: [in.jsonl], format: jsonl, follow: true}}\n"

    def feed(self, numbers: Iterable[int]) -> None:
        """Give these to the source: what a test kills has work then, however slow the machine is."""
        with (self.directory / "in.jsonl").open("a", encoding="utf-8") as file:
            file.writelines(f'{{"number": {number}}}\n' for number in numbers)

    @staticmethod
    def function(name: str, *, vertex: str = "map", more: str = "") -> str:
        """YAML of a map vertex that runs one of `FUNCTIONS`."""
        return f"- name: {vertex}\n  udf: {{python: 'functions.py:{name}'{more}}}\n"

    @staticmethod
    def file_sink(name: str, *, more: str = "") -> str:
        """YAML of a JSON lines sink into a directory of its own name."""
        return f"- name: {name}\n  sink: {{file: {{path: {name}, format: jsonl, rolling: {{maxAge: 200ms}}}}}}\n{more}"


@pytest.fixture
def files(tmp_path: Path) -> PipelineFiles:
    return PipelineFiles(tmp_path)
