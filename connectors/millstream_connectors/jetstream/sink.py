"""Writes records to a subject of a stream.

With `positions`, a commit is one atomic batch: the records, and a message with the lane's position, which the server
accepts only directly after the last one of this owner.

    open ─► the existing position ─► a new one with this owner's name, after it ─► older owners are refused
    write ─► records + position, after the last one ─► everything is stored, or nothing

Without it, each message has an id, and the stream drops repeated messages within its duplicate window.

Above it: the delivery. Below it: one connection to the server.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from millstream import codes
from millstream.durable import step
from millstream.errors import DamageError
from millstream.limits import NATS_BATCH_MESSAGES_MAX, NATS_POSITION_REFRESH_S, NATS_UNANSWERED_MAX
from millstream.nats.connection import ApiError, BrokerConnection, answered
from millstream.nats.versions import VERSION_MIN, is_too_old
from millstream.record import Position
from millstream_connectors.jetstream.settings import JetStreamSink
from millstream_connectors.nats.client import NO_MESSAGE, PASSING, linked, looking, translated
from millstream_connectors.nats.messages import Put, convert
from millstream_connectors.shared.failing import on_failure
from millstream_connectors.shared.faults import Fault, check_fit
from millstream_connectors.shared.first_try import first_try
from millstream_connectors.shared.kept import (
    ConvertedRecords,
    KeptLane,
    TargetPosition,
    check_kept,
    fenced,
    parse_kept,
)
from millstream_writer.connector import SinkOwner
from millstream_writer.sink import SinkFailure, SinkFrame, SinkLane, UnkeptLane, WriteResult

GUARD = "Nats-Expected-Last-Subject-Sequence"
BATCH_ID, BATCH_SEQUENCE, BATCH_COMMIT = "Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit"
ROLLUP = {"Nats-Rollup": "sub"}
WRONG_LAST_SEQUENCE = (10071, 10164)
REFUSED = "the stream refuses it"
_NANOSECONDS = 1_000_000_000

_log = logging.getLogger(__name__)


class TargetStream(NamedTuple):
    """The stream that a sink writes to."""

    stream: str
    bytes_max: int
    """Maximum bytes of a message with its headers."""
    rolls_up: bool
    """Whether a position may replace the previous one."""


class _Target:
    """The connection and the stream, found when they are first needed."""

    def __init__(self, settings: JetStreamSink, owner: SinkOwner, life: AsyncExitStack) -> None:
        self.settings = settings
        self.owner = owner
        self._life = life
        self._connection: BrokerConnection | None = None
        self._found: TargetStream | None = None

    @property
    def found(self) -> TargetStream:
        assert self._found is not None, "it is used only in a session"
        return self._found

    @asynccontextmanager
    async def reached(self) -> AsyncIterator[BrokerConnection]:
        """The connection, after the stream was checked on it. Converts errors to Millstream errors."""
        settings, owner = self.settings, self.owner
        if self._connection is None:
            linking = linked(settings, owner.base_dir, owner.where, f"millstream {owner.pipeline}/{owner.name}")
            self._connection = await self._life.enter_async_context(linking)
        connection = self._connection
        with translated(connection, owner.where):
            async with asyncio.timeout(settings.timeout_s):
                await connection.connected()
            if self._found is None:
                found = await find_target(connection, settings)
                if isinstance(found, Fault):
                    check_fit(owner.where, [found])
                else:
                    self._found = found
            yield connection


class JetStreamKeptLane(KeptLane[Put]):
    """A lane whose position is in the stream."""

    def __init__(self, target: _Target) -> None:
        super().__init__(target.owner, NATS_BATCH_MESSAGES_MAX - 1)
        self._target = target
        owner = target.owner
        self._subject = f"{target.settings.positions}.{_token(owner.pipeline)}.{_token(owner.name)}"
        self._token = ""
        self._last = -1
        """Sequence of the last position of this owner; negative if it is unknown whether it is still the newest."""
        self._written_s = 0.0
        """When it was written."""

    async def tick(self) -> None:
        await super().tick()
        if self._last >= 0 and self._now_s() >= self._written_s + NATS_POSITION_REFRESH_S:
            async with self._session():
                await self._commit((), self._durable, "")

    def _convert(self, item: SinkFrame) -> ConvertedRecords[Put]:
        return convert(item, self._target.found.bytes_max, None)

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[BrokerConnection]:
        """Takes the lane over. After a failure, it is taken over again, which resolves the outcome of the last
        batch."""
        async with self._target.reached() as connection:
            with on_failure(self._forget_last):
                if self._last < 0:
                    await self._take_over(connection)
                yield connection

    def _forget_last(self) -> None:
        self._last = -1

    async def _commit(self, made: Sequence[Put], end: Position, frame: str) -> None:
        """Publish records and the position after them as one atomic batch."""
        async with self._target.reached() as connection:
            subject = self._target.settings.subject
            messages = [(subject, put.data, put.headers) for put in made]
            try:
                with step("jetstream_sink.commit", self._owner.lane.vertex):
                    self._last = await self._send(connection, messages, end, frame)
            except ApiError as error:
                if error.code not in WRONG_LAST_SEQUENCE:
                    raise
                kept, _ = await self._kept(connection)
                raise (self._lost() if kept is None else fenced(self._owner, subject)) from error
            self._written_s = self._now_s()

    async def _send(
        self,
        connection: BrokerConnection,
        messages: Sequence[tuple[str, bytes, dict[str, str]]],
        end: Position,
        frame: str,
    ) -> int:
        """Publish these messages and the position after them. Returns the sequence of the position."""
        owner = self._owner
        body = {"run": owner.ledger_id, "epoch": owner.epoch, "owner": self._token, "at": end, "frame": frame}
        headers = {GUARD: str(self._last), **(ROLLUP if self._target.found.rolls_up else {})}
        batch, count = uuid4().hex, len(messages) + 1
        for number, (subject, data, own) in enumerate(messages, 1):
            await connection.publish(subject, data, {**own, BATCH_ID: batch, BATCH_SEQUENCE: str(number)})
        if messages:
            headers |= {BATCH_ID: batch, BATCH_SEQUENCE: str(count), BATCH_COMMIT: "1"}
        answer = await connection.send_request(self._subject, json.dumps(body).encode(), headers)
        return _sequence((await connection.answer_of(answer, self._target.settings.timeout_s)).data)

    async def _kept(self, connection: BrokerConnection) -> tuple[TargetPosition | None, int]:
        """The lane's state in the stream, and its sequence."""
        try:
            answer = await connection.api(
                f"STREAM.MSG.GET.{self._target.found.stream}", {"last_by_subj": self._subject}
            )
        except ApiError as error:
            if error.code != NO_MESSAGE:
                raise
            return None, 0
        message = answer["message"]
        try:
            kept = parse_kept(base64.b64decode(message["data"]))
        except (ValueError, KeyError) as error:
            raise DamageError(
                codes.SINK_AHEAD,
                f"{self._owner.where}: the message {message['seq']} of {self._subject} is not a position; another "
                f"program writes to that subject. Name another subject in `positions`, or {self._by_hand()}",
            ) from error
        return kept, int(message["seq"])

    async def _take_over(self, connection: BrokerConnection) -> None:
        """Fence every earlier owner, and read the position in the target."""
        owner, subject = self._owner, self._target.settings.subject
        self._token = f"{owner.identity}.{uuid4().hex}"
        while True:
            kept, sequence = await self._kept(connection)
            if kept is None and not owner.fallback and self._durable > Position(0):
                raise self._lost()
            if kept is not None:
                await check_kept(owner, kept, subject, self._by_hand(), ours=kept.owner.startswith(owner.identity))
            reached = owner.start if kept is None else kept.position
            self._last = sequence
            try:
                with step("jetstream_sink.take_over", owner.lane.vertex):
                    self._last = await self._send(connection, (), reached, "" if kept is None else kept.frame)
            except ApiError as error:
                if error.code in WRONG_LAST_SEQUENCE:
                    # The previous owner has written since the state was read.
                    continue
                raise
            break
        self._written_s = self._now_s()
        self._durable = max(self._durable, reached)

    def _lost(self) -> DamageError:
        return DamageError(
            codes.TARGET_POSITION_LOST,
            f"{self._owner.where}: the lane has written to {self._target.settings.subject} up to sequence "
            f"{self._durable.sequence}, but the message of {self._subject} that records this is missing: the server "
            "lost it, or a limit of the stream or a purge removed it. Nothing was written now. See which records "
            f"are there; {self._by_hand()}",
        )

    def _by_hand(self) -> str:
        """Instructions for the user to confirm that the lane's mark is right."""
        body = {"run": self._owner.ledger_id, "epoch": 0, "owner": "", "at": self._owner.start, "frame": ""}
        return f"to let the lane continue after its mark: `nats pub {self._subject} '{json.dumps(body)}'`"

    def _now_s(self) -> float:
        return self._owner.clock.monotonic_s()


