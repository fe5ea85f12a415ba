"""`millstream repair`: looks for damage in what a pipeline has stored, and gives up knowingly what cannot be had back.

    ledgers that are gone ─► torn batches ─► marks older than what was published ─► readers whose past was replaced

In this order: each stage reads what the ones before have mended. Without acceptance nothing is changed. Every step is
durable by itself and may be made again: who is killed in between begins anew, and finds what is left.

A reader whose past was replaced keeps its sequence. What lies at or below it counts as read, what lies behind it is
read; the difference in records goes into its mark, so that the account says what was accepted and still balances.

Above it: the command line. Below it: the ledgers and the OT stores of a pipeline that does not run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from millstream.account import consumed
from millstream.durable import step
from millstream.errors import DamageError
from millstream.frame import Frame
from millstream.ledger.batch import stored_mark
from millstream.ledger.protocol import Broker, Commit, Ledger, StoredFrame, Witness
from millstream.ledger.requests import NO_MESSAGE, NO_STREAM, message_data, message_headers, until_answered
from millstream.ledger.subjects import lane_filter, stream_name
from millstream.ledger.torn import torn_batch
from millstream.ledger.witness import from_messages
from millstream.local.ledgers import KnownLedgers
from millstream.record import BufferId, LaneId
from millstream.spec.graph import Graph
from millstream.spec.lanes import all_lanes, inputs_of, upstream_lanes
from millstream.watermark.jetstream import bucket_name
from millstream.watermark.store import OtStores, newest
from millstream.wire.ledger.v1 import mark_pb2
from millstream.wire.nats import ApiError, BrokerConnection
from millstream_reduce.log.inspection import find_logs, inspect_log
from millstream_vertex.past import check_not_older

OWNER = "repair"
_FRAMES_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class Finding:
    """One damage."""

    what: str
    affects: str
    accept: Callable[[], Awaitable[str]] | None = None
    """Gives up what is lost, and tells what it did. None: it cannot be accepted."""


@dataclass(slots=True)
class _Stored:
    """What a buffer holds of one lane upstream, beside what its reader has read."""

    read: int
    """Number of the last frame that was read; 0 for none."""
    written: int
    """Frames written in all, as the lane's mark says."""
    first: int | None = None
    """Number of the first frame behind the reader's position; None where there is none."""

    @property
    def before(self) -> int:
        """The number after which the reader goes on."""
        return self.first - 1 if self.first is not None else self.written


@dataclass(slots=True)
class _Reading:
    """What is wrong between one reader and its buffer."""

    faults: list[str] = field(default_factory=list)
    lanes: dict[str, _Stored] = field(default_factory=dict)
    waiting_records: int = 0
    waiting_bytes: int = 0
    last_is_there: bool = True
    """The last frame that was read, or read in part."""


