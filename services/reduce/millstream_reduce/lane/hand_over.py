"""From a hand-over to its results: the Spark job, what becomes of windows that fail, and the units to commit.

Above it: the reduce lane. Below it: the pipeline's Spark driver and the router. It knows rows of results and the retry
policy; it does not know where the windows came from.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from millstream.account import Account
from millstream.dead_letter import headers_of
from millstream.errors import DamageError, UdfError, UserError
from millstream.frame import KEY_SEPARATOR, Frame, frame_of_records
from millstream.limits import COMMIT_BYTES_MAX, COMMIT_FRAMES_MAX, RESULT_FRAME_BYTES_MAX, RESULT_FRAME_RECORDS_MAX
from millstream.record import BufferId, LaneId, Record
from millstream.retry import OnFailure, RetryPolicy
from millstream.wire.reduce.v1 import spark_pb2, wal_pb2
from millstream_reduce.batches import HEADERS, frame_of_columns
from millstream_reduce.origins import Origin
from millstream_writer.committer import Unit
from millstream_writer.routing import FrameLimits, Router, Tags

UNIT_BYTES = COMMIT_BYTES_MAX // 4
"""Bytes of result values in one unit, about: with keys, headers and several edges it stays one commit."""
UNIT_ROWS = 32_768
_FRAME = FrameLimits(RESULT_FRAME_RECORDS_MAX, RESULT_FRAME_BYTES_MAX)
WINDOW_START, WINDOW_END, WINDOW_EARLY = "window-start", "window-end", "window-early"
"""Headers of every result; the last one of early results only."""


class SparkRuns(Protocol):
    """What is asked of the Spark driver's client."""

    async def check(self, program: spark_pb2.Program) -> spark_pb2.CheckResponse:
        """Whether the program can run."""

    async def run(self, request: spark_pb2.RunRequest) -> tuple[pa.Table, spark_pb2.RunSummary]:
        """Compute the windows; waits for the driver however long it is away. Rows as `RunResponse.rows` says."""


@dataclass(slots=True)
class Results:
    """What became of the windows of one hand-over."""

    rows: pa.Table
    failures: list[spark_pb2.WindowFailure] = field(default_factory=list)
    """Windows that no attempt could compute, for the dead-letter edge or the count of what is dropped."""
    retries: int = 0
    errors: int = 0
    job_s: float = 0.0
    job_tags: list[str] = field(default_factory=list)
    """Of the Spark jobs."""

    def encode(self) -> bytes:
        """For the result file, from which a commit in parts goes on after a restart."""
        failures = json.dumps([failure.SerializeToString().hex() for failure in self.failures])
        table = self.rows.replace_schema_metadata({b"failures": failures.encode()})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return bytes(sink.getvalue())

    @classmethod
    def decode(cls, data: bytes) -> Results:
        """Inverse of `encode`. Raises `DamageError` for bytes that are no such file."""
        try:
            table = pa.ipc.open_stream(data).read_all()
            table.validate(full=True)
            failures = json.loads((table.schema.metadata or {})[b"failures"])
            messages = [spark_pb2.WindowFailure.FromString(bytes.fromhex(text)) for text in failures]
        except (pa.ArrowException, OSError, KeyError, TypeError, ValueError, RecursionError, DecodeError) as error:
            raise DamageError(f"kept results of windows cannot be read ({len(data)} bytes: {error})") from error
        return cls(table, messages)