class JetStreamIdLane(UnkeptLane):
    """A lane whose messages have ids."""

    def __init__(self, target: _Target) -> None:
        self._target = target

    async def open(self) -> None:
        """Connect, and check the stream."""
        async with self._target.reached():
            pass

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        failures: list[list[SinkFailure]] = []
        async with self._target.reached() as connection:
            for item in frames:
                converted = convert(item, self._target.found.bytes_max, self._target.owner.ledger_id)
                failures.append([*converted.failures, *await self._publish(connection, converted)])
        return WriteResult(failures if any(failures) else ())

    async def _publish(self, connection: BrokerConnection, converted: ConvertedRecords[Put]) -> list[SinkFailure]:
        """Publish all messages, in order. Returns those that the stream refuses."""
        settings = self._target.settings
        refused: list[SinkFailure] = []
        for start in range(0, len(converted.made), NATS_UNANSWERED_MAX):
            part = slice(start, start + NATS_UNANSWERED_MAX)
            answers = []
            try:
                for put in converted.made[part]:
                    answer = await connection.send_request(settings.subject, put.data, put.headers)
                    answers.append(answer)
                for row, answer in zip(converted.rows[part], answers, strict=True):
                    message = await connection.answer_of(answer, settings.timeout_s)
                    try:
                        _sequence(message.data)
                    except ApiError as error:
                        if error.code in PASSING:
                            raise
                        refused.append(SinkFailure(row, REFUSED, retryable=False, detail=str(error)))
            finally:
                for answer in answers:
                    answer.cancel()
        return refused