class Repair:
    """Of one pipeline, which does not run."""

    def __init__(
        self,
        graph: Graph,
        connection: BrokerConnection,
        broker: Broker,
        stores: OtStores,
        ledgers: KnownLedgers,
        windows: Path,
    ) -> None:
        self._graph = graph
        self._connection = connection
        self._broker = broker
        self._stores = stores
        self._ledgers = ledgers
        self._windows = windows

    async def findings(self) -> AsyncIterator[Finding]:
        """Every damage, in the order in which they are accepted. Accept each before the next is asked for."""
        for stage in (self._lost_ledgers, self._torn, self._older, self._replaced, self._logs):
            async for finding in stage():
                yield finding

    async def _lost_ledgers(self) -> AsyncIterator[Finding]:
        found: dict[str, str] = {}
        for vertex in self._graph.order:
            ledger = await self._broker.existing_ledger(vertex)
            if ledger is not None:
                found[vertex] = ledger.ledger_id
        try:
            self._ledgers.check(found)
        except DamageError as error:

            async def accept() -> str:
                self._ledgers.replace(found)
                return "the next run makes these ledgers anew; what was in them is lost"

            yield Finding(str(error), "everything that waited in these ledgers, and the marks of their lanes", accept)

    async def _torn(self) -> AsyncIterator[Finding]:
        for lane in all_lanes(self._graph):
            stream = self._stream(lane.vertex)
            message = await self._get(stream, {"last_by_subj": lane_filter(stream, lane)})
            if message is None:
                continue
            try:
                mark = stored_mark(message["subject"], message_data(message), message_headers(message))
            except ValueError as error:
                mark = None
                why = f"its mark cannot be read ({error})"
            else:
                why = "the batch was not completed"
            if mark is None:
                torn = torn_batch(message)
                frames = [await self._told(stream, sequence) for sequence in range(torn.first, torn.last + 1)]
                yield Finding(
                    f"a commit of lane {lane} is stored in part in {stream}, sequences {torn.first} to {torn.last}: "
                    f"{why}",
                    f"{'; '.join(filter(None, frames)) or 'no frame'}. They were not committed: the lane makes them "
                    "again, and who has read them already gets them twice",
                    partial(self._cut, stream, torn.first, torn.last),
                )

    async def _older(self) -> AsyncIterator[Finding]:
        for lane in all_lanes(self._graph):
            ledger = await self._broker.existing_ledger(lane.vertex)
            told = (await newest(await self._stores.store(lane.vertex))).get(lane.key)
            if told is None:
                continue
            try:
                check_not_older(lane, await ledger.mark(lane) if ledger is not None else None, told.entry)
            except DamageError as error:
                yield Finding(
                    str(error).partition(". Restore")[0],
                    f"what lane {lane} did since its mark: it is done again as far as its input is still there, so "
                    "what became of it may be there twice; what its source or its input has no more is lost",
                    partial(self._forget, lane),
                )

    async def _replaced(self) -> AsyncIterator[Finding]:
        for lane in all_lanes(self._graph):
            for buffer in inputs_of(self._graph, lane):
                upstream = await self._broker.existing_ledger(self._graph.edge(buffer.edge).from_)
                own = await self._broker.existing_ledger(lane.vertex)
                if upstream is None or own is None:
                    continue
                stored = await own.mark(lane)
                mark = stored.mark if stored is not None else mark_pb2.Mark()
                reading = await self._compare(upstream, buffer, mark)
                if not reading.faults:
                    continue
                # The log of a reduce lane counts on what was read: it cannot be told to go on without.
                accept = partial(self._go_on, upstream, own, lane, buffer, reading)
                yield Finding(
                    f"lane {lane} has read buffer {buffer} up to sequence {_position(mark, buffer)}, and what is there "
                    f"does not follow: {'; '.join(reading.faults)}",
                    _affected(reading),
                    None if mark.HasField("reduce") else accept,
                )

    async def _logs(self) -> AsyncIterator[Finding]:
        if not self._windows.is_dir():
            return
        for directory in find_logs(self._windows):
            log = inspect_log(directory, verify=True)
            for fault in log.faults:
                yield Finding(
                    f"the log of {log.lane}: {fault}", f"windows of {log.lane}; `millstream wal` shows the log"
                )

    async def _compare(self, upstream: Ledger, buffer: BufferId, mark: mark_pb2.Mark) -> _Reading:
        """What the buffer holds beside what its reader's mark says."""
        after, read = _position(mark, buffer), _read(mark, buffer)
        reading = _Reading()
        known = {item.lane: item for item in read}
        for lane in upstream_lanes(self._graph, buffer):
            written = await upstream.mark(lane)
            totals = written.mark.written if written is not None else ()
            frames = next((total.frames for total in totals if _is(total, buffer)), 0)
            last = known.get(lane.key)
            number = last.number if last is not None else 0
            if last is not None and last.sequence > after:
                # Read in part: it is read again.
                number -= 1
            reading.lanes[lane.key] = _Stored(number, frames)
        top = max((item for item in read if item.sequence), key=lambda item: item.sequence, default=None)
        if top is not None:
            there = await upstream.peek(buffer, top.sequence - 1, 1)
            found = there[0].witness if there and there[0].sequence == top.sequence else None
            if found != top:
                reading.last_is_there = False
                reading.faults.append(
                    f"frame {top.number} of lane {top.lane} at sequence {top.sequence} is "
                    + ("gone" if found is None else f"frame {found.number} of lane {found.lane}, of another commit")
                )
        async for frame in _frames(upstream, buffer, after):
            reading.waiting_records += Frame.decode(frame.data).records
            reading.waiting_bytes += len(frame.data)
            if frame.witness is not None:
                lane_stored = reading.lanes.setdefault(frame.witness.lane, _Stored(0, 0))
                if lane_stored.first is None:
                    lane_stored.first = frame.witness.number
        for key, item in reading.lanes.items():
            if item.before != item.read:
                behind = f"frame {item.first}" if item.first is not None else "nothing"
                reading.faults.append(
                    f"of lane {key} frame {item.read} was read last, {behind} lies behind it, and {item.written} were "
                    "written"
                )
        return reading

    async def _go_on(self, upstream: Ledger, own: Ledger, lane: LaneId, buffer: BufferId, reading: _Reading) -> str:
        """Have the lane go on behind its sequence, and say in its mark what was accepted."""
        # What was published says what the lane had counted until now.
        await self._forget(lane)
        stored = await own.take_over(lane, OWNER)
        # No sequence that was read is given again.
        writer = next(iter(upstream_lanes(self._graph, buffer)))
        while (await upstream.take_over(writer, OWNER)).sequence < stored.mark.sequence:
            pass
        mark = mark_pb2.Mark()
        mark.CopyFrom(stored.mark)
        mark.commit_id = uuid4().bytes
        # There may be something to read again.
        mark.ended = False
        if not reading.last_is_there:
            # What was read in part is another frame now.
            mark.record_index = 0
        del mark.read[:]
        mark.read.extend(mark_pb2.Witness(lane=key, number=item.before) for key, item in reading.lanes.items())
        records, size = await self._written(upstream, buffer)
        done = next(item for item in consumed(lane, mark) if item.buffer == buffer)
        accepted = mark.accepted[0] if mark.accepted else mark.accepted.add(edge=buffer.edge)
        lost = records - done.records - reading.waiting_records + mark.record_index
        accepted.records += lost
        accepted.bytes += size - done.bytes - reading.waiting_bytes
        await own.commit(Commit(lane, (), mark, stored.sequence))
        what = f"{lost:,} records are lost" if lost >= 0 else f"{-lost:,} records may be there twice"
        return f"lane {lane} goes on behind sequence {mark.sequence}; {what}"

    async def _written(self, upstream: Ledger, buffer: BufferId) -> tuple[int, int]:
        """Records and stored bytes written to the buffer, as the marks of the lanes upstream say."""
        records = size = 0
        for lane in upstream_lanes(self._graph, buffer):
            stored = await upstream.mark(lane)
            for total in stored.mark.written if stored is not None else ():
                if _is(total, buffer):
                    records, size = records + total.records, size + total.bytes
        return records, size

    async def _cut(self, stream: str, first: int, last: int) -> str:
        # From the end: what is left of it looks torn until the first is gone.
        for sequence in range(last, first - 1, -1):
            with step("repair.cut"):
                try:
                    await until_answered(
                        self._connection, f"STREAM.MSG.DELETE.{stream}", {"seq": sequence, "no_erase": True}
                    )
                except ApiError:
                    if await self._get(stream, {"seq": sequence}) is not None:
                        raise
        return f"sequences {first} to {last} of {stream} are cut off"

    async def _forget(self, lane: LaneId) -> str:
        bucket = bucket_name(self._graph.pipeline.name, lane.vertex)
        with step("repair.forget"):
            await until_answered(self._connection, f"STREAM.PURGE.KV_{bucket}", {"filter": f"$KV.{bucket}.{lane.key}"})
        return f"lane {lane} goes on from its mark"

    async def _told(self, stream: str, sequence: int) -> str:
        """What a frame holds, for people; empty for other messages."""
        message = await self._get(stream, {"seq": sequence})
        if message is None or ".d." not in message["subject"]:
            return ""
        edge, partition = message["subject"].split(".")[-2:]
        records = Frame.decode(message_data(message)).records
        return f"sequence {sequence}: {records:,} records on their way to {edge}.{partition}"

    async def _get(self, stream: str, request: Mapping[str, object]) -> dict[str, Any] | None:
        try:
            message: dict[str, Any] = (await until_answered(self._connection, f"STREAM.MSG.GET.{stream}", request))[
                "message"
            ]
        except ApiError as error:
            if error.code in (NO_MESSAGE, NO_STREAM):
                return None
            raise
        return message

    def _stream(self, vertex: str) -> str:
        return stream_name(self._graph.pipeline.name, vertex)