class HandOverJobs:
    """Computes hand-overs for one lane."""

    def __init__(
        self,
        spark: SparkRuns,
        program: spark_pb2.Program,
        policy: RetryPolicy,
        *,
        directory: str,
        where: str,
        lane: LaneId,
        replica: int,
        rng: random.Random,
    ) -> None:
        """`where` names pipeline, vertex and lane in messages; `lane` and `replica` are for functions' context."""
        self._spark = spark
        self._program = program
        self._policy = policy
        self._directory = directory
        self._where = where
        self._lane = lane
        self._replica = replica
        self._rng = rng

    async def check(self) -> None:
        """Raises `UserError` when the program cannot run at all, long before the first window closes."""
        answer = await self._spark.check(self._program)
        if answer.faults:
            raise UserError("\n".join([f"{self._where}: the windows cannot be computed", *answer.faults]))

    async def compute(self, hand_over: wal_pb2.HandOver, traceparent: str) -> Results:
        """The results of every window; those that fail are tried again alone. Raises `UdfError` when one fails for good
        and the policy says stop."""
        tables: list[pa.Table] = []
        results = Results(pa.table({}))
        waiting, attempt = list(range(len(hand_over.windows))), 0
        while waiting:
            request = spark_pb2.RunRequest(
                program=self._program,
                directory=self._directory,
                windows=[hand_over.windows[index] for index in waiting],
                vertex=self._lane.vertex,
                lane=self._lane.key,
                replica=self._replica,
                attempt=attempt,
                watermark_us=hand_over.closed_us,
                traceparent=traceparent,
            )
            table, summary = await self._spark.run(request)
            tables.append(_with_windows(table, waiting) if attempt else table)
            results.job_s += summary.job_s
            results.job_tags.append(summary.job_tag)
            if not summary.failures:
                break
            results.errors += len(summary.failures)
            failures = {waiting[failure.window]: failure for failure in summary.failures}
            attempt += 1
            if not self._policy.backoff.allows(attempt):
                results.failures = self._give_up(hand_over, failures)
                break
            results.retries += len(failures)
            waiting = sorted(failures)
            await asyncio.sleep(self._policy.backoff.delay_s(attempt, self._rng))
        results.rows = pa.concat_tables(tables)
        return results

    def _give_up(
        self, hand_over: wal_pb2.HandOver, failures: Mapping[int, spark_pb2.WindowFailure]
    ) -> list[spark_pb2.WindowFailure]:
        given_up = []
        for index, failure in sorted(failures.items()):
            failure.window = index
            given_up.append(failure)
        if self._policy.on_failure in (OnFailure.STOP, OnFailure.RETRY):
            first = given_up[0]
            window = describe(hand_over.windows[first.window], first)
            raise UdfError(
                f"{self._where}: window {window['start']} to {window['end']}"
                + (f", key {window['key']!r}" if "key" in window else "")
                + f": {first.reason}\n{first.detail}".rstrip()
                + "\nNothing was lost: put the function right and start again, or let `retryStrategy.onFailure` "
                "drop such windows or send them to a dead-letter edge."
            )
        return given_up


@dataclass(slots=True)
class ReduceUnit(Unit):
    """A unit of a reduce lane."""

    watermark_us: int = 0
    """The lane's watermark once it is committed."""
    milestone: wal_pb2.Milestone | None = None
    """Committed with it, as one of its frames."""

    @property
    def fits_a_commit(self) -> bool:
        """Results fit, with the dead letters and the milestone that may come to them."""
        return len(self.frames) <= COMMIT_FRAMES_MAX // 2 and self.size <= COMMIT_BYTES_MAX


