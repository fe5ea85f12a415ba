"""Computes hand-overs for a reduce lane: runs of the engine, the order of results, and the handling of windows that
fail.

Above it: the reduce lane. Below it: an engine. It knows rows of results and the retry policy; it does
not know where the windows came from.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from google.protobuf.message import DecodeError

from millstream import codes
from millstream.dead_letter import time_text
from millstream.errors import DamageError, UdfError, UserError
from millstream.json_parser import parse_json
from millstream.limits import MIB
from millstream.pauses import RepeatedFailure
from millstream.record import LaneId
from millstream.retry import OnFailure, RetryPolicy
from millstream.tracebacks import places
from millstream.wire.reduce.v1 import engine_pb2, wal_pb2
from millstream_reduce.engine import WindowEngine
from millstream_reduce.group_keys import key_texts
from millstream_reduce.values import WindowContents, WindowTable
from millstream_reduce.windows.grouping import rises, stable_order
from millstream_udf.arrow_values import stream_of

_log = logging.getLogger(__name__)

_ORDERED_BYTES = 1024 * MIB
"""At most so many bytes of results are ordered at once: Arrow joins them to one array, whose offsets have 32 bits."""


@dataclass(slots=True)
class WindowResults:
    """The results for the windows of one hand-over."""

    rows: pa.Table
    """Window by window, in the order of the hand-over."""
    failures: list[engine_pb2.WindowFailure] = field(default_factory=list)
    """Windows that no attempt could compute, for the dead-letter edge or the count of dropped records."""
    retries: int = 0
    errors: int = 0
    job_s: float = 0.0
    job_tags: list[str] = field(default_factory=list)
    """The engine's names for its jobs."""

    def encode(self) -> bytes:
        """For the result file, from which a commit in parts continues after a restart."""
        failures = json.dumps([failure.SerializeToString().hex() for failure in self.failures])
        return stream_of(self.rows.replace_schema_metadata({b"failures": failures.encode()}))

    @classmethod
    def decode(cls, data: bytes) -> WindowResults:
        """Inverse of `encode`. Raises `DamageError` for bytes that are not such a file."""
        try:
            table = pa.ipc.open_stream(data).read_all()
            table.validate(full=True)
            failures = parse_json((table.schema.metadata or {})[b"failures"])
            messages = [engine_pb2.WindowFailure.FromString(bytes.fromhex(text)) for text in failures]
        except (pa.ArrowException, OSError, KeyError, TypeError, ValueError, DecodeError) as error:
            raise DamageError(
                codes.RESULTS_LOST, f"kept results of windows cannot be read ({len(data)} bytes: {error})"
            ) from error
        return cls(table, messages)