async def find_target(connection: BrokerConnection, settings: JetStreamSink) -> TargetStream | Fault:
    """The stream that includes the subject. Raises what requests raise."""
    streams = await _streams_of(connection, settings.subject)
    if len(streams) != 1:
        found = f"several streams include the subject {settings.subject}: {', '.join(streams)}"
        what = found if streams else f"no stream includes the subject {settings.subject}"
        return Fault(("subject",), what, "a subject that one stream includes")
    (stream,) = streams
    config = (await connection.api(f"STREAM.INFO.{stream}"))["config"]
    if settings.positions is not None:
        if is_too_old(connection.server):
            what = f"the server is NATS {connection.server.get('version')}, which may store only a part of a batch"
            return Fault(("positions",), what, f"NATS {'.'.join(map(str, VERSION_MIN))} or later, or no `positions`")
        if await _streams_of(connection, f"{settings.positions}.position") != streams:
            what = f"the stream {stream} does not include {settings.positions}.>"
            return Fault(("positions",), what, f"that subject among those of {stream}")
        if not config.get("allow_atomic"):
            return Fault(
                ("positions",),
                f"the stream {stream} does not accept atomic batches",
                "a stream with `allow_atomic: true`",
            )
        if 0 < config.get("max_age", 0) < 2 * NATS_POSITION_REFRESH_S * _NANOSECONDS:
            hours = 2 * NATS_POSITION_REFRESH_S / 3600
            what = f"the stream {stream} deletes positions after {config['max_age'] / _NANOSECONDS:.0f} s (max_age)"
            return Fault(("positions",), what, f"a stream that keeps messages for at least {hours:g} hours")
        if config.get("retention", "limits") != "limits":
            what = f"the stream {stream} removes positions once a consumer has acknowledged them"
            return Fault(("positions",), what, "a stream with `retention: limits`")
    largest = [int(connection.server.get("max_payload", 0)), int(config.get("max_msg_size", -1))]
    return TargetStream(stream, min(size for size in largest if size > 0), bool(config.get("allow_rollup_hdrs")))


async def _streams_of(connection: BrokerConnection, subject: str) -> list[str]:
    return list((await connection.api("STREAM.NAMES", {"subject": subject})).get("streams") or ())


async def look(settings: JetStreamSink, base_dir: Path) -> list[Fault]:
    """What on the server does not fit the settings. Raises Millstream errors if it cannot be reached."""
    async with looking(settings, base_dir) as connection:
        found = await find_target(connection, settings)
    return [found] if isinstance(found, Fault) else []


def _sequence(receipt: bytes) -> int:
    """The sequence of a stored message. Raises `ApiError`."""
    sequence = answered(receipt).get("seq")
    if not isinstance(sequence, int):
        raise ApiError(0, "the answer has no sequence")
    return sequence


def _token(text: str) -> str:
    """A name as one token of a subject."""
    return "".join(char if char.isalnum() or char in "-_" else f"={ord(char):x}=" for char in text)


@asynccontextmanager
async def open_jetstream_sink(settings: JetStreamSink, owner: SinkOwner) -> AsyncIterator[SinkLane]:
    """Opens the lane's target and fences every former owner. If the server is away, the first write waits for it."""
    async with AsyncExitStack() as life:
        target = _Target(settings, owner, life)
        lane = JetStreamIdLane(target) if settings.positions is None else JetStreamKeptLane(target)
        await first_try(lane.open(), _log)
        yield lane
