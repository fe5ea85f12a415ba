"""Reads a buffer from JetStream: in order, without a gap, across restarts of the broker.

Above it: `ledger.py`. Below it: the connection. It owns one ephemeral consumer at a time, which acknowledges nothing:
the reader's mark is the acknowledgement.

    pull 1  ├──frames──┤
    pull 2        ├──frames──┤        always one more request, so the server never waits for the client,
    pull 3              ├──   ...     and never more than the limits, so memory is bounded however slow the reader is

While no frames arrive, there is only one pull, because the server sends heartbeats for each.

The reader creates a new consumer, which starts after the last frame returned, if the connection was lost, if the server
reports that the consumer or its leader is gone, if heartbeats are missing, or if a delivery number is missing.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple
from uuid import uuid4

from millstream import codes, limits
from millstream.buffers.jetstream.requests import NO_MESSAGE, NO_STREAM, message_headers
from millstream.errors import DamageError
from millstream.ledger.protocol import LedgerStatistics, StoredFrame, Witness
from millstream.ledger.witness import REPAIR, ReadCheck, Unchecked, witness_of
from millstream.nats.client import Msg, nats_errors
from millstream.nats.connection import AnswerLostError, ApiError, BrokerConnection
from millstream.nats.deliveries import origin_of
from millstream.pauses import Pauses

_log = logging.getLogger(__name__)

_NANOSECONDS = 1_000_000_000
_PULL_EXPIRES_S = 30
_HEARTBEAT_S = 1
_SILENCE_MAX_S = 3.0
"""Three missed heartbeats."""
_INACTIVE_S = 120
"""The server removes a consumer without requests for this long. A reader that continues after that creates a new
one."""
_RETRY_FIRST_S = 0.02
_RETRY_LAST_S = 1.0

PULLS = 4
"""Pulls in flight, if there is space for that many."""
PULL_FRAMES = limits.FRAMES_IN_FLIGHT_MAX // PULLS
PULL_BYTES = limits.BYTES_IN_FLIGHT_MAX // PULLS
_PULL_REQUEST = json.dumps(
    {
        "batch": PULL_FRAMES,
        "max_bytes": PULL_BYTES,
        "expires": _PULL_EXPIRES_S * _NANOSECONDS,
        "idle_heartbeat": _HEARTBEAT_S * _NANOSECONDS,
    }
).encode()

# A pull that cannot hold the largest message would never deliver it.
assert PULL_BYTES >= 2 * limits.MESSAGE_BYTES_MAX

_STATUS_HEARTBEAT = "100"


class _Arrival(NamedTuple):
    sequence: int
    witness: Witness | None
    """The name of the frame."""
    data: bytes


class PullReader:
    """Frames of one subject after a sequence. An async iterator that never ends; for one task."""

    def __init__(
        self,
        connection: BrokerConnection,
        stream: str,
        subject: str,
        after: int,
        created: str,
        statistics: LedgerStatistics,
        check: ReadCheck | Unchecked,
    ) -> None:
        """`check`: compares the frames with what was read before; see `Ledger.read`."""
        self._connection = connection
        self._check = check
        self._stream = stream
        self._subject = subject
        self._last = after
        """Sequence of the last frame returned."""
        self._created = created
        """When the stream was created. A stream of the same name with another time is a different stream."""
        self._statistics = statistics
        self._inbox = connection.client.new_inbox()
        self._consumer = ""
        self._round = 0
        """Number of the consumer, to recognise messages of earlier consumers."""
        self._losses = -1
        self._delivered = 0
        self._owed = 0
        """Frames that were requested and have not arrived."""
        self._busy = False
        """Whether a frame has arrived since the last pull that expired."""
        self._frame_bytes = 0.0
        """Moving average of the size of a frame."""
        self._arrived: deque[_Arrival] = deque()
        """Frames that have arrived and were not yet returned."""
        self._arrived_bytes = 0
        self._something = asyncio.Event()
        self._restart: str | None = "start"
        """Why a new consumer is needed; None if the current one works."""
        self._heard_s = 0.0

    @property
    def held_bytes(self) -> int:
        """Bytes that have arrived and were not yet returned."""
        return self._arrived_bytes

    async def open(self) -> None:
        self._subscription = await self._connection.listen(f"{self._inbox}.*", self._on_message)
        self._deaf = self._connection.on_loss(self._something.set)
        await self._new_consumer()

    async def close(self) -> None:
        self._deaf()
        client = self._connection.client
        try:
            if not client.is_closed:
                await self._subscription.unsubscribe()
            if client.is_connected and self._consumer:
                # No task waits for the answer. Without this request, the server would remove the consumer later.
                await client.publish(f"$JS.API.CONSUMER.DELETE.{self._stream}.{self._consumer}", b"")
        except nats_errors.Error as error:
            _log.debug("consumer of %s not removed: %r", self._subject, error)

    def __aiter__(self) -> AsyncIterator[StoredFrame]:
        return self

    async def __anext__(self) -> StoredFrame:
        while True:
            if self._restart is not None or self._losses != self._connection.losses:
                await self._new_consumer()
            if self._arrived:
                return await self._hand_out()
            self._something.clear()
            await self._ask()
            try:
                async with asyncio.timeout_at(self._heard_s + _SILENCE_MAX_S):
                    await self._something.wait()
            except TimeoutError:
                if not self._arrived and self._now_s() >= self._heard_s + _SILENCE_MAX_S:
                    self._needs_restart("the server does not answer")

    async def _hand_out(self) -> StoredFrame:
        # Before a frame is taken out, so that a caller that is cancelled while this waits loses nothing.
        await self._ask()
        sequence, witness, data = self._arrived.popleft()
        self._arrived_bytes -= len(data)
        self._check.next(witness, sequence)
        self._last = sequence
        self._statistics.frames_read += 1
        self._statistics.bytes_read += len(data)
        return StoredFrame(sequence, data, witness)

    async def _ask(self) -> None:
        """Request more frames while there is space for a whole pull."""
        while self._restart is None:
            frames = len(self._arrived) + self._owed + PULL_FRAMES
            if frames > (limits.FRAMES_IN_FLIGHT_MAX if self._busy else PULL_FRAMES):
                return
            size = self._arrived_bytes + (self._owed + PULL_FRAMES) * self._frame_bytes
            # If no frames are here or requested, one pull is always allowed: the server limits it to PULL_BYTES.
            if size > limits.BYTES_IN_FLIGHT_MAX and (self._owed or self._arrived):
                return
            if not self._owed:
                # The server had no request until now, so its silence meant nothing.
                self._heard_s = self._now_s()
            self._owed += PULL_FRAMES
            try:
                await self._connection.publish(
                    f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}",
                    _PULL_REQUEST,
                    reply=f"{self._inbox}.{self._round}",
                )
            except AnswerLostError as error:
                self._needs_restart(str(error))

    def _on_message(self, message: Msg) -> None:
        # A frame has its own subject, and its reply subject names the consumer. A status arrives at our inbox.
        if not message.reply.startswith("$JS.ACK."):
            if message.subject == f"{self._inbox}.{self._round}":
                self._heard_s = self._now_s()
                self._on_status(message.headers or {})
            return
        consumer, sequence, delivered, *_ = origin_of(message.reply)
        if consumer != self._consumer or self._restart is not None:
            return
        self._heard_s = self._now_s()
        if delivered != self._delivered + 1:
            self._needs_restart(f"delivery {delivered} came after {self._delivered}")
            return
        self._delivered = delivered
        self._owed -= 1
        self._busy = True
        size = len(message.data)
        self._frame_bytes += (size - self._frame_bytes) / PULL_FRAMES
        witness = witness_of(sequence, message.headers or {})
        self._arrived.append(_Arrival(sequence, witness, message.data))
        self._arrived_bytes += size
        self._something.set()

    def _on_status(self, headers: dict[str, str]) -> None:
        status = headers.get("Status", "")
        description = headers.get("Description", "")
        if status == _STATUS_HEARTBEAT:
            last_delivered = int(headers.get("Nats-Last-Consumer", self._delivered))
            if last_delivered > self._delivered:
                self._needs_restart(
                    f"deliveries up to {last_delivered} were sent, but only those up to {self._delivered} arrived"
                )
            return
        not_sent = headers.get("Nats-Pending-Messages")
        if status not in ("408", "409") or not_sent is None:
            self._needs_restart(f"the server answered {status} {description}")
            return
        # A pull has expired, or has reached its limit of bytes.
        self._owed -= int(not_sent)
        if status == "408":
            self._busy = False
        self._something.set()

    def _needs_restart(self, reason: str) -> None:
        self._restart = reason
        self._something.set()

    async def _new_consumer(self) -> None:
        """Create a consumer that starts after the last frame returned; retries forever. Raises `DamageError` if the
        stream cannot have these frames."""
        pauses = Pauses(_RETRY_FIRST_S, _RETRY_LAST_S)
        if self._restart != "start":
            self._statistics.read_restarts += 1
            _log.info("reading %s continues after %d (%s)", self._subject, self._last, self._restart or "reconnected")
        while True:
            await self._connection.connected()
            self._round += 1
            self._losses = self._connection.losses
            self._delivered = 0
            self._owed = 0
            self._arrived.clear()
            self._arrived_bytes = 0
            try:
                await self._check_stream()
                await self._create_consumer()
            except (AnswerLostError, ApiError) as error:
                _log.debug("no consumer for %s yet: %r", self._subject, error)
                await pauses.wait()
                continue
            self._restart = None
            self._heard_s = self._now_s()
            return

    async def _check_stream(self) -> None:
        try:
            info = await self._connection.api(f"STREAM.INFO.{self._stream}")
        except ApiError as error:
            if error.code != NO_STREAM:
                raise
            raise DamageError(
                codes.LEDGER_GONE,
                f"{self._subject}: the stream {self._stream} no longer exists; it was read up to sequence "
                f"{self._last}. {REPAIR}",
            ) from error
        state = info["state"]
        if info["created"] != self._created or state["last_seq"] < self._last:
            raise DamageError(
                codes.LEDGER_CUT,
                f"{self._subject} was read up to sequence {self._last}, but the stream {self._stream}, created at "
                f"{info['created']}, holds sequences {state['first_seq']} to {state['last_seq']}: it is not the "
                f"stream that was read, or it lost its latest data. {REPAIR}",
            )
        await self._check_witness()

    async def _check_witness(self) -> None:
        """Check that the last frame that was read still exists and was not replaced."""
        last = self._check.last
        if last is None:
            return
        try:
            answer = await self._connection.api(f"STREAM.MSG.GET.{self._stream}", {"seq": last.sequence})
        except ApiError as error:
            if error.code != NO_MESSAGE:
                raise
            self._check.stored(None)
        else:
            self._check.stored(witness_of(last.sequence, message_headers(answer["message"])))

    async def _create_consumer(self) -> None:
        name = f"r{uuid4().hex}"
        await self._connection.api(
            f"CONSUMER.CREATE.{self._stream}.{name}.{self._subject}",
            {
                "stream_name": self._stream,
                "config": {
                    "name": name,
                    "ack_policy": "none",
                    "deliver_policy": "by_start_sequence",
                    "opt_start_seq": self._last + 1,
                    "filter_subject": self._subject,
                    "mem_storage": True,
                    "num_replicas": 1,
                    "inactive_threshold": _INACTIVE_S * _NANOSECONDS,
                },
            },
        )
        self._consumer = name

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


@asynccontextmanager
async def opened(reader: PullReader) -> AsyncIterator[AsyncIterator[StoredFrame]]:
    """Opens the reader for the duration of the block."""
    try:
        await reader.open()
        yield reader
    finally:
        await reader.close()
