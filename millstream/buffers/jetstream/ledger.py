"""Ledgers in JetStream: one stream per vertex.

Above it: the vertex process, through `protocol.py`. Below it: `batch.py` (a commit as messages), `pull.py` (reading),
`durability.py` and the connection.

    commit ──► send  ──► answer ─────────────────────────────► receipt
                 ▲          └─ lost, or "wrong last sequence": read the mark from the leader
                 │               1. it has our commit id          ──► receipt
                 └───────────────2. it is the previous mark: send the same again (a batch: under a new batch id)
                                 3. it is another mark            ──► FencedError, or DamageError if it is an older one

The mark is also read before the first commit over a new connection: the server compares only sequences, and may have
come back with an older stream.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any
from uuid import uuid4

from millstream import codes, limits
from millstream.buffers.jetstream import durability
from millstream.buffers.jetstream.pages import PageMessage, read_page
from millstream.buffers.jetstream.pull import PullReader, opened
from millstream.buffers.jetstream.references import FramesApart, reference_in, removed, whole
from millstream.buffers.jetstream.requests import (
    BATCH_INCOMPLETE,
    BATCHES_IN_FLIGHT,
    NAME_IN_USE,
    NO_MESSAGE,
    NO_RESOURCES,
    NO_STORAGE,
    NO_STREAM,
    SILENCES_REPORTED,
    STORE_FAILED,
    UNAVAILABLE,
    WRONG_LAST_SEQUENCE,
    message_data,
    message_headers,
    owned_streams,
    tries,
    unless_missing,
    until_answered,
    until_created,
)
from millstream.buffers.jetstream.sending import send_commit
from millstream.buffers.jetstream.stream_config import (
    LAYOUT,
    LAYOUT_NOW,
    LAYOUTS,
    OWNER_PIPELINE,
    OWNER_VERTEX,
    after_leaving,
    holds_of,
    sharing_of,
    stream_config,
)
from millstream.buffers.jetstream.torn import ServerStart, TornEnds
from millstream.buffers.jetstream.trims import ReadFrames, purges
from millstream.durable import step
from millstream.errors import (
    REPAIR,
    BufferFullError,
    DamageError,
    FencedError,
    InfrastructureError,
    MillstreamError,
    RetryLaterError,
    StorageFullError,
)
from millstream.ledger import batch
from millstream.ledger.marks import settled, taken_over, takeover
from millstream.ledger.opened import Holds, OpenLedger
from millstream.ledger.protocol import (
    Broker,
    Commit,
    Durability,
    DurabilityLevel,
    Ledger,
    LedgerLimits,
    Receipt,
    StoredFrame,
    StoredIds,
    StoredMark,
)
from millstream.ledger.sharing import Sharing
from millstream.ledger.subjects import apart_filter, buffer_filter, ids_filter, lane_filter, stream_name
from millstream.ledger.witness import ObserverCheck, ReadCheck, witness_of
from millstream.nats.access import BrokerAccess
from millstream.nats.connection import AnswerLostError, ApiError, BrokerConnection, open_connection
from millstream.nats.versions import check_version
from millstream.pauses import until_done
from millstream.record import BufferId, LaneId

_log = logging.getLogger(__name__)

_MONITOR_PATIENCE_S = 10.0
_INCOMPLETE_MAX = 4
"""If the server refuses a completely sent batch as incomplete this often, it cannot stage the batch: its disk is
full."""


class JetStreamLedger(OpenLedger):
    """`Ledger` over one stream."""

    def __init__(
        self,
        connection: BrokerConnection,
        stream: str,
        vertex: str,
        created: str,
        durability_found: Durability,
        server_start: ServerStart,
        sharing: Sharing,
        holds: Holds,
        seen: ReadFrames,
    ) -> None:
        super().__init__(vertex, stream, created, durability_found, sharing, holds)
        self._connection = connection
        self._stream = stream
        self._created = created
        self._holds = holds
        self._seen = seen
        self._left: set[LaneId] = set()
        """Lanes that may have left frames without a reference since their last mark."""
        self._checked_after_losses: dict[LaneId, int] = {}
        """How often the connection had been lost when the mark of a lane was read."""
        self._torn = TornEnds(stream, self._last_stored, self._get, server_start)

    async def mark(self, lane: LaneId) -> StoredMark | None:
        message = await self._get({"last_by_subj": lane_filter(self._stream, lane)})
        if message is None:
            return None
        try:
            mark = batch.stored_mark(message["subject"], message_data(message), message_headers(message))
        except ValueError as error:
            raise DamageError(
                codes.MARK_UNREADABLE,
                f"the mark of lane {lane} ({message['subject']}, sequence {message['seq']}) cannot be read, so the "
                f"position of the lane is not known. {REPAIR}",
            ) from error
        if mark is None:
            torn = await self._torn.check_lane(message)
            raise RetryLaterError(
                codes.BROKER_AWAY, f"the mark of lane {lane} cannot be read: {self._torn.advice(torn)}"
            )
        return StoredMark(mark, message["seq"])

    async def take_over(self, lane: LaneId, owner: str) -> StoredMark:
        """Write the lane's mark again under the next epoch, which fences earlier owners."""
        while True:
            await self._torn.wait(f"taking over lane {lane}")
            losses = self._connection.losses
            stored = await self._surely_mark(lane)
            self._checked_after_losses[lane] = losses
            mark = taken_over(stored, owner, uuid4().bytes)
            try:
                with step("ledger.take_over", self.vertex):
                    receipt = await self._commit(takeover(lane, mark, stored))
            except FencedError:
                # Another owner took over, or the previous owner committed, between our read and our write.
                continue
            if self._holds.references:
                # What earlier owners have not committed.
                await self._remove_left(lane, stored.sequence if stored else 0, receipt.mark_sequence, losses)
            return StoredMark(mark, receipt.mark_sequence)

    async def _remove_unreferenced(self, commit: Commit, sequence: int, messages: int) -> None:
        """Remove the frames of earlier attempts at a commit that is stored."""
        losses = self._connection.losses
        needed = set()
        try:
            stored = await self.mark(commit.lane)
            if stored is None or stored.sequence != sequence:
                # Another owner removes them, or has already done so.
                return
            for frame in batch.frame_sequences(sequence, messages, len(commit.frames)):
                message = await self._get({"seq": frame})
                reference = reference_in(message_headers(message)) if message is not None else None
                if reference is not None:
                    needed.add(reference.sequence)
        except RetryLaterError as error:
            # The commit is stored, whatever becomes of these frames.
            _log.info("frames that lane %s has left are not removed: %s", commit.lane, error)
            return
        await self._remove_left(commit.lane, commit.after, sequence, losses, needed)

    async def _remove_left(
        self, lane: LaneId, after: int, before: int, losses: int, needed: Collection[int] = ()
    ) -> None:
        """Remove the frames that are stored apart between two marks that follow each other, except those that are
        needed. Only while the connection has been lost `losses` times: after that, there may be other messages at these
        sequences. Returns early if something fails; a later trim removes the rest."""
        while True:
            try:
                found = await self._get({"seq": after + 1, "next_by_subj": apart_filter(self._stream, lane)})
            except RetryLaterError as error:
                _log.info("frames that lane %s has left are not removed: %s", lane, error)
                return
            if found is None or found["seq"] >= before:
                return
            after = found["seq"]
            if after not in needed and not await removed(self._connection, self._stream, after, losses):
                return

    async def commit(self, commit: Commit) -> Receipt:
        """Store frames, ids and mark together, or none of them."""
        with step("ledger.commit", self.vertex):
            return await self._commit(commit)

    async def _commit(self, commit: Commit) -> Receipt:
        messages = batch.commit_messages(self._stream, commit, self.sharing)
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        large = len(commit.frames) if self._holds.references and len(messages) > 1 else 0
        apart = FramesApart(self._connection, self._stream, messages, large)
        try:
            sequence = await self._land(commit, apart)
        except MillstreamError:
            await apart.remove()
            raise
        finally:
            if apart.has_left:
                self._left.add(commit.lane)
        if commit.lane in self._left:
            self._left.discard(commit.lane)
            await self._remove_unreferenced(commit, sequence, len(messages))
        self._statistics.committed(loop.time() - started_s, len(messages), sum(len(one.data) for one in messages))
        return Receipt(sequence, batch.frame_sequences(sequence, len(messages), len(commit.frames)))

    async def ids(self, lane: LaneId) -> AsyncIterator[StoredIds]:
        connection, stream, ids = self._connection, self._stream, ids_filter(self._stream, lane)
        last = await self._get({"last_by_subj": ids})
        newest = await self._get({"last_by_subj": lane_filter(stream, lane)})
        if last is None or newest is None:
            return
        # The takeover was stored a moment ago, and its time is from the same clock as the times of the ids.
        now_s = _seconds(newest["time"])
        page: list[tuple[int, StoredIds]] = []

        def take(message: PageMessage) -> None:
            age_s = now_s - _seconds(message.time)
            digests = batch.remembered(message.data, stream, f"{message.subject}, sequence {message.sequence}")
            page.append((message.sequence, StoredIds(digests, max(0.0, age_s))))

        after, pauses = 0, tries()
        while after < int(last["seq"]):
            await connection.connected()
            remaining: int | None = None
            try:
                remaining = await read_page(connection, stream, ids, after, take)
            except AnswerLostError as error:
                # Silence says nothing about what is stored.
                _log.info("reading %s continues after %d: %s", ids, after, error)
            for sequence, stored in page:
                after = sequence
                yield stored
            page.clear()
            if remaining:
                continue
            # The last ids may have expired, or the server that answered may not have them yet. The leader knows.
            if remaining == 0 and await self._get({"seq": after + 1, "next_by_subj": ids}) is None:
                return
            await pauses.wait()

    def _subject(self, stored: BufferId) -> str:
        return buffer_filter(self._stream, stored)

    def _frames(
        self, stored: BufferId, after: int, check: ReadCheck | ObserverCheck
    ) -> AbstractAsyncContextManager[AsyncIterator[StoredFrame]]:
        return opened(
            PullReader(
                self._connection,
                self._stream,
                self._subject(stored),
                after,
                self._created,
                self._statistics,
                check,
                self._seen,
                self._get,
            )
        )

    async def trim(self, through: Mapping[BufferId, int]) -> None:
        through = {self.sharing.stored(buffer): sequence for buffer, sequence in through.items()}
        pauses = tries()
        while not await self._trimmed(through):
            await pauses.wait()
        self._statistics.trims += 1

    async def _trimmed(self, through: Mapping[BufferId, int]) -> bool:
        """Try to trim. False if the connection was lost meanwhile: what was decided may be wrong for the stream with
        which the server comes back, so nothing of it is repeated."""
        connection = self._connection
        wanted = purges(
            self._stream,
            through,
            self._info,
            self._get,
            self._seen,
            lambda: connection.losses,
            refers=self._holds.references,
        )
        async for subject, first, losses in wanted:
            # A purge up to 0 would remove everything.
            if first <= 1:
                continue
            await connection.connected()
            if connection.losses != losses:
                return False
            try:
                with step("ledger.trim", self.vertex):
                    await self._ask_once("STREAM.PURGE", {"filter": subject, "seq": first})
            except AnswerLostError:
                return False
        return True

    async def leave(self, edges: Collection[str]) -> None:
        config = (await self._info())["config"]
        metadata = after_leaving(config["metadata"], edges)
        with step("ledger.leave", self.vertex):
            await self._ask("STREAM.UPDATE", {**config, "metadata": metadata})
        self.sharing = sharing_of(metadata)

    async def peek(self, buffer: BufferId, after: int, frames: int) -> Sequence[StoredFrame]:
        subject = self._filter(buffer)
        found: list[StoredFrame] = []
        while len(found) < frames:
            message = await self._get({"seq": after + 1, "next_by_subj": subject})
            if message is None:
                break
            after = message["seq"]
            data = await whole(message, self._get)
            if data is not None:
                found.append(StoredFrame(after, data, witness_of(after, message_headers(message))))
        return found

    async def last_sequence(self, buffer: BufferId) -> int:
        message = await self._get({"last_by_subj": self._filter(buffer)})
        return 0 if message is None else int(message["seq"])

    async def _land(self, commit: Commit, apart: FramesApart) -> int:
        """Send the commit until it is stored. Returns the sequence of its mark."""
        pauses = tries()
        incomplete = silences = 0
        while True:
            await self._connection.connected()
            if commit.after and self._connection.losses != self._checked_after_losses.get(commit.lane):
                # The server cannot compare more than the sequence, and may have come back with an older stream.
                losses = self._connection.losses
                if (landed := await self._settle(commit)) is not None:
                    self._statistics.answers_settled += 1
                    return landed
                self._checked_after_losses[commit.lane] = losses
                continue
            refusal: ApiError | None = None
            losses = self._connection.losses
            try:
                return await self._send(apart)
            except AnswerLostError as error:
                _log.info("the answer to a commit of lane %s was lost (%s); reading its mark", commit.lane, error)
                silences = silences + 1 if self._connection.losses == losses else 0
                if silences == SILENCES_REPORTED:
                    _log.warning(
                        "the NATS server at %s has not answered %d commits of lane %s in a row over a working "
                        "connection. Check its log and its disk: a stream that could not be written waits until the "
                        "server is restarted",
                        self._connection.place,
                        silences,
                        commit.lane,
                    )
            except ApiError as error:
                refusal = error
                if error.code == BATCHES_IN_FLIGHT:
                    await pauses.wait()
                    continue
            # Whatever the answer to this attempt, an earlier attempt may have been stored after its timeout.
            landed = await self._settle(commit)
            if landed is not None:
                self._statistics.answers_settled += 1
                if refusal is not None:
                    # An earlier attempt is stored. If this one had frames of its own, nothing refers to them.
                    await apart.remove()
                return landed
            if refusal is None:
                await self._torn.wait(f"a commit of lane {commit.lane}")
                continue
            if refusal.code == BATCH_INCOMPLETE:
                incomplete += 1
                if incomplete < _INCOMPLETE_MAX:
                    await pauses.wait()
                    continue
            self._refuse(commit, refusal)
            await pauses.wait()

    async def _send(self, apart: FramesApart) -> int:
        """Make one attempt. Returns the sequence of the last message, or raises as `send_commit` does."""
        messages = await apart.store(limits.COMMIT_TIMEOUT_S)
        try:
            return await send_commit(self._connection, messages, limits.COMMIT_TIMEOUT_S)
        except ApiError:
            raise
        except BaseException:
            apart.may_be_needed()
            raise

    async def _settle(self, commit: Commit) -> int | None:
        """The sequence of the commit's mark; None if the commit is not stored. Raises `FencedError` if the ledger has
        another mark."""
        return settled(commit, await self._surely_mark(commit.lane))

    async def _surely_mark(self, lane: LaneId) -> StoredMark | None:
        report = partial(_log.warning, "the mark of lane %s cannot be read now: %s", lane)
        return await until_done(partial(self.mark, lane), RetryLaterError, report, tries())

    def _refuse(self, commit: Commit, error: ApiError) -> None:
        """Raise the error that the server's refusal means; return if the same commit should be sent again."""
        where = f"a commit of lane {commit.lane} to {self._stream}"
        if error.code == STORE_FAILED and "per subject" in error.description:
            self._statistics.full_refusals += 1
            raise BufferFullError(codes.BUFFER_FULL, f"{where} was refused: a buffer is full ({error})")
        if error.code in NO_RESOURCES or error.code == STORE_FAILED:
            self._statistics.full_refusals += 1
            raise StorageFullError(
                codes.BROKER_STORAGE_FULL, f"{where} was refused: the broker's storage is full ({error})"
            )
        if error.code == BATCH_INCOMPLETE:
            raise StorageFullError(
                codes.BROKER_STORAGE_FULL,
                f"{where} cannot be staged by the broker at {self._connection.place} ({error}): its disk is "
                "probably full. Free some space, and restart the broker if it logs write errors",
            )
        if error.code in WRONG_LAST_SEQUENCE or error.code in UNAVAILABLE:
            # The conflicting mark no longer exists, or the stream has no leader. Neither decides about this commit.
            _log.warning("%s was refused (%s), and its mark has not changed; sending it again", where, error)
            return
        raise InfrastructureError(
            codes.BROKER_COMMAND, f"{where} was refused by the broker at {self._connection.place}: {error}"
        )

    async def _last_stored(self) -> int:
        return int((await self._info())["state"]["last_seq"])

    async def _info(self, subjects: str | None = None) -> dict[str, Any]:
        """Information about the stream, with the number of messages of every subject that matches `subjects`."""
        return await self._ask("STREAM.INFO", None if subjects is None else {"subjects_filter": subjects})

    async def _get(self, request: Mapping[str, object]) -> dict[str, Any] | None:
        """One message from the stream's leader."""
        message: dict[str, Any] | None = (await self._ask("STREAM.MSG.GET", request)).get("message")
        return message

    async def _ask(self, what: str, request: Mapping[str, object] | None = None) -> dict[str, Any]:
        """Repeat a request about the stream until it is answered. The answer is empty if there is no such message."""
        with self._refusals(what):
            asking = until_answered(self._connection, f"{what}.{self._stream}", request)
            return await unless_missing(asking, NO_MESSAGE) or {}

    async def _ask_once(self, what: str, request: Mapping[str, object]) -> None:
        """Make one attempt at a request about the stream. Raises `AnswerLostError`."""
        with self._refusals(what):
            await self._connection.api(f"{what}.{self._stream}", request)

    @contextmanager
    def _refusals(self, what: str) -> Iterator[None]:
        """Raises the error that a refusal of a request about the stream means."""
        try:
            yield
        except ApiError as error:
            if error.code == NO_STREAM:
                raise InfrastructureError(
                    codes.LEDGER_REMOVED,
                    f"the ledger {self._stream} at {self._connection.place} no longer exists. Restore it, or start "
                    "the pipeline over",
                ) from error
            raise RetryLaterError(
                codes.BROKER_AWAY, f"{what} of {self._stream} at {self._connection.place} failed: {error}"
            ) from error


