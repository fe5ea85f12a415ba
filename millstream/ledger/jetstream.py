"""Ledgers in JetStream: one stream per vertex (design, section 4).

Above it: the vertex process, through `protocol.py`. Below it: `batch.py` (a commit as messages), `pull.py` (reading),
`durability.py` and the connection.

    commit ──► batch ──► answer ─────────────────────────────► receipt
                 ▲          └─ lost, or "wrong last sequence": read the mark from the leader
                 │               1. it carries our commit id      ──► receipt
                 └───────────────2. it is still the mark before: send the same batch again under a new batch id
                                 3. it is another               ──► FencedError
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from google.protobuf.message import DecodeError

from millstream import limits
from millstream.errors import (
    BufferFullError,
    DamageError,
    EnvironmentFault,
    FencedError,
    RetryLaterError,
    StorageFullError,
)
from millstream.ledger import batch, durability
from millstream.ledger.marks import taken_over
from millstream.ledger.protocol import (
    Broker,
    Commit,
    Durability,
    DurabilityLevel,
    Ledger,
    LedgerLimits,
    LedgerStatistics,
    Receipt,
    StoredFrame,
    StoredMark,
)
from millstream.ledger.pull import PullReader
from millstream.ledger.requests import (
    BATCH_INCOMPLETE,
    BATCHES_IN_FLIGHT,
    NAME_IN_USE,
    NO_MESSAGE,
    NO_RESOURCES,
    NO_STORAGE,
    NO_STREAM,
    RETRY_FIRST_S,
    STORE_FAILED,
    UNAVAILABLE,
    WRONG_LAST_SEQUENCE,
    pause,
    until_answered,
)
from millstream.ledger.subjects import buffer_subject, ids_filter, mark_subject, stream_name
from millstream.record import BufferId, LaneId
from millstream.wire.ledger.v1 import mark_pb2
from millstream.wire.nats import AnswerLostError, ApiError, BrokerConnection, open_connection

_log = logging.getLogger(__name__)

OWNER_PIPELINE = "millstream.pipeline"
OWNER_VERTEX = "millstream.vertex"
"""Keys in a stream's metadata: two pipelines may give streams of one name."""

_QUIET_S = 0.25
_INCOMPLETE_MAX = 4
"""A batch that was sent whole and is refused as incomplete this often cannot be staged: the disk is full."""


