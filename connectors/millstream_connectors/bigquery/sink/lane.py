"""The BigQuery sink: each owner writes rows to its own stream, and the number of rows there selects a stored position.

    open ─► create a stream ─► claim it ─► finalize all earlier streams ─► their rows: the position ─► note it
    write ─► note "with n more rows, the lane is here" ─► append, at the expected offset ─► durable

A finalized stream accepts no more rows, so neither an older owner that resumes late nor a request that arrives late
changes anything. If two owners open the lane at the same time, at least one of them sees the other's claim, because
each writes its claim before it reads those of others. After any failure, the lane is taken over again with another
stream: so the meaning of an offset never changes, and the number of rows tells whether the last request was written.

Above it: the delivery. Below it: the table of positions (`positions`), rows (`rows`) and the connection (`appending`);
`sinks.refusable` handles the records that BigQuery refuses.
"""

from __future__ import annotations

import io
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import fastavro
import grpc

from millstream import codes
from millstream.durable import step
from millstream.errors import DamageError, RetryLaterError, UserError
from millstream.json_parser import parse_json
from millstream.limits import BIGQUERY_NOTE_PAUSE_S, BIGQUERY_NOTED_AGAIN_S
from millstream.plurals import counted
from millstream.record import Position
from millstream_connectors.bigquery.client import FAILURES, BigQueryLink, linked
from millstream_connectors.bigquery.settings import BigQuerySink
from millstream_connectors.bigquery.sink.appending import Appending, NotAppendedError, RefusedRowsError, Request
from millstream_connectors.bigquery.sink.positions import (
    COLUMNS,
    History,
    StreamClaim,
    StreamPosition,
    claim_cells,
    creation,
    history_of,
    literal,
    noted_cells,
    reached,
    refused_until,
    restriction,
    schema_faults,
)
from millstream_connectors.bigquery.sink.rows import BigQueryFormat, RowType, TableRow, column_faults, in_requests
from millstream_connectors.shared.failing import on_failure, translating
from millstream_connectors.shared.faults import Fault, check_fit
from millstream_connectors.shared.first_try import opened
from millstream_connectors.shared.kept import ConvertedRecords, TargetPosition, check_kept, fenced
from millstream_connectors.shared.refusable import RefusableLane, Refusal, TransactionPart
from millstream_writer.connector import SinkOwner
from millstream_writer.sink import SinkFrame, SinkLane

_log = logging.getLogger(__name__)

REFUSED = "BigQuery refuses it"


class _Open:
    """The streams of a lane that this owner has taken over."""

    def __init__(
        self, claim: StreamClaim, link: BigQueryLink, form: BigQueryFormat, positions_type: RowType, positions: str
    ) -> None:
        """`positions`: the stream of the table of positions."""
        self.claim = claim
        self.format = form
        self.rows = Appending(link, claim.stream, form.row_type.descriptor)
        self.positions_type = positions_type
        self.positions = Appending(link, positions, positions_type.descriptor)
        self.count = 0
        """Number of rows in the stream, all confirmed."""
        self.number = 0
        """Number of the last position."""
        self.unconfirmed = False
        """Whether the last noted position does not say yet that its rows were confirmed."""

    def close(self) -> None:
        self.rows.close()
        self.positions.close()