class JetStreamBroker:
    """`Broker` over one server or cluster."""

    def __init__(
        self,
        connection: BrokerConnection,
        pipeline: str,
        require: DurabilityLevel,
        monitor_url: str | None,
        seen: ReadFrames,
        *,
        tolerate_lost: bool = False,
    ) -> None:
        self._connection = connection
        self._pipeline = pipeline
        self._tolerate_lost = tolerate_lost
        self._require = require
        self._monitor_url = monitor_url
        self._seen = seen
        self._ledgers: dict[str, JetStreamLedger] = {}

    async def ledger(self, vertex: str, limits: LedgerLimits) -> Ledger:
        stream = stream_name(self._pipeline, vertex)
        wanted = stream_config(self._pipeline, vertex, stream, limits)
        info = await self._find(stream, vertex)
        if info is None:
            info = await self._make("CREATE", stream, wanted, limits)
        elif any(info["config"].get(key) != value for key, value in wanted.items() if key != "metadata"):
            info = await self._make("UPDATE", stream, _changed(info, wanted), limits)
        ledger = await self._opened(stream, vertex, info)
        durability.check(ledger.durability, self._require, self._connection.place)
        return ledger

    async def existing_ledger(self, vertex: str) -> Ledger | None:
        stream = stream_name(self._pipeline, vertex)
        info = await self._find(stream, vertex)
        return None if info is None else await self._opened(stream, vertex, info)

    async def delete(self, vertex: str | None = None) -> None:
        """Delete the streams of a pipeline, or of one of its vertices."""
        for name in await owned_streams(partial(until_answered, self._connection), self._pipeline, vertex):
            with step("ledger.delete"):
                # It may be deleted already, perhaps by our own request whose answer was lost.
                await unless_missing(until_answered(self._connection, f"STREAM.DELETE.{name}"), NO_STREAM)
            self._seen.forget(name)
        self._ledgers.clear()

    async def _find(self, stream: str, vertex: str) -> dict[str, Any] | None:
        info = await unless_missing(until_answered(self._connection, f"STREAM.INFO.{stream}"), NO_STREAM)
        if info is None:
            return None
        found = info["config"].get("metadata") or {}
        if found.get(OWNER_PIPELINE) != self._pipeline or found.get(OWNER_VERTEX) != vertex:
            raise InfrastructureError(
                codes.LEDGER_NAME_TAKEN,
                f"stream {stream} at {self._connection.place} belongs to vertex {found.get(OWNER_VERTEX)} of "
                f"pipeline {found.get(OWNER_PIPELINE)}, but vertex {vertex} of pipeline {self._pipeline} needs that "
                "name. Rename one of the two",
            )
        if found.get(LAYOUT) not in LAYOUTS:
            raise InfrastructureError(
                codes.LEDGER_LAYOUT,
                f"stream {stream} at {self._connection.place} has the layout of another version of Millstream "
                f"(layout {found.get(LAYOUT, 'unknown')}; this one reads {LAYOUTS[0]} to {LAYOUT_NOW}). Continue with "
                "that version, or start the pipeline over",
            )
        lost = info["state"].get("lost")
        if lost and not self._tolerate_lost:
            raise DamageError(
                codes.MESSAGES_LOST,
                f"stream {stream} at {self._connection.place} has lost {len(lost.get('msgs') or [])} messages "
                f"({lost.get('bytes', 0)} bytes) to damaged files, sequences {lost.get('msgs')}. {REPAIR}",
            )
        return info

    async def _make(self, how: str, stream: str, config: Mapping[str, Any], limits: LedgerLimits) -> dict[str, Any]:
        """Create or update the stream of a ledger."""
        try:
            with step("ledger.make"):
                if how == "CREATE":
                    return await until_created(self._connection, stream, config)
                return await until_answered(self._connection, f"STREAM.{how}.{stream}", config)
        except ApiError as error:
            if error.code == NAME_IN_USE:
                # Another process created it at the same time, from another specification.
                made = await until_answered(self._connection, f"STREAM.INFO.{stream}")
                return await self._make("UPDATE", stream, _changed(made, config), limits)
            if error.code in NO_STORAGE:
                raise InfrastructureError(
                    codes.BROKER_RESERVATION,
                    f"the broker at {self._connection.place} cannot reserve {limits.bytes_max} bytes for the ledger "
                    f"{stream} ({error}). Lower bufferMaxBytes, or give the broker more storage",
                ) from error
            raise InfrastructureError(
                codes.BROKER_COMMAND,
                f"the broker at {self._connection.place} refuses the stream {stream}: {error}; "
                "ledgers need a NATS server with JetStream",
            ) from error

    async def _opened(self, stream: str, vertex: str, info: Mapping[str, Any]) -> JetStreamLedger:
        known = self._ledgers.get(vertex)
        if known is not None:
            return known
        server, where = await self._server_settings()
        found = durability.judge(server, info["config"], where)
        metadata = info["config"]["metadata"]
        holds = holds_of(metadata)
        if self._connection.client.max_payload < limits.MESSAGE_BYTES_MAX:
            # A server that accepts only smaller messages still stores each frame.
            holds = replace(holds, packs=False)
        ledger = JetStreamLedger(
            self._connection,
            stream,
            vertex,
            info["created"],
            found,
            self._server_start,
            sharing_of(metadata),
            holds,
            self._seen,
        )
        self._ledgers[vertex] = ledger
        return ledger

    async def _server_start(self) -> datetime | None:
        server, _ = await self._server_settings()
        return datetime.fromisoformat(server["start"]) if server is not None and "start" in server else None

    async def _server_settings(self) -> tuple[dict[str, Any] | None, str]:
        if self._monitor_url is None:
            return await durability.ask_server_settings(self._connection)
        where = f"{self._monitor_url}/varz"
        # A server that is starting accepts connections a moment before its monitoring endpoint answers.
        patience_s = _MONITOR_PATIENCE_S if self._require is DurabilityLevel.FSYNC else 0.0
        deadline_s = asyncio.get_running_loop().time() + patience_s
        pauses = tries()
        while True:
            try:
                settings = await asyncio.to_thread(durability.read_server_settings, self._monitor_url)
            except (OSError, ValueError) as error:
                if asyncio.get_running_loop().time() >= deadline_s:
                    return None, f"{where} could not be read: {error!r}"
                await pauses.wait()
                continue
            if durability.is_of(settings, self._connection.server):
                return settings, where
            return None, f"{where} is of a different server, {settings.get('server_name')}, from the broker"


