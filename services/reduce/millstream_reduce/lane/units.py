"""The units that a reduce lane commits, created from records that are durable in its log, and from results of windows.

Above it: the reduce lane. Below it: the router. It does not know their order, which `progress` determines.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.account import LATE_REASON, Account
from millstream.dead_letter import headers_of, time_text
from millstream.extract import YEAR_1_US, YEAR_10000_US
from millstream.frame import Frame, frame_of_records
from millstream.limits import COMMIT_BYTES_MAX, COMMIT_FRAMES_MAX, RESULT_FRAME_BYTES_MAX, RESULT_FRAME_RECORDS_MAX
from millstream.record import Record
from millstream.retry import OnFailure, RetryPolicy
from millstream.wire.reduce.v1 import wal_pb2
from millstream_reduce.batches import HEADERS, frame_of_columns, whole
from millstream_reduce.lane.jobs import WindowResults, describe
from millstream_reduce.lane.milestones import StoredMilestones
from millstream_reduce.origins import HandOverOrigin
from millstream_reduce.queue import AppendResult
from millstream_reduce.values import Rows, Window, WindowTable
from millstream_udf.wire.frame.v1 import frame_pb2
from millstream_writer.committer import Unit
from millstream_writer.routing import FrameLimits, Router, Tags

UNIT_BYTES = COMMIT_BYTES_MAX // 4
"""About how many bytes of result values are in one unit: with keys, headers and several edges it remains one commit."""
UNIT_ROWS = 32_768
_FRAME = FrameLimits(RESULT_FRAME_RECORDS_MAX, RESULT_FRAME_BYTES_MAX)
WINDOW_START, WINDOW_END, WINDOW_EARLY = "window-start", "window-end", "window-early"
"""Headers of every result; the last one only of early results."""


_CALENDAR = YEAR_1_US, YEAR_10000_US
"""Times with a text are between these; for others the number is written."""


class UnitMaker:
    """Turns the outcome of records and windows into frames for the vertex's buffers, and accounts for them."""

    def __init__(
        self,
        router: Router,
        policy: RetryPolicy,
        where: str,
        *,
        late_to_edge: bool,
        milestones: StoredMilestones | None,
    ) -> None:
        """`late_to_edge`: late records go to the late edges; otherwise they are dropped. `milestones`: given if the
        input stays in its buffers until its windows are committed."""
        self._router = router
        self._policy = policy
        self._where = where
        self._late_to_edge = late_to_edge
        self.milestones = milestones

    def of_records(self, appended: AppendResult, now_us: int) -> Unit:
        """Records that are durable in the log, with the late ones."""
        message = appended.message
        account = Account(
            inputs=appended.records,
            input_bytes=appended.bytes,
            filtered=message.outside,
            late=message.late + message.late_admitted,
            open=message.rows,
        )
        if self._late_to_edge:
            account.diverted = message.late
        elif message.late:
            account.drop(LATE_REASON, message.late)
        unit = Unit(pieces=0, account=account)
        unit.frames = [pair for frame in appended.late_frames for pair in self._router.route_late(frame).frames]
        if message.HasField("milestone"):
            self._add_milestone(unit, message.milestone, now_us)
        unit.size = sum(frame.size for _, frame in unit.frames)
        return unit

    def of_results(
        self, hand_over: wal_pb2.HandOver, results: WindowResults, skip: int, origin: HandOverOrigin, now_us: int
    ) -> list[Unit]:
        """The results after the first `skip` rows, in pieces that each fit into a commit; at least one.

        The outcome of the inputs is in the account of the last one.
        """
        units = []
        windows = WindowTable.of_hand_over(hand_over)
        while skip < results.rows.num_rows:
            unit, rows = self._unit(windows, results.rows, skip, origin.ingest_time_us)
            units.append(unit)
            skip += rows
        if not units:
            units.append(Unit(pieces=0))
        self._settle(windows, results, units[-1], origin.ingest_time_us)
        if traceparent := origin.first_traceparent:
            for unit in units:
                unit.frames = [(buffer, frame.traced(traceparent)) for buffer, frame in unit.frames]
        if hand_over.HasField("milestone"):
            self._add_milestone(units[-1], hand_over.milestone, now_us)
        return units

    def _add_milestone(self, unit: Unit, milestone: wal_pb2.Milestone, now_us: int) -> None:
        if self.milestones is not None:
            unit.frames.append(self.milestones.frame(milestone, now_us))

    def _unit(self, windows: WindowTable, table: pa.Table, start: int, ingest: int) -> tuple[Unit, int]:
        rows = min(UNIT_ROWS, table.num_rows - start)
        while True:
            part = table.slice(start, rows)
            if rows > 1 and part.column("value").nbytes > UNIT_BYTES:
                rows = max(1, rows // 2)
                continue
            unit = Unit(pieces=0, account=Account(outputs=rows))
            # Frames of the size that is stored: cutting one later costs as much per record as creating it.
            for first in range(0, rows, _FRAME.records):
                frame, tags = _frame_of(windows, part.slice(first, _FRAME.records), ingest)
                routed = self._router.route(frame, tags, _FRAME)
                unit.frames = [*unit.frames, *routed.frames]
                unit.account.unrouted += routed.unrouted
            unit.size = sum(frame.size for _, frame in unit.frames)
            # Dead letters and a milestone may follow, which need room.
            if rows == 1 or (unit.fits_a_commit and len(unit.frames) <= COMMIT_FRAMES_MAX // 2):
                return unit, rows
            rows //= 2

    def _settle(self, windows: WindowTable, results: WindowResults, unit: Unit, ingest_time_us: int) -> None:
        account = unit.account
        released = int(windows.released.sum())
        account.open -= released
        account.processed += released
        dead: list[Record] = []
        for index, failure in sorted({failure.window: failure for failure in results.failures}.items()):
            contents = windows[index]
            account.processed -= contents.released
            if self._policy.on_failure is OnFailure.DEAD_LETTER:
                account.dead_lettered += contents.released
                text = json.dumps(describe(contents, failure), ensure_ascii=False)
                headers = headers_of(failure.reason, failure.detail, self._where)
                dead.append(Record(text.encode(), contents.window.end_us - 1, headers=headers))
            else:
                account.drop(failure.reason, contents.released)
        if dead:
            frame = frame_of_records(dead, ingest_time_us=ingest_time_us)
            unit.frames = unit.frames + self._router.route_dead_letter(frame).frames
            unit.size = sum(frame.size for _, frame in unit.frames)


def _frame_of(windows: WindowTable, rows: pa.Table, ingest_time_us: int) -> tuple[Frame, Tags | None]:
    """At least one row as a frame, with the tags of each."""
    used, places = np.unique(rows.column("window").to_numpy(), return_inverse=True)
    ends = windows.ends[used]
    none_has_own = rows.column("headers").null_count == rows.num_rows
    shared = _headers_of_all(windows, used, places) if none_has_own else None
    frame = frame_of_columns(
        whole(rows.column("value")),
        (ends - 1)[places],
        keys=whole(rows.column("keys")),
        headers=_headers_of_each(windows, used, places, rows) if shared is None else None,
        ingest_time_us=ingest_time_us,
    )
    return frame if shared is None else replace(frame, headers_column=shared), _lists(rows.column("tags"))


def _headers_of_all(windows: WindowTable, used: Rows, places: Rows) -> bytes | None:
    """The headers of rows that have the bounds of final windows for headers and nothing else, made for all of them at
    once; None where one needs more, or is outside the calendar. `places`: of which window each row is."""
    starts, ends = windows.starts[used], windows.ends[used]
    if starts.min() < _CALENDAR[0] or ends.max() >= _CALENDAR[1] or windows.early[used].any():
        return None
    bounds = np.stack((starts, ends), axis=1).view("M8[us]")
    texts = np.datetime_as_string(bounds, timezone="UTC").astype("S")
    return frame_pb2.SealedHeadersColumn(
        starts=np.arange(0, 2 * len(places) + 1, 2, dtype="<u4").tobytes(),
        names=(WINDOW_START, WINDOW_END) * len(places),
        values=texts[places].ravel().tolist(),
    ).SerializeToString()


def _headers_of_each(windows: WindowTable, used: Rows, places: Rows, rows: pa.Table) -> pa.Array[Any]:
    """The same for any rows, whose own headers precede those of their windows."""
    bounds: Any = pa.array([list(_headers_of(windows[index].window).items()) for index in used.tolist()], HEADERS)
    headers: pa.Array[Any] = bounds.take(pa.array(places))
    if rows.column("headers").null_count < rows.num_rows:
        shared_headers: Any = headers.to_pylist()
        pairs = zip(rows.column("headers").to_pylist(), shared_headers, strict=True)
        headers = pa.array([list({**dict(own or ()), **dict(shared)}.items()) for own, shared in pairs], HEADERS)
    return headers


def _headers_of(window: Window) -> dict[str, bytes]:
    headers = {WINDOW_START: time_text(window.start_us).encode(), WINDOW_END: time_text(window.end_us).encode()}
    if window.early:
        headers[WINDOW_EARLY] = str(window.early).encode()
    return headers


def _lists(column: pa.ChunkedArray[Any]) -> list[tuple[bytes, ...]] | None:
    """Strings of each row as bytes; None if no row has any."""
    if column.null_count == len(column):
        return None
    return [tuple(part.encode() for part in parts) if parts else () for parts in column.to_pylist()]
