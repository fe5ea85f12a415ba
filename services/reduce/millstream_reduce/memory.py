"""An engine in the process itself: implements the boundary without Spark, with faults on request.

    windows ─► their rows, read from the log by reference, checksums verified ─► groups ─► a function ─► results

For tests and simulations; both engines pass one contract suite, `tests/contract/reduce/test_engines.py`. Programs are
ignored: the function passed in is the program. Above it: users of a `WindowEngine`. Below it: entries of the log.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from millstream import codes
from millstream.errors import DamageError, MillstreamError
from millstream.wire.reduce.v1 import engine_pb2
from millstream_reduce.batches import as_bytes, decoded
from millstream_reduce.engine import RESULT_SCHEMA
from millstream_reduce.log.entries import EntryError, read_entry, segment_name
from millstream_reduce.values import Location, WindowContents, WindowTable


class WindowRow(NamedTuple):
    """A record in a window."""

    value: bytes
    keys: tuple[str, ...]


Compute = Callable[[tuple[str, ...], Sequence[WindowRow]], Sequence[bytes]]
"""Values of the results of one group: its keys, which are empty unless the program is keyed, and its rows in the order
of the log. An exception fails the window."""


@dataclass(slots=True)
class EngineFaults:
    """What goes wrong next. Each fault occurs once."""

    deaths: int = 0
    """Runs after which the engine dies before it has answered, and is asked again."""
    refusals: list[str] = field(default_factory=list)
    """Reasons why the next programs that are checked cannot run."""
    failing: set[int] = field(default_factory=set)
    """Windows of the next run that fail, by index."""


class MemoryEngine:
    """`WindowEngine` with one program."""

    def __init__(
        self, compute: Compute, *, faults: EngineFaults | None = None, rng: random.Random | None = None
    ) -> None:
        """`rng`: shuffles the groups of all windows, as a real shuffle would."""
        self._compute = compute
        self.faults = faults or EngineFaults()
        self._rng = rng

    async def check(self, program: engine_pb2.Program) -> engine_pb2.CheckResponse:
        refusals, self.faults.refusals = self.faults.refusals, []
        return engine_pb2.CheckResponse(faults=refusals)

    async def run(self, request: engine_pb2.RunRequest) -> tuple[pa.Table, engine_pb2.RunSummary]:
        while self.faults.deaths:
            self.faults.deaths -= 1
            self._run(request)
        return self._run(request)

    def _run(self, request: engine_pb2.RunRequest) -> tuple[pa.Table, engine_pb2.RunSummary]:
        summary = engine_pb2.RunSummary(job_windows=request.windows.count, job_requests=1, job_tag="memory")
        failing, self.faults.failing = self.faults.failing, set()
        groups: list[list[dict[str, Any]]] = []
        windows = WindowTable.from_message(request.windows)
        for index, (window, size) in enumerate(zip(windows, windows.rows.tolist(), strict=True)):
            if index in failing:
                summary.failures.add(window=index, reason="fails now and then")
                continue
            held = rows_of(Path(request.directory), window, size)
            try:
                groups += self._results(index, held, keyed=request.program.keyed)
            except Exception as error:  # noqa: BLE001  # whatever a program raises fails its window alone
                summary.failures.add(window=index, reason=f"{type(error).__name__}: {error}")
        if self._rng is not None:
            self._rng.shuffle(groups)
        return pa.Table.from_pylist([row for group in groups for row in group], schema=RESULT_SCHEMA), summary

    def _results(self, index: int, held: Sequence[WindowRow], *, keyed: bool) -> list[list[dict[str, Any]]]:
        """Those of each group."""
        groups: dict[tuple[str, ...], list[WindowRow]] = {}
        for row in held:
            groups.setdefault(row.keys if keyed else (), []).append(row)
        return [
            [{"window": index, "keys": list(keys) or None, "value": value} for value in self._compute(keys, rows)]
            for keys, rows in groups.items()
        ]


def rows_of(directory: Path, window: WindowContents, size: int) -> Sequence[WindowRow]:
    """The records of a window, in the order of the log. Raises `DamageError` when a segment is gone or damaged, and
    `MillstreamError` where the window's pieces do not come to its `size`."""
    held: list[WindowRow] = []
    bodies: dict[Location, list[WindowRow]] = {}
    for piece in window.pieces:
        if piece.location not in bodies:
            bodies[piece.location] = _rows_at(directory, piece.location)
        held += bodies[piece.location][piece.first_row : piece.first_row + piece.rows]
    if len(held) != size:
        raise MillstreamError(
            codes.IMPOSSIBLE, f"a window of {size} rows was handed over, but {directory} has {len(held)} of them"
        )
    return held


def _rows_at(directory: Path, location: Location) -> list[WindowRow]:
    path = directory / segment_name(location.segment)
    try:
        entry = read_entry(memoryview(path.read_bytes()), location.offset)
    except FileNotFoundError as error:
        raise DamageError(codes.SEGMENT_MISSING, f"segment {path} is missing") from error
    except EntryError as fault:
        raise DamageError(codes.SEGMENT_DAMAGED, f"{path}, {fault}") from fault
    append = entry.message().append
    batch = decoded(entry.body, append)
    values: list[bytes] = as_bytes(batch.column("value")).to_pylist()
    keys: list[Any] = batch.column("keys").to_pylist() if append.has_keys else [()] * batch.num_rows
    return [WindowRow(value, tuple(parts or ())) for value, parts in zip(values, keys, strict=True)]
