"""Spark's place in a simulation: the engine of one process, which computes where it stands, and takes its time.

It tells for each group exactly which records it holds. Above it: `world`. Below it: the engine in memory.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable, Sequence

import pyarrow as pa

from millstream.wire.reduce.v1 import engine_pb2
from millstream_reduce.memory import MemoryEngine, WindowRow

SEPARATOR = b"|"
"""Between the values of a result."""


class SimEngine:
    """`WindowEngine` of one process."""

    def __init__(self, rng: random.Random, pause_s: Callable[[], float], failing: float) -> None:
        """`failing`: share of requests of which one window fails."""
        self._rng = rng
        self._pause_s = pause_s
        self._failing = failing
        self._engine = MemoryEngine(names_of, rng=rng)

    async def check(self, program: engine_pb2.Program) -> engine_pb2.CheckResponse:
        await asyncio.sleep(self._pause_s())
        return await self._engine.check(program)

    async def run(self, request: engine_pb2.RunRequest) -> tuple[pa.Table, engine_pb2.RunSummary]:
        await asyncio.sleep(self._pause_s())
        while self._rng.random() < 0.1:
            # It dies before its whole answer is sent, and is asked again.
            self._engine.faults.deaths += 1
            await asyncio.sleep(self._pause_s())
        if self._rng.random() < self._failing:
            self._engine.faults.failing.add(self._rng.randrange(request.windows.count))
        answer = await self._engine.run(request)
        await asyncio.sleep(self._pause_s())
        return answer


def names_of(keys: tuple[str, ...], rows: Sequence[WindowRow]) -> list[bytes]:
    """One result for each group: its records."""
    return [SEPARATOR.join(name_of(row.value) for row in rows)]


def name_of(value: bytes) -> bytes:
    """What a record is called in results: itself, or, when it is a result, a digest of it."""
    return value if SEPARATOR not in value else b"~" + hashlib.md5(value, usedforsecurity=False).hexdigest().encode()