class JetStreamLedger:
    """`Ledger` over one stream."""

    def __init__(
        self, connection: BrokerConnection, stream: str, vertex: str, created: str, durability_found: Durability
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._vertex = vertex
        self._created = created
        self._durability = durability_found
        self._statistics = LedgerStatistics()

    @property
    def vertex(self) -> str:
        return self._vertex

    @property
    def ledger_id(self) -> str:
        return f"{self._stream} {self._created}"

    @property
    def durability(self) -> Durability:
        return self._durability

    def statistics(self) -> LedgerStatistics:
        return self._statistics

    async def mark(self, lane: LaneId) -> StoredMark | None:
        subject = mark_subject(self._stream, lane)
        message = await self._get({"last_by_subj": subject})
        if message is None:
            return None
        try:
            mark = mark_pb2.Mark.FromString(_data(message))
        except DecodeError as error:
            raise DamageError(
                f"the mark of lane {lane} ({subject}, sequence {message['seq']}) cannot be read; the lane cannot "
                "know where it was"
            ) from error
        return StoredMark(mark, message["seq"])

    async def take_over(self, lane: LaneId, owner: str) -> StoredMark:
        while True:
            await self._await_whole(f"taking over lane {lane}")
            stored = await self.mark(lane)
            mark = taken_over(stored, owner, uuid4().bytes)
            try:
                receipt = await self.commit(Commit(lane, (), mark, after=stored.sequence if stored else 0))
            except FencedError:
                # Somebody else took over, or the owner before committed, between our reading and writing.
                continue
            return StoredMark(mark, receipt.mark_sequence)

    async def commit(self, commit: Commit) -> Receipt:
        messages = batch.commit_messages(self._stream, commit)
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        sequence = await self._land(commit, messages)
        self._statistics.commit_seconds += loop.time() - started_s
        self._statistics.commits += 1
        self._statistics.commit_messages += len(messages)
        self._statistics.commit_bytes += sum(len(message.data) for message in messages)
        return Receipt(sequence, batch.frame_sequences(sequence, len(messages), len(commit.frames)))

    async def ids(self, lane: LaneId) -> set[str]:
        subject = ids_filter(self._stream, lane)
        found: set[str] = set()
        reader = PullReader(self._connection, self._stream, subject, 0, self._created, LedgerStatistics())
        async with _open(reader) as frames:
            while reader.waiting:
                try:
                    async with asyncio.timeout(_QUIET_S):
                        found.update(batch.decode_ids((await anext(frames)).data))
                except TimeoutError:
                    # What was waiting has expired, perhaps.
                    await reader.recount()
        return found

    @asynccontextmanager
    async def read(self, buffer: BufferId, after: int) -> AsyncIterator[AsyncIterator[StoredFrame]]:
        subject = buffer_subject(self._stream, buffer)
        reader = PullReader(self._connection, self._stream, subject, after, self._created, self._statistics)
        async with _open(reader) as frames:
            yield frames

    async def trim(self, buffer: BufferId, through: int) -> None:
        # `seq` is the first that stays. A repetition does no harm.
        await self._ask("STREAM.PURGE", {"filter": buffer_subject(self._stream, buffer), "seq": through + 1})
        self._statistics.trims += 1

    async def peek(self, buffer: BufferId, after: int, frames: int) -> Sequence[StoredFrame]:
        subject = buffer_subject(self._stream, buffer)
        found: list[StoredFrame] = []
        while len(found) < frames:
            message = await self._get({"seq": after + 1, "next_by_subj": subject})
            if message is None:
                break
            after = message["seq"]
            found.append(StoredFrame(after, _data(message)))
        return found

    async def last_sequence(self, buffer: BufferId) -> int:
        message = await self._get({"last_by_subj": buffer_subject(self._stream, buffer)})
        return 0 if message is None else int(message["seq"])

    async def _land(self, commit: Commit, messages: Sequence[batch.Message]) -> int:
        """Send the batch until it has landed; the sequence of its mark."""
        wait_s = RETRY_FIRST_S
        incomplete = 0
        while True:
            await self._connection.connected()
            refusal: ApiError | None = None
            batch_id = batch.new_batch_id()
            try:
                return await batch.send_batch(self._connection, messages, batch_id, limits.COMMIT_TIMEOUT_S)
            except AnswerLostError as error:
                _log.info("answer to a commit of lane %s lost (%s); reading its mark", commit.lane, error)
            except ApiError as error:
                refusal = error
                if error.code == BATCHES_IN_FLIGHT:
                    wait_s = await pause(wait_s)
                    continue
            # An earlier attempt may have landed after its answer was given up, whatever this one was answered.
            landed = await self._settle(commit)
            if landed is not None:
                self._statistics.answers_settled += 1
                return landed
            if refusal is None:
                await self._await_whole(f"a commit of lane {commit.lane}")
                await self._check_not_torn(commit, messages[0], batch_id)
                continue
            if refusal.code == BATCH_INCOMPLETE:
                incomplete += 1
                if incomplete < _INCOMPLETE_MAX:
                    wait_s = await pause(wait_s)
                    continue
            self._refuse(commit, refusal)
            wait_s = await pause(wait_s)

    async def _settle(self, commit: Commit) -> int | None:
        """The sequence of the commit's mark; None when it has not landed. `FencedError` when another mark is there."""
        stored = await self._surely_mark(commit.lane)
        if stored is not None and stored.mark.commit_id == commit.mark.commit_id:
            return stored.sequence
        if (stored.sequence if stored is not None else 0) == commit.after:
            return None
        if stored is None or stored.sequence < commit.after:
            found = "gone" if stored is None else f"back at {stored.sequence}"
            raise DamageError(
                f"the mark of lane {commit.lane} in {self._stream}, which was at sequence {commit.after}, is {found}: "
                "the stream was made anew or has lost its end. Restore it, or start the pipeline over"
            )
        raise FencedError(
            f"lane {commit.lane} of {self._stream} was taken over by {stored.mark.owner!r} (epoch "
            f"{stored.mark.epoch}, mark at sequence {stored.sequence}); this owner, {commit.mark.owner!r} (epoch "
            f"{commit.mark.epoch}), had its last mark at {commit.after} and must stop"
        )

    async def _surely_mark(self, lane: LaneId) -> StoredMark | None:
        wait_s = RETRY_FIRST_S
        while True:
            try:
                return await self.mark(lane)
            except RetryLaterError as error:
                _log.warning("the mark of lane %s cannot be read now: %s", lane, error)
            wait_s = await pause(wait_s)

    def _refuse(self, commit: Commit, error: ApiError) -> None:
        """Raise what the server's refusal means; return when the same batch should be sent again."""
        where = f"a commit of lane {commit.lane} to {self._stream}"
        if error.code == STORE_FAILED and "per subject" in error.description:
            self._statistics.full_refusals += 1
            raise BufferFullError(f"{where} was refused: a buffer is full ({error})")
        if error.code in NO_RESOURCES or error.code == STORE_FAILED:
            self._statistics.full_refusals += 1
            raise StorageFullError(f"{where} was refused: the broker's storage is full ({error})")
        if error.code == BATCH_INCOMPLETE:
            raise StorageFullError(
                f"{where} cannot be staged by the broker at {self._connection.place} ({error}): its disk is "
                "probably full; "
                "make room, and restart the broker if it logs write errors"
            )
        if error.code in WRONG_LAST_SEQUENCE or error.code in UNAVAILABLE:
            # The mark that was in the way is not there any more, or there is no leader: not what decides about this
            # batch.
            _log.warning("%s was refused (%s), and its mark is still the one before; sending it again", where, error)
            return
        raise EnvironmentFault(f"{where} was refused by the broker at {self._connection.place}: {error}")

    async def _await_whole(self, what: str) -> None:
        """Wait while the stream ends in the middle of a batch.

        A server that fails to write in the middle of a batch (its disk is full) stops there and completes the batch
        when it is
        started again. Nothing may be written behind such an end: it would stay half for ever. Readers see nothing of it
        that is not completed with the same frames.
        """
        wait_s = RETRY_FIRST_S
        told = False
        while await self._ends_torn():
            if not told:
                _log.error(
                    "%s waits: stream %s ends in the middle of a batch, which happens when the broker cannot "
                    "write. Make room on "
                    "its disk and restart it; it then completes the batch",
                    what,
                    self._stream,
                )
                told = True
            wait_s = await pause(wait_s)

    async def _ends_torn(self) -> bool:
        last = (await self._info())["state"]["last_seq"]
        message = await self._get({"seq": last}) if last else None
        if message is None:
            return False
        headers = base64.b64decode(message.get("hdrs", ""))
        if batch.BATCH_ID.encode() not in headers or batch.BATCH_COMMIT.encode() in headers:
            return False
        # The server does not answer for a message while a batch is being applied; what follows now was not torn.
        return bool((await self._info())["state"]["last_seq"] == last)

    async def _check_not_torn(self, commit: Commit, first: batch.Message, batch_id: str) -> None:
        """Raise `DamageError` when a part of this batch is stored, and can never be completed.

        It takes a server that ran out of storage in the middle of the batch, and another lane that wrote behind it when
        there was room again, before the server was restarted.
        """
        if not commit.frames:
            return
        sequence = commit.after
        while (message := await self._get({"seq": sequence + 1, "next_by_subj": first.subject})) is not None:
            sequence = message["seq"]
            if batch_id.encode() in base64.b64decode(message.get("hdrs", "")) and await self._settle(commit) is None:
                raise DamageError(
                    f"the broker at {self._connection.place} stored a part of a commit of lane {commit.lane}, from "
                    f"sequence {sequence} of {self._stream} ({first.subject}), and others wrote behind it: readers of "
                    "these buffers have seen records that were not committed. Start the pipeline over, with more "
                    "storage for the broker"
                )

    async def _info(self) -> dict[str, Any]:
        return await self._ask("STREAM.INFO")

    async def _get(self, request: Mapping[str, object]) -> dict[str, Any] | None:
        """One message from the stream's leader."""
        message: dict[str, Any] | None = (await self._ask("STREAM.MSG.GET", request)).get("message")
        return message

    async def _ask(self, what: str, request: Mapping[str, object] | None = None) -> dict[str, Any]:
        """A request about the stream, until it is answered; empty when the answer is that there is no such message."""
        try:
            return await until_answered(self._connection, f"{what}.{self._stream}", request)
        except ApiError as error:
            if error.code == NO_MESSAGE:
                return {}
            if error.code == NO_STREAM:
                raise EnvironmentFault(
                    f"the ledger {self._stream} at {self._connection.place} is gone; restore it, or start the "
                    "pipeline over"
                ) from error
            raise RetryLaterError(f"{what} of {self._stream} at {self._connection.place} failed: {error}") from error


class JetStreamBroker:
    """`Broker` over one server or cluster."""

    def __init__(
        self, connection: BrokerConnection, pipeline: str, require: DurabilityLevel, monitor_url: str | None
    ) -> None:
        self._connection = connection
        self._pipeline = pipeline
        self._require = require
        self._monitor_url = monitor_url
        self._ledgers: dict[str, JetStreamLedger] = {}

    async def ledger(self, vertex: str, limits: LedgerLimits) -> Ledger:
        stream = stream_name(self._pipeline, vertex)
        wanted = _stream_config(self._pipeline, vertex, stream, limits)
        info = await self._find(stream, vertex)
        if info is None:
            info = await self._make("CREATE", stream, wanted, limits)
        elif any(info["config"].get(key) != value for key, value in wanted.items() if key != "metadata"):
            info = await self._make("UPDATE", stream, {**info["config"], **wanted}, limits)
        ledger = await self._opened(stream, vertex, info)
        durability.check(ledger.durability, self._require, self._connection.place)
        return ledger

    async def existing_ledger(self, vertex: str) -> Ledger | None:
        stream = stream_name(self._pipeline, vertex)
        info = await self._find(stream, vertex)
        return None if info is None else await self._opened(stream, vertex, info)

    async def delete(self) -> None:
        names: list[str] = []
        offset = 0
        while True:
            answer = await until_answered(self._connection, "STREAM.LIST", {"offset": offset})
            page = answer.get("streams") or []
            names += [
                stream["config"]["name"]
                for stream in page
                if (stream["config"].get("metadata") or {}).get(OWNER_PIPELINE) == self._pipeline
            ]
            offset += len(page)
            if not page or offset >= answer["total"]:
                break
        for name in names:
            try:
                await until_answered(self._connection, f"STREAM.DELETE.{name}")
            except ApiError as error:
                # Gone already, perhaps by a request of ours whose answer was lost.
                if error.code != NO_STREAM:
                    raise
        self._ledgers.clear()

    async def _find(self, stream: str, vertex: str) -> dict[str, Any] | None:
        try:
            info = await until_answered(self._connection, f"STREAM.INFO.{stream}")
        except ApiError as error:
            if error.code == NO_STREAM:
                return None
            raise
        found = info["config"].get("metadata") or {}
        if found.get(OWNER_PIPELINE) != self._pipeline or found.get(OWNER_VERTEX) != vertex:
            raise EnvironmentFault(
                f"stream {stream} at {self._connection.place} belongs to vertex {found.get(OWNER_VERTEX)} of pipeline "
                f"{found.get(OWNER_PIPELINE)}, and vertex {vertex} of pipeline {self._pipeline} needs that name; "
                "rename one"
            )
        lost = info["state"].get("lost")
        if lost:
            raise DamageError(
                f"stream {stream} at {self._connection.place} has lost {len(lost.get('msgs') or [])} messages "
                f"({lost.get('bytes', 0)} bytes) to damaged files, sequences {lost.get('msgs')}. Restore it, or "
                "start the "
                "pipeline over"
            )
        return info

    async def _make(self, how: str, stream: str, config: Mapping[str, Any], limits: LedgerLimits) -> dict[str, Any]:
        try:
            return await until_answered(self._connection, f"STREAM.{how}.{stream}", config)
        except ApiError as error:
            if error.code == NAME_IN_USE:
                # Another process made it at the same time, from another specification.
                return await self._make("UPDATE", stream, config, limits)
            if error.code in NO_STORAGE:
                raise EnvironmentFault(
                    f"the broker at {self._connection.place} cannot reserve {limits.bytes_max} bytes for the "
                    f"ledger {stream} "
                    f"({error}); lower bufferMaxBytes, or give the broker more storage"
                ) from error
            raise EnvironmentFault(
                f"the broker at {self._connection.place} refuses the stream {stream}: {error}; "
                "atomic batches need a NATS server 2.12 or later with JetStream"
            ) from error

    async def _opened(self, stream: str, vertex: str, info: Mapping[str, Any]) -> JetStreamLedger:
        known = self._ledgers.get(vertex)
        if known is not None:
            return known
        server, where = await self._server_settings()
        found = durability.judge(server, info["config"], where)
        ledger = JetStreamLedger(self._connection, stream, vertex, info["created"], found)
        self._ledgers[vertex] = ledger
        return ledger

    async def _server_settings(self) -> tuple[dict[str, Any] | None, str]:
        if self._monitor_url is None:
            return None, "the address of the server's monitoring endpoint is not known"
        try:
            return await durability.read_server_settings(self._monitor_url), f"{self._monitor_url}/varz"
        except (OSError, ValueError) as error:
            return None, f"{self._monitor_url}/varz could not be read: {error!r}"


@asynccontextmanager
async def open_jetstream_broker(
    url: str, pipeline: str, *, require: DurabilityLevel = DurabilityLevel.FSYNC, monitor_url: str | None = None
) -> AsyncIterator[Broker]:
    """The pipeline's broker at `url`. Raises `EnvironmentFault` when it cannot be reached."""
    async with open_connection(url, name=f"millstream {pipeline}") as connection:
        yield JetStreamBroker(connection, pipeline, require, monitor_url)


@asynccontextmanager
async def _open(reader: PullReader) -> AsyncIterator[AsyncIterator[StoredFrame]]:
    try:
        await reader.open()
        yield reader
    finally:
        await reader.close()


def _stream_config(pipeline: str, vertex: str, stream: str, limits: LedgerLimits) -> dict[str, Any]:
    return {
        "name": stream,
        "subjects": [f"{stream}.>"],
        "storage": "file",
        "retention": "limits",
        "num_replicas": limits.replicas,
        "discard": "new",
        "discard_new_per_subject": True,
        "max_msgs_per_subject": limits.frames_per_buffer_max,
        "max_bytes": limits.bytes_max,
        "allow_atomic": True,
        "allow_rollup_hdrs": True,
        "allow_direct": True,
        "allow_msg_ttl": True,
        "metadata": {OWNER_PIPELINE: pipeline, OWNER_VERTEX: vertex},
    }


def _data(message: Mapping[str, Any]) -> bytes:
    return base64.b64decode(message.get("data", ""))