async def _frames(ledger: Ledger, buffer: BufferId, after: int) -> AsyncIterator[StoredFrame]:
    while frames := await ledger.peek(buffer, after, _FRAMES_AT_ONCE):
        for frame in frames:
            yield frame
        after = frames[-1].sequence


def _affected(reading: _Reading) -> str:
    lost = [
        f"frames {item.read + 1} to {item.before} of lane {key}"
        for key, item in reading.lanes.items()
        if item.before > item.read
    ]
    twice = [
        f"frames {item.before + 1} to {item.read} of lane {key}"
        for key, item in reading.lanes.items()
        if item.before < item.read
    ]
    parts = []
    if lost:
        parts.append(f"not read, and not to be read any more: {', '.join(lost)}")
    if twice:
        parts.append(f"read once, and to be read again, perhaps with other records: {', '.join(twice)}")
    parts.append("what was read before may differ from what is stored now")
    return "; ".join(parts)


def _position(mark: mark_pb2.Mark, buffer: BufferId) -> int:
    if mark.HasField("reduce"):
        return next((done.sequence for done in mark.reduce.inputs if done.edge == buffer.edge), 0)
    return mark.sequence


def _read(mark: mark_pb2.Mark, buffer: BufferId) -> list[Witness]:
    if mark.HasField("reduce"):
        return from_messages(next((done.read for done in mark.reduce.inputs if done.edge == buffer.edge), ()))
    return from_messages(mark.read)


def _is(total: mark_pb2.Written, buffer: BufferId) -> bool:
    return (total.edge, total.partition) == (buffer.edge, buffer.partition)