def _seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()


def _changed(info: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of an existing stream with the settings that a ledger requires. The metadata stays: a stream
    keeps its layout. So does everything else, such as the number of copies, which is the operator's."""
    return {**info["config"], **wanted, "metadata": info["config"]["metadata"]}


def jetstream_broker(
    connection: BrokerConnection,
    access: BrokerAccess,
    pipeline: str,
    seen: ReadFrames,
    *,
    require: DurabilityLevel = DurabilityLevel.FSYNC,
    tolerate_lost: bool = False,
) -> Broker:
    """The pipeline's broker over an open connection, which has to outlive it. `access`: the access with which the
    connection was opened. `seen`: what all readers of the connection have seen, because one of several brokers over it
    may read what another one trims. Raises `InfrastructureError` if the server is too old."""
    check_version(connection.server, access.place)
    return JetStreamBroker(connection, pipeline, require, access.monitor_url, seen, tolerate_lost=tolerate_lost)


@asynccontextmanager
async def open_jetstream_broker(
    access: BrokerAccess,
    pipeline: str,
    *,
    require: DurabilityLevel = DurabilityLevel.FSYNC,
    tolerate_lost: bool = False,
) -> AsyncIterator[Broker]:
    """The pipeline's broker. Raises `InfrastructureError` if it cannot be reached or is too old.

    With `tolerate_lost`, a ledger is opened even if the broker reports that it lost messages of it: for a repair, which
    finds out which messages these were.
    """
    async with open_connection(access, name=f"millstream {pipeline}") as connection:
        yield jetstream_broker(connection, access, pipeline, ReadFrames(), require=require, tolerate_lost=tolerate_lost)
