"""What is in a file sink's directory, as a reader of finished files sees it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq

from millstream.clock import SystemClock
from millstream.record import LaneId, Position
from millstream.spec.models import FallbackSink
from millstream_connectors.file.sink.names import FinishedName
from millstream_writer.connector import HeldInstead, SinkOwner

COLUMNS = [{"name": "n", "type": "int"}, {"name": "text", "type": "string"}]


NOWHERE = Position(0)


def file_spec(path: Path, file_format: str, **rolling: object) -> FallbackSink:
    columns = [] if file_format == "jsonl" else COLUMNS
    options = {"path": str(path), "format": file_format, "columns": columns, "rolling": rolling}
    return FallbackSink.model_validate({"file": options})


async def held(sequence: int, name: str) -> str | None:
    """A buffer that holds whatever a file says it held."""
    return None


def sink_owner(
    epoch: int,
    *,
    start: Position = NOWHERE,
    partition: int = 0,
    ledger_id: str = "first",
    pipeline: str = "p",
    held_instead: HeldInstead = held,
) -> SinkOwner:
    return SinkOwner(
        pipeline=pipeline,
        lane=LaneId("out", "in-out", partition),
        replica=0,
        epoch=epoch,
        start=start,
        ledger_id=ledger_id,
        base_dir=Path("."),
        clock=SystemClock(),
        held_instead=held_instead,
    )


def value_of(number: int) -> bytes:
    return json.dumps({"n": number, "text": f"text {number}"}).encode()


def finished_files(path: Path) -> list[Path]:
    """In the order of their records. There is nothing else beside the hidden directory."""
    files = sorted(entry for entry in path.iterdir() if entry.name != ".millstream")
    assert all(FinishedName.parse(file.name) is not None for file in files)
    return files


def numbers_in(path: Path) -> list[int]:
    """The records of all finished files, each read as the whole file it must be."""
    return [number for file in finished_files(path) for number in numbers_of(file.name, file.read_bytes())]


def leftovers(path: Path) -> list[Path]:
    """Unfinished files, and directories on their way out."""
    hidden = path / ".millstream"
    return [
        entry
        for entry in hidden.rglob("*")
        if (entry.is_file() and entry.suffix != ".note") or entry.name.startswith("removed-")
    ]


def numbers_of(name: str, data: bytes) -> list[int]:
    """The records of a file, which must be whole."""
    rows: list[Any]
    if name.endswith(".parquet"):
        rows = pq.read_table(io.BytesIO(data)).to_pylist()
    elif name.endswith(".avro"):
        rows = list(fastavro.reader(io.BytesIO(data)))
    elif name.endswith(".csv"):
        rows = list(csv.DictReader(io.StringIO(data.decode(), newline="")))
    else:
        assert data.endswith(b"\n")
        rows = [json.loads(line) for line in data.splitlines()]
    assert rows, f"{name} is empty"
    assert all(row["text"] == f"text {row['n']}" for row in rows)
    return [int(row["n"]) for row in rows]