class ResultRouter:
    """Turns results into frames for the vertex's buffers."""

    def __init__(self, router: Router, policy: RetryPolicy, where: str) -> None:
        self._router = router
        self._policy = policy
        self._where = where

    def units(self, hand_over: wal_pb2.HandOver, results: Results, skip: int, origin: Origin) -> list[ReduceUnit]:
        """The results behind the first `skip` rows, in pieces that each fit into a commit; at least one.

        What became of the inputs is in the account of the last one.
        """
        units = []
        total = results.rows.num_rows
        while skip < total:
            unit, rows = self._unit(hand_over, results.rows, skip, origin.ingest_time_us)
            units.append(unit)
            skip += rows
        if not units:
            units.append(ReduceUnit(pieces=0))
        self._settle(hand_over, results, units[-1], origin.ingest_time_us)
        if traceparent := origin.first_traceparent:
            for unit in units:
                unit.frames = [(buffer, frame.traced(traceparent)) for buffer, frame in unit.frames]
        return units

    def route_late(self, frame: Frame) -> list[tuple[BufferId, Frame]]:
        """Send records that came too late to the late edges, as they are."""
        return self._router.route_late(frame).frames

    def _unit(self, hand_over: wal_pb2.HandOver, table: pa.Table, start: int, ingest: int) -> tuple[ReduceUnit, int]:
        rows = min(UNIT_ROWS, table.num_rows - start)
        while True:
            part = table.slice(start, rows)
            if rows > 1 and part.column("value").nbytes > UNIT_BYTES:
                rows = max(1, rows // 2)
                continue
            unit = ReduceUnit(pieces=0, account=Account(outputs=rows))
            # Frames of the size that is stored: cutting one later costs as much for each record as making it.
            for first in range(0, rows, _FRAME.records):
                frame, tags = _frame_of(hand_over.windows, part.slice(first, _FRAME.records), ingest)
                routed = self._router.route(frame, tags, _FRAME)
                unit.frames = [*unit.frames, *routed.frames]
                unit.account.unrouted += routed.unrouted
            unit.size = sum(frame.size for _, frame in unit.frames)
            if unit.fits_a_commit or rows == 1:
                return unit, rows
            rows //= 2

    def _settle(self, hand_over: wal_pb2.HandOver, results: Results, unit: ReduceUnit, ingest_time_us: int) -> None:
        account = unit.account
        failed = {failure.window: failure for failure in results.failures}
        dead: list[Record] = []
        for index, window in enumerate(hand_over.windows):
            account.open -= window.released
            failure = failed.get(index)
            if failure is None:
                account.processed += window.released
            elif self._policy.on_failure is OnFailure.DEAD_LETTER:
                account.dead_lettered += window.released
                text = json.dumps(describe(window, failure), ensure_ascii=False)
                headers = headers_of(failure.reason, failure.detail, self._where)
                dead.append(Record(text.encode(), window.end_us - 1, headers=headers))
            else:
                account.drop(failure.reason, window.released)
        if dead:
            frame = frame_of_records(dead, ingest_time_us=ingest_time_us)
            unit.frames = unit.frames + self._router.route_dead_letter(frame).frames
            unit.size = sum(frame.size for _, frame in unit.frames)


def describe(window: wal_pb2.Window, failure: spark_pb2.WindowFailure) -> dict[str, Any]:
    """A window that failed, for people and for dead letters."""
    description: dict[str, Any] = {"start": time_text(window.start_us), "end": time_text(window.end_us)}
    if window.HasField("key"):
        description["key"] = _key_parts(window.key)
    elif failure.HasField("key"):
        description["key"] = _key_parts(failure.key)
    if window.early:
        description["early"] = window.early
    return {**description, "records": window.rows, "reason": failure.reason, "detail": failure.detail}


def time_text(time_us: int) -> str:
    """RFC 3339 in UTC with microseconds; the number itself where a calendar has no such time."""
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)
    except OverflowError:
        return str(time_us)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _key_parts(key: bytes) -> list[str]:
    return [part.decode(errors="replace") for part in key.split(KEY_SEPARATOR)]


def _with_windows(table: pa.Table, indexes: Sequence[int]) -> pa.Table:
    """The rows with the windows numbered as in the hand-over, not as in the request."""
    column = table.column("window").combine_chunks()
    renumbered = pa.array(indexes, pa.int32()).take(column)
    return table.set_column(table.schema.get_field_index("window"), "window", renumbered)


def _frame_of(windows: Sequence[wal_pb2.Window], rows: pa.Table, ingest_time_us: int) -> tuple[Frame, Tags | None]:
    """At least one row as a frame, with the tags of each."""
    used, places = np.unique(rows.column("window").to_numpy(), return_inverse=True)
    ends = np.array([windows[index].end_us - 1 for index in used], np.int64)
    bounds: Any = pa.array([list(_headers_of(windows[index]).items()) for index in used], HEADERS)
    headers = bounds.take(pa.array(places))
    if rows.column("headers").null_count < rows.num_rows:
        pairs = zip(rows.column("headers").to_pylist(), headers.to_pylist(), strict=True)
        headers = pa.array([list({**dict(own or ()), **dict(shared)}.items()) for own, shared in pairs], HEADERS)
    frame = frame_of_columns(
        _whole(rows.column("value")),
        ends[places],
        keys=_whole(rows.column("keys")),
        headers=headers,
        ingest_time_us=ingest_time_us,
    )
    return frame, _lists(rows.column("tags"))


def _whole(column: pa.ChunkedArray[Any]) -> pa.Array[Any]:
    chunks: list[pa.Array[Any]] = column.chunks
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)


def _headers_of(window: wal_pb2.Window) -> dict[str, bytes]:
    headers = {WINDOW_START: time_text(window.start_us).encode(), WINDOW_END: time_text(window.end_us).encode()}
    if window.early:
        headers[WINDOW_EARLY] = str(window.early).encode()
    return headers


def _lists(column: pa.ChunkedArray[Any]) -> list[tuple[bytes, ...]] | None:
    """Strings of each row as bytes; None when no row has any."""
    if column.null_count == len(column):
        return None
    return [tuple(part.encode() for part in parts) if parts else () for parts in column.to_pylist()]