class HandOverJobs:
    """Computes hand-overs for one lane."""

    def __init__(
        self,
        engine: WindowEngine,
        program: engine_pb2.Program,
        policy: RetryPolicy,
        *,
        directory: str,
        where: str,
        lane: LaneId,
        replica: int,
        rng: random.Random,
    ) -> None:
        """`where` names pipeline, vertex and lane in messages; `lane` and `replica` are for the context of
        functions."""
        self._engine = engine
        self._program = program
        self._policy = policy
        self._directory = directory
        self._where = where
        self._lane = lane
        self._replica = replica
        self._rng = rng

    async def check(self) -> None:
        """Raises `UserError` if the program cannot run at all, long before the first window closes."""
        answer = await self._engine.check(self._program)
        if answer.faults:
            raise UserError(codes.QUERY, "\n".join([f"{self._where}: the windows cannot be computed", *answer.faults]))

    async def compute(self, hand_over: wal_pb2.HandOver, traceparent: str) -> WindowResults:
        """The results of every window; those that fail are tried again alone. Raises `UdfError` when one has
        failed at its last attempt and the policy says stop."""
        tables: list[pa.Table] = []
        results = WindowResults(pa.table({}))
        windows = WindowTable.of_hand_over(hand_over)
        waiting, attempt, failing = list(range(len(windows))), 0, RepeatedFailure()
        while waiting:
            request = engine_pb2.RunRequest(
                program=self._program,
                directory=self._directory,
                windows=(windows.take(waiting) if attempt else windows).message(),
                vertex=self._lane.vertex,
                lane=self._lane.key,
                replica=self._replica,
                attempt=attempt,
                watermark_us=hand_over.closed_us,
                traceparent=traceparent,
            )
            table, summary = await self._engine.run(request)
            tables.append(_with_windows(table, waiting) if attempt else table)
            results.job_s += summary.job_s
            results.job_tags.append(summary.job_tag)
            if not summary.failures:
                break
            results.errors += len(summary.failures)
            failures = {waiting[failure.window]: failure for failure in summary.failures}
            attempt += 1
            if not self._policy.backoff.allows(attempt):
                results.failures = self._give_up(windows, failures)
                break
            results.retries += len(failures)
            waiting = sorted(failures)
            if self._policy.on_failure is OnFailure.RETRY:
                # Nothing else says why the lane stands.
                failed = self._named(windows[waiting[0]], failures[waiting[0]])
                failing.warn(_log, "", f"{failed}; trying again")
            await asyncio.sleep(self._policy.backoff.delay_s(attempt, self._rng))
        failing.over(_log, f"{self._where}: ")
        results.rows = in_order_of_windows(pa.concat_tables(tables))
        return results

    def _give_up(
        self, windows: WindowTable, failures: Mapping[int, engine_pb2.WindowFailure]
    ) -> list[engine_pb2.WindowFailure]:
        given_up = []
        for index, failure in sorted(failures.items()):
            failure.window = index
            given_up.append(failure)
        if self._policy.on_failure in (OnFailure.STOP, OnFailure.RETRY):
            first = given_up[0]
            # Of a traceback, the user's own frames; the reason already says what was raised.
            short = "\n".join(places(first.detail)) or first.detail
            raise UdfError(
                codes.WINDOW_FAILED,
                f"{self._named(windows[first.window], first)}\n{short}".rstrip()
                + "\nNothing was lost: fix the function and start again, or set `retryStrategy.onFailure` to drop such "
                "windows or to send them to a dead-letter edge.",
                detail=first.detail if short != first.detail else "",
            )
        return given_up

    def _named(self, contents: WindowContents, failure: engine_pb2.WindowFailure) -> str:
        """A window that failed, and why, in one line."""
        window = describe(contents, failure)
        key = f", key {window['key']!r}" if "key" in window else ""
        return f"{self._where}: window {window['start']} to {window['end']}{key}: {failure.reason}"


def describe(contents: WindowContents, failure: engine_pb2.WindowFailure) -> dict[str, Any]:
    """A window that failed, for people and for dead letters."""
    window = contents.window
    description: dict[str, Any] = {"start": time_text(window.start_us), "end": time_text(window.end_us)}
    if window.key is not None:
        description["key"] = key_texts(window.key)
    elif failure.HasField("key"):
        description["key"] = key_texts(failure.key)
    if window.early:
        description["early"] = window.early
    return {**description, "records": contents.rows, "reason": failure.reason, "detail": failure.detail}


def in_order_of_windows(table: pa.Table, bytes_max: int = _ORDERED_BYTES) -> pa.Table:
    """The results window by window, those of one window in the order that they have.

    An engine returns windows in any order, and a window that was tried again comes last. A hand-over may have many
    windows of a key, in the order of that key's results.
    """
    windows = table.column("window").to_numpy()
    if rises(windows):
        return table
    if table.nbytes <= bytes_max:
        return table.take(stable_order(windows))
    middle = (int(windows.min()) + int(windows.max()) + 1) // 2
    halves = (table.filter(pa.array(some)) for some in (windows < middle, windows >= middle))
    return pa.concat_tables([in_order_of_windows(half, bytes_max) for half in halves])


def _with_windows(table: pa.Table, indexes: Sequence[int]) -> pa.Table:
    """The rows with the windows numbered as in the hand-over, instead of as in the request."""
    renumbered = pa.array(indexes, pa.int32()).take(table.column("window").combine_chunks())
    return table.set_column(table.schema.get_field_index("window"), "window", renumbered)