class BigQuerySinkLane(RefusableLane[TableRow]):
    """The lane's stream, which is opened when it is needed, and replaced after a failure."""

    def __init__(self, settings: BigQuerySink, owner: SinkOwner, link: BigQueryLink) -> None:
        super().__init__(owner)
        self._settings = settings
        self._link = link
        self._identity = uuid4().hex
        self._attempts = 0
        self._open_lane: _Open | None = None
        self._last = (owner.start, "")
        self._noted_s = owner.clock.monotonic_s()
        """When a position was noted last, or the lane was opened."""
        self._note_after_s = 0.0
        """When a closed lane may be taken over to note its position."""

    async def close(self) -> None:
        """Ends the connections."""
        if self._open_lane is not None:
            self._open_lane.close()
            self._open_lane = None

    async def tick(self) -> None:
        await super().tick()
        now_s = self._owner.clock.monotonic_s()
        is_old = now_s - self._noted_s >= BIGQUERY_NOTED_AGAIN_S
        if self._open_lane is None:
            if is_old and now_s >= self._note_after_s:
                # Taking the lane over notes its position.
                self._note_after_s = now_s + BIGQUERY_NOTE_PAUSE_S
                await self.open()
        elif self._open_lane.unconfirmed or is_old:
            # BigQuery removes a stream after days without traffic. Then this note alone says how many rows it had. And
            # the table may remove notes of a certain age.
            async with self._session():
                await self._note([self._noted(self._open_lane.count, *self._last)])
                self._lane.unconfirmed = False

    def _convert(self, item: SinkFrame) -> ConvertedRecords[TableRow]:
        return self._lane.format.rows_of(item)

    def _refusal(self, error: Exception) -> Refusal | None:
        return Refusal(REFUSED, str(error)) if isinstance(error, RefusedRowsError) else None

    @asynccontextmanager
    async def _trying(self) -> AsyncIterator[Callable[[Sequence[TableRow]], Awaitable[None]]]:
        """Attempts in a stream that is never committed."""
        stream = await self._link.create_stream(self._settings.table, "PENDING")
        trial = Appending(self._link, stream.name, self._lane.format.row_type.descriptor)

        async def attempt(rows: Sequence[TableRow]) -> None:
            await trial.append([Request([row.data for row in part], None) for part in in_requests(rows)])

        try:
            yield attempt
        finally:
            trial.close()

    async def _transact(self, part: TransactionPart[TableRow]) -> None:
        lane = self._lane
        end = max(part.end, self._durable)
        # Requests before a refused one have been written.
        records = part.records()
        parts = in_requests(records if self._owner.fallback else [row for row in records if row.end > self._durable])
        if not parts and end <= self._durable and not part.refused:
            return
        requests: list[Request] = []
        noted: list[StreamPosition] = []
        rows = lane.count
        for place, rows_of in enumerate(parts):
            requests.append(Request([row.data for row in rows_of], rows))
            rows += len(rows_of)
            is_last = place == len(parts) - 1
            at = (end, part.frame) if is_last else (rows_of[-1].end, rows_of[-1].frame)
            if self._owner.fallback:
                at = (self._durable, "")
            noted.append(self._noted(rows, *at, refused=part.refused if is_last else ()))
        if not parts:
            noted.append(self._noted(rows, end, part.frame, refused=part.refused))
        await self._note(noted)
        try:
            with step("bigquery_sink.append", self._owner.lane.vertex):
                await lane.rows.append(requests)
        except NotAppendedError as error:
            if error.code is grpc.StatusCode.NOT_FOUND and error.appended is not None:
                # The stream has expired, so its rows cannot be counted later: the last note has to confirm them.
                lane.count += sum(len(request.data) for request in requests[: error.appended])
                at = noted[error.appended - 1][3:5] if error.appended else self._last
                await self._note([self._noted(lane.count, *at)])
            raise
        except RefusedRowsError as error:
            lane.unconfirmed = True
            lane.count += sum(len(request.data) for request in requests[: error.appended])
            if error.appended:
                last = noted[error.appended - 1]
                self._last = (last.position, last.frame)
                if not self._owner.fallback:
                    self._durable = max(self._durable, last.position)
            raise
        lane.unconfirmed = bool(requests)
        lane.count = rows
        self._last = (noted[-1].position, noted[-1].frame)

    # The table of positions

    def _noted(
        self, rows: int, position: Position, frame: str, *, refused: Sequence[tuple[Position, str, str]] = ()
    ) -> StreamPosition:
        lane = self._lane
        lane.number += 1
        return StreamPosition(lane.number, rows, lane.count, position, frame, refused)

    async def _note(self, noted: Sequence[StreamPosition]) -> None:
        owner, lane = self._owner, self._lane
        with step("bigquery_sink.note", owner.lane.vertex):
            await self._add_positions(lane, [noted_cells(owner.pipeline, owner.name, lane.claim, one) for one in noted])
        self._noted_s = owner.clock.monotonic_s()

    async def _add_positions(self, lane: _Open, rows: Sequence[Sequence[Any]]) -> None:
        try:
            await lane.positions.append([Request([lane.positions_type.encode(cells) for cells in rows], None)])
        except RefusedRowsError as error:
            what = f"{self._owner.where}: {self._settings.position_table} does not take a position: {error}"
            raise UserError(codes.TARGET_UNFIT, what) from error

    async def _history(self) -> History:
        """The current content of the table for this lane."""
        where = restriction(self._owner.pipeline, self._owner.name)
        schema, blocks = await self._link.read(self._settings.position_table, list(COLUMNS), where)
        if not blocks:
            return History((), {})
        parsed = fastavro.parse_schema(parse_json(schema))
        return history_of(row for block in blocks for row in _rows_in(block, parsed))

    # The stream

    @property
    def _lane(self) -> _Open:
        assert self._open_lane is not None, "it is used in a session"
        return self._open_lane

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[None]:
        """Takes the lane over if necessary. Closes it after any failure, except if BigQuery refuses rows."""
        try:
            if self._open_lane is None:
                await self._take_over()
            yield
        except RefusedRowsError:
            raise
        except NotAppendedError as error:
            await self.close()
            raise self._not_appended(error) from error
        except FAILURES as error:
            await self.close()
            raise self._link.error_of(error) from error
        except BaseException:
            await self.close()
            raise

    def _not_appended(self, error: NotAppendedError) -> Exception:
        if error.code is grpc.StatusCode.OUT_OF_RANGE:
            return DamageError(
                codes.SINK_BEHIND,
                f"{self._owner.where}: {self._settings.table} has fewer rows of lane {self._owner.name} than it had "
                f"confirmed: {error.said}. Nothing was written now. Compare the table with what the pipeline sends "
                "next, and start again",
            )
        if "FINALIZED" in error.said.upper():
            return fenced(self._owner, self._settings.table)
        if error.code is grpc.StatusCode.NOT_FOUND:
            # The stream had no traffic for days. If the table is missing, the next attempt reports that.
            return RetryLaterError(codes.TARGET_AWAY, f"{self._owner.where}: the stream is gone: {error.said}")
        return self._link.error_of_status(error.code, error.said)

    async def _take_over(self) -> None:
        """Fence every earlier owner, and find the target's position."""
        owner, settings, link = self._owner, self._settings, self._link
        positions_schema = await link.schema(settings.position_table)
        check_fit(owner.where, faults_of(await link.schema(settings.table), positions_schema, settings))
        positions_type = RowType(positions_schema, list(COLUMNS))
        await self._check(await self._history())
        with step("bigquery_sink.create", owner.lane.vertex):
            stream = await link.create_stream(settings.table, "COMMITTED")
        form = BigQueryFormat(settings, RowType(stream.table_schema, [column.name for column in settings.rows.row]))
        self._attempts += 1
        claim = StreamClaim(owner.ledger_id, owner.epoch, self._identity, self._attempts, stream.name)
        lane = _Open(claim, link, form, positions_type, link.default_stream(settings.position_table))
        with on_failure(lane.close):
            with step("bigquery_sink.claim", owner.lane.vertex):
                await self._add_positions(lane, [claim_cells(owner.pipeline, owner.name, claim)])
            history = await self._history()
            await self._check(history)
            counts = {one.stream: await self._finalized(one) for one in history.open_streams(claim)}
            # An earlier owner may have noted a position until its stream was finalized.
            position, frame, refused = await self._found(await self._history(), claim, counts)
        self._open_lane = lane
        self._last = (max(position, self._durable), frame)
        await self._note([self._noted(0, *self._last, refused=[(at, *why) for at, why in sorted(refused.items())])])
        self._taken_over(position, refused)

    async def _check(self, history: History) -> None:
        """Raises an error if another run or a newer owner has the lane, or if the stored positions do not belong to
        this lane."""
        others = [claim for claim in history.claims if claim.owner != self._identity]
        if not others:
            return
        newest = others[-1]
        stranger = next((claim for claim in others if claim.run != self._owner.ledger_id), newest)
        last = max((one.position for of in history.noted.values() for one in of), default=self._owner.start)
        # The exact position is known only when the streams are finalized, and this check comes first.
        kept = TargetPosition(stranger.run, newest.epoch, newest.owner, last, "")
        await check_kept(self._owner, kept, self._settings.table, self._by_hand, ours=False)

    async def _finalized(self, claim: StreamClaim) -> int | None:
        """Finalize the stream of a claim. Returns its number of rows; None if BigQuery no longer has it."""
        if not claim.stream:
            # The user has inserted this claim.
            return None
        try:
            with step("bigquery_sink.finalize", self._owner.lane.vertex):
                return await self._link.finalize(claim.stream)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return None
            raise

    async def _found(
        self, history: History, claim: StreamClaim, counts: dict[str, int | None]
    ) -> tuple[Position, str, dict[Position, tuple[str, str]]]:
        """The lane's position, by the number of rows in the streams of earlier owners."""
        await self._check(history)
        owner, table = self._owner, self._settings.table
        for former in reversed([one for one in history.claims if one.rank < claim.rank]):
            noted = history.noted.get(former.stream, ())
            if not noted:
                if counts.get(former.stream):
                    raise self._lost(f"{counted(counts[former.stream] or 0, 'row')} of a stream without a position")
                continue
            end = reached(noted, counts[former.stream])
            if end is None:
                raise self._lost("no position for the rows that its last stream has, or had")
            # The check also covers positions of this process, whose answers it may have lost.
            kept = TargetPosition(former.run, former.epoch, former.owner, end.position, end.frame)
            await check_kept(owner, kept, table, self._by_hand, ours=former.owner == self._identity)
            return end.position, end.frame, refused_until(noted, end, owner.start)
        if not owner.fallback and self._durable > Position(0):
            raise self._lost("no position at all")
        return self._durable, "", {}

    def _lost(self, what: str) -> DamageError:
        return DamageError(
            codes.TARGET_POSITION_LOST,
            f"{self._owner.where}: lane {self._owner.name} has written into {self._settings.table}, and "
            f"{self._settings.position_table} has {what}. Nothing was written now. Compare the end of the table with "
            f"what the pipeline sends next; to let the lane continue after its mark: {self._by_hand}",
        )

    @property
    def _by_hand(self) -> str:
        """The statements with which the user confirms that the lane's mark is right."""
        owner, table = self._owner, f"{self._settings.dataset}.{self._settings.position_table}"
        claim = StreamClaim(owner.ledger_id, owner.epoch, "by hand", 0, "")
        cells = noted_cells(owner.pipeline, owner.name, claim, StreamPosition(1, 0, 0, owner.start, ""))
        values = ", ".join("NULL" if cell is None else literal(cell) for cell in cells)
        return (
            f"`DELETE FROM {table} WHERE {restriction(owner.pipeline, owner.name)}; "
            f"INSERT INTO {table} ({', '.join(COLUMNS)}) VALUES ({values})`"
        )


