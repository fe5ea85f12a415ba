"""Spark's place in a simulation: computes the windows of a request where it stands, and takes its time.

It reads the pieces of the log as Spark's tasks do, by reference and with every checksum, and tells for each group
exactly which records it holds. Asking twice has no effect.

Above it: `world`. Below it: the log's entries.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from millstream.errors import DamageError
from millstream.wire.reduce.v1 import engine_pb2, wal_pb2
from millstream_reduce.batches import decoded
from millstream_reduce.engine import RESULT_SCHEMA
from millstream_reduce.log.entries import read_entry, segment_name
from millstream_reduce.values import Location, WindowContents
from tests.simulation.history import Violation

SEPARATOR = b"|"
"""Between the values of a result."""

Held = tuple[bytes, tuple[str, ...]]
"""A record in a window: its value and its keys."""


class SimSpark:
    """`Engine` of one process."""

    def __init__(self, rng: random.Random, pause_s: Callable[[], float], failing: float) -> None:
        """`failing`: share of requests of which one window fails."""
        self._rng = rng
        self._pause_s = pause_s
        self._failing = failing

    async def check(self, program: engine_pb2.Program) -> engine_pb2.CheckResponse:
        await asyncio.sleep(self._pause_s())
        return engine_pb2.CheckResponse()

    async def run(self, request: engine_pb2.RunRequest) -> tuple[pa.Table, engine_pb2.RunSummary]:
        await asyncio.sleep(self._pause_s())
        while self._rng.random() < 0.1:
            # The driver dies before its answer is told whole, and is asked again.
            self._compute(request)
            await asyncio.sleep(self._pause_s())
        table, summary = self._compute(request)
        await asyncio.sleep(self._pause_s())
        return table, summary

    def _compute(self, request: engine_pb2.RunRequest) -> tuple[pa.Table, engine_pb2.RunSummary]:
        summary = engine_pb2.RunSummary(job_s=0.0)
        fails = self._rng.randrange(len(request.windows)) if self._rng.random() < self._failing else None
        rows = []
        for index, window in enumerate(request.windows):
            if index == fails:
                summary.failures.add(window=index, reason="fails now and then")
                continue
            held = contents_of(Path(request.directory), window)
            if len(held) != window.rows:
                raise Violation(f"I3: a window of {window.rows} rows holds {len(held)}")
            groups: dict[tuple[str, ...], list[bytes]] = {}
            for value, keys in held:
                groups.setdefault(keys if request.program.keyed else (), []).append(value)
            found = [
                {"window": index, "keys": list(keys) or None, "value": SEPARATOR.join(map(name_of, values))}
                for keys, values in groups.items()
            ]
            # Groups come in another order each time, as from a shuffle.
            self._rng.shuffle(found)
            rows.extend(found)
        table = pa.Table.from_pylist(rows, schema=RESULT_SCHEMA)
        return table, summary


def name_of(value: bytes) -> bytes:
    """What a record is called in results: itself, or, when it is a result, a digest of it."""
    return value if SEPARATOR not in value else b"~" + hashlib.md5(value, usedforsecurity=False).hexdigest().encode()


def contents_of(directory: Path, window: wal_pb2.Window) -> Sequence[Held]:
    """The records of a window, in the order of the log."""
    held: list[Held] = []
    bodies: dict[Location, list[Held]] = {}
    for piece in WindowContents.from_message(window).pieces:
        if piece.location not in bodies:
            try:
                data = memoryview((directory / segment_name(piece.segment)).read_bytes())
            except FileNotFoundError as error:
                raise DamageError(f"segment {piece.segment} of {directory} is gone") from error
            entry = read_entry(data, piece.offset)
            append = entry.message().append
            batch = decoded(entry.body, append.has_keys, append.has_headers)
            values: list[bytes] = batch.column("value").to_pylist()  # type: ignore[assignment]  # it has no nulls
            keys: list[Any] = batch.column("keys").to_pylist() if append.has_keys else [()] * batch.num_rows
            bodies[piece.location] = [(value, tuple(parts or ())) for value, parts in zip(values, keys, strict=True)]
        held += bodies[piece.location][piece.first_row : piece.first_row + piece.rows]
    return held
