"""The boundary between windows and what computes them: rows of closed windows in, tables of results out.

    lane ─► Program + windows, by reference ─► ENGINE ─► rows, windows that failed ─► lane ─► commit
                        │                         ▲
                     the log ─── segments, read ──┘

Above it: the lanes of reduces, which decide when windows are computed and commit the results. Below it: an engine.
Pipelines use `millstream_reduce.spark`; `millstream_worker` opens its client for the lanes of a process.
`millstream_reduce.memory` is for tests. Nothing above the boundary imports Spark's (`make lint` checks it).

A computation has no effect: the engine writes nothing, and its input is frozen. So any caller may repeat a run at any
time, even while the first one is in progress, and each answer may be different: only the fenced commit decides whose
results count. An engine that dies leaves nothing to clean up. Results without a complete answer do not exist.
"""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from millstream.wire.reduce.v1 import engine_pb2

RESULT_SCHEMA = pa.schema([
    ("window", pa.int32()),
    ("keys", pa.list_(pa.string())),
    ("value", pa.binary()),
    ("tags", pa.list_(pa.string())),
    ("headers", pa.map_(pa.string(), pa.binary())),
])  # fmt: skip
"""One row for each result. `window`: index of its window in the request; nulls of the others: none."""


class WindowEngine(Protocol):
    """Computes closed windows. Any number of calls may be in progress at once."""

    async def check(self, program: engine_pb2.Program) -> engine_pb2.CheckResponse:
        """Check whether a program can run, without computing a window. Waits until the engine can be reached."""

    async def run(self, request: engine_pb2.RunRequest) -> tuple[pa.Table, engine_pb2.RunSummary]:
        """Compute the windows of a request: each is a list of row ranges in the segments of `request.directory`.

        Rows have `RESULT_SCHEMA`; windows, and the groups of a window, are in any order, and the results of one group
        in the order in which its program returned them. A window for which its program failed is in `summary.failures`
        with its index, and has no rows; the others are not affected.

        Waits for an engine that is not reachable or has died, however long, and asks again. Raises errors that a
        repetition would not change: `DamageError` (a segment is missing or has a wrong checksum), `UserError` (a
        program that cannot run), `UdfError`, `InfrastructureError`. Cancelling abandons the request; the engine may
        continue for a while.
        """