def faults_of(table: Any, positions: Any, settings: BigQuerySink) -> list[Fault]:
    """Mismatches between the two tables and the settings."""
    faults = column_faults(table, settings)
    if missing := schema_faults(positions):
        name = f"{settings.dataset}.{settings.position_table}"
        what = f"the table {settings.position_table} lacks {', '.join(missing)}"
        faults.append(Fault(("positionTable",), what, f"a table made by `{creation(name)}`"))
    return faults


def _rows_in(block: bytes, schema: Any) -> list[dict[str, Any]]:
    stream = io.BytesIO(block)
    rows: list[Any] = []
    while stream.tell() < len(block):
        rows.append(fastavro.schemaless_reader(stream, schema, None))
    return rows


@asynccontextmanager
async def open_bigquery_sink(settings: BigQuerySink, owner: SinkOwner) -> AsyncIterator[SinkLane]:
    """The lane's target, with every former owner fenced. If the service is away, the first write waits for it."""
    async with (
        linked(settings, owner.base_dir, owner.where) as link,
        opened(BigQuerySinkLane(settings, owner, link), _log) as lane,
    ):
        yield lane


async def look(settings: BigQuerySink, base_dir: Path) -> list[Fault]:
    """Mismatches between the tables and the settings. Raises Millstream errors if a table cannot be read."""
    async with linked(settings, base_dir, "validate --online") as link:
        with translating(FAILURES, link.error_of):
            return faults_of(await link.schema(settings.table), await link.schema(settings.position_table), settings)
