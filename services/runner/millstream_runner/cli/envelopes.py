"""Reads dead letters from files of envelopes, in every format of file sinks, and from the buffers before sinks."""

from __future__ import annotations

import csv
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from millstream import codes
from millstream.dead_letter import MEMBERS, Envelope, envelope_line, envelope_of, read_envelope, time_text
from millstream.errors import UserError
from millstream.extract import microseconds_of
from millstream.json_parser import parse_json
from millstream.ledger.frames import decoded
from millstream.limits import RECORD_BYTES_MAX
from millstream.plan.plan import Plan
from millstream_runner.local.view import PipelineView, stored_frames

_SUFFIXES = (".jsonl", ".txt", ".csv", ".parquet")
"""Of lines, and of tables."""
_NESTED = ("keys", "headers", "headersBase64")
"""Members that a column contains as JSON text."""
_ROWS_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class FoundEnvelope:
    """One envelope."""

    place: str
    """<file>:<line or row>, or <buffer>:<sequence>[<index>]"""
    line: bytes
    """The envelope as JSON, independent of where it is stored."""
    envelope: Envelope


def read_files(paths: Sequence[Path]) -> Iterator[FoundEnvelope]:
    """The dead letters in these files and directories. Raises `UserError` for a path without any."""
    for path in paths:
        if not path.exists():
            raise UserError(codes.NO_DEAD_LETTERS, f"{path} does not exist")
        files = [path] if path.is_file() else sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES)
        for file in files:
            number = 0
            try:
                for number, row in _rows_of(file):
                    line = row if isinstance(row, bytes) else _line_of(row)
                    yield FoundEnvelope(f"{file}:{number}", line, read_envelope(line))
            except (ValueError, TypeError, csv.Error) as error:
                raise UserError(codes.DEAD_LETTER_UNREADABLE, f"{file}:{number}: {error}") from None


async def read_buffers(view: PipelineView, plan: Plan) -> AsyncIterator[FoundEnvelope]:
    """The dead letters in the buffers of dead-letter edges, which no sink has stored yet."""
    for edge in plan.edges:
        if edge.kind != "deadLetter":
            continue
        for buffer in plan.buffers_of(edge):
            ledger = await view.ledger_of(buffer)
            async for stored in stored_frames(ledger, buffer, await view.consumed(buffer)):
                frame = decoded(ledger.vertex, buffer, stored)
                ids = frame.ids() or [""] * frame.records
                rows = zip(frame.values(), frame.event_times_us(), frame.keys(), frame.headers(), ids, strict=True)
                for index, row in enumerate(rows):
                    line = envelope_line(envelope_of(*row)).encode()
                    yield FoundEnvelope(f"{buffer}:{stored.sequence}[{index}]", line, read_envelope(line))


def _rows_of(file: Path) -> Iterator[tuple[int, bytes | Mapping[str, Any]]]:
    """Each line, or each row of a table, with its number."""
    if file.suffix == ".csv":
        csv.field_size_limit(2 * RECORD_BYTES_MAX)
        with file.open(encoding="utf-8", newline="") as text:
            reader = csv.DictReader(text)
            for row in reader:
                yield reader.line_num, row
    elif file.suffix == ".parquet":
        yield from enumerate(_parquet_rows(file), start=1)
    else:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                yield number, line.rstrip(b"\n")


def _parquet_rows(file: Path) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise UserError(
            codes.EXTRA_NEEDED,
            f"{file}: reading Parquet needs Arrow, which is not installed ({error}): pip install 'millstream[arrow]'",
        ) from error
    try:
        with pq.ParquetFile(file) as table:
            for batch in table.iter_batches(_ROWS_AT_ONCE):
                yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"not a Parquet file: {error}") from None


def _line_of(cells: Mapping[str, Any]) -> bytes:
    """An envelope whose members are columns. An empty cell means an absent member or the empty value."""
    envelope: dict[str, Any] = {}
    for name in MEMBERS:
        cell = cells.get(name)
        if isinstance(cell, datetime):
            cell = time_text(microseconds_of(cell))
        if cell:
            envelope[name] = parse_json(cell) if name in _NESTED else cell
    if "value" in cells and not {"value", "valueBase64"} & envelope.keys():
        envelope["value"] = ""
    return envelope_line(envelope).encode()
