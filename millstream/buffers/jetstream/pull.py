"""Reads a buffer from JetStream: in order, without a gap, across restarts of the broker.

Above it: `ledger.py`. Below it: the connection. It owns one ephemeral consumer at a time, which acknowledges nothing:
the reader's mark is the acknowledgement.

    pull 1  ├──frames──┤
    pull 2        ├──frames──┤        one more request, so the server does not wait for the client,
    pull 3              ├──   ...     and never more than the limits, so memory is bounded however slow the reader is

While no frames arrive, there is only one pull, because the server sends heartbeats for each.

A frame that is stored apart arrives as a reference. The frames of the next references are requested at once, up to the
same limit of bytes.

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
from dataclasses import dataclass
from uuid import uuid4

from millstream import codes, limits
from millstream.buffers.jetstream.references import Reference, read_apart, reference_in, request_apart
from millstream.buffers.jetstream.requests import NO_MESSAGE, NO_STREAM, Get, message_headers
from millstream.buffers.jetstream.sending import Answer
from millstream.buffers.jetstream.trims import Seen
from millstream.errors import DamageError, RetryLaterError
from millstream.ledger.protocol import LedgerStatistics, StoredFrame, Witness
from millstream.ledger.witness import REPAIR, ReadCheck, Unchecked, witness_of
from millstream.nats.client import Msg, nats_errors
from millstream.nats.connection import AnswerLostError, ApiError, BrokerConnection
from millstream.nats.deliveries import origin_of
from millstream.pauses import Pauses, until_next

_log = logging.getLogger(__name__)

_NANOSECONDS = 1_000_000_000
_PULL_EXPIRES_S = 30
"""The longest time that a pull waits for frames."""
_HEARTBEAT_S = 1
_PULL_EXPIRES_MIN_S = 3 * _HEARTBEAT_S
"""The server refuses heartbeats that are longer than half of this."""
_SILENCE_MAX_S = 3.0
"""Three missed heartbeats."""
_READING_S = 0.1
"""What a process gets to read what has come, before it takes the server for silent."""
_INACTIVE_S = 120
"""The server removes a consumer without requests for this long. A reader that continues after that creates a new
one."""
_RETRY_FIRST_S = 0.02
_RETRY_LAST_S = 1.0

PULLS = 4
"""Pulls in flight, if there is space for that many."""
PULL_FRAMES = limits.FRAMES_IN_FLIGHT_MAX // PULLS
"""Frames in a pull, at most. Large frames are pulled in smaller numbers."""
PULL_BYTES = limits.MESSAGE_BYTES_MAX + 64 * limits.KIB
"""The server's limit for a pull, in case its frames are larger than earlier ones: little more than one message."""


def _pull_request(frames: int) -> bytes:
    """A pull that expires at the same moment as those of all idle readers. So these begin the next ones together, and
    the server's heartbeats come together, too: an idle process wakes up once for all of them."""
    expires_s = until_next(_PULL_EXPIRES_S)
    if expires_s < _PULL_EXPIRES_MIN_S:
        expires_s += _PULL_EXPIRES_S
    return json.dumps(
        {
            "batch": frames,
            "max_bytes": PULL_BYTES,
            "expires": int(expires_s * _NANOSECONDS),
            "idle_heartbeat": _HEARTBEAT_S * _NANOSECONDS,
        }
    ).encode()


# A pull that cannot hold the largest message, with its subject, would never deliver it.
assert PULL_BYTES >= limits.MESSAGE_BYTES_MAX + 64 * limits.KIB

_STATUS_HEARTBEAT = "100"


@dataclass(slots=True)
class _Arrival:
    sequence: int
    witness: Witness | None
    """The name of the frame."""
    size: int
    data: bytes
    reference: Reference | None = None
    """Where the frame is, if it is stored apart."""
    coming: Answer | None = None
    """The answer to the request for that frame."""


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
        seen: Seen,
        get: Get,
    ) -> None:
        """`check`: compares the frames with what was read before; see `Ledger.read`. `seen`: notes the marks and
        references that arrive with frames. `get`: one message from the stream's leader."""
        self._connection = connection
        self._get = get
        self._check = check
        self._seen = seen
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
        """Size of a frame: that of the largest one, falling to the average of those that follow."""
        self._arrived: deque[_Arrival] = deque()
        """Frames that have arrived, or references to them, and that were not yet returned."""
        self._arrived_bytes = 0
        self._not_requested: deque[_Arrival] = deque()
        """Those of them that are references to frames which were not requested yet."""
        self._not_requested_bytes = 0
        self._something = asyncio.Event()
        self._restart: str | None = "start"
        """Why a new consumer is needed; None if the current one works."""
        self._heard_s = 0.0
        self._waits = False
        """Whether a task waits for the next frame."""
        self._watchdog: asyncio.TimerHandle | None = None
        """One timer for many frames: it looks at `_heard_s` when it is due."""

    @property
    def held_bytes(self) -> int:
        """Bytes that have arrived, or are requested from where they are stored apart, and were not yet returned."""
        return self._arrived_bytes - self._not_requested_bytes

    async def open(self) -> None:
        self._subscription = await self._connection.listen(f"{self._inbox}.*", self._on_message)
        self._deaf = self._connection.on_loss(self._something.set)
        await self._new_consumer()

    async def close(self) -> None:
        self._deaf()
        self._drop()
        if self._watchdog is not None:
            self._watchdog.cancel()
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
                if await self._has_come(self._arrived[0]):
                    return await self._hand_out()
                continue
            self._something.clear()
            await self._ask()
            self._waits = True
            if self._watchdog is None:
                self._set_watchdog()
            try:
                await self._something.wait()
            finally:
                self._waits = False
            if self._is_silent() and not self._arrived:
                self._needs_restart("the server does not answer")

    def _is_silent(self) -> bool:
        """Whether the server has been silent for too long."""
        return self._now_s() >= self._heard_s + _SILENCE_MAX_S

    def _set_watchdog(self) -> None:
        self._watchdog = asyncio.get_running_loop().call_at(self._heard_s + _SILENCE_MAX_S, self._on_watchdog)

    def _on_watchdog(self) -> None:
        """Ends the wait if the server has been silent for too long; otherwise, looks again when that may be so."""
        self._watchdog = None
        if not self._waits:
            return
        if self._is_silent():
            # A process that stood still has yet to read what has come meanwhile.
            self._watchdog = asyncio.get_running_loop().call_later(_READING_S, self._on_silence)
        else:
            self._set_watchdog()

    def _on_silence(self) -> None:
        self._watchdog = None
        self._something.set()

    async def _hand_out(self) -> StoredFrame:
        # Before a frame is taken out, so that a caller that is cancelled while this waits loses nothing.
        await self._ask()
        await self._request_more()
        first = self._arrived.popleft()
        self._arrived_bytes -= first.size
        self._check.next(first.witness, first.sequence)
        self._last = first.sequence
        self._statistics.frames_read += 1
        self._statistics.bytes_read += len(first.data)
        return StoredFrame(first.sequence, first.data, first.witness)

    async def _has_come(self, first: _Arrival) -> bool:
        """Wait for a frame that is stored apart. False if a new consumer is needed."""
        if first.reference is None or first.data:
            return True
        await self._request_more()
        if first.coming is None:
            return False
        try:
            data = await read_apart(first.coming, first.reference, self._get)
            trimmed = not data and await self._get({"seq": first.sequence}) is None
        except (AnswerLostError, RetryLaterError) as error:
            self._needs_restart(str(error))
            return False
        if trimmed:
            # What follows it is delivered by a new consumer, and nothing if the answer was wrong.
            self._needs_restart(f"frame {first.sequence} was trimmed")
        if trimmed or self._losses != self._connection.losses:
            return False
        first.data, first.reference = data, None
        return True

    async def _request_more(self) -> None:
        """Request the next frames that are stored apart, as far as there is space for them, and always the one that is
        handed out next."""
        while self._not_requested:
            arrival = self._not_requested[0]
            is_next = arrival is self._arrived[0]
            if not is_next and self.held_bytes + arrival.size > limits.READ_AHEAD_BYTES_MAX:
                return
            assert arrival.reference is not None
            try:
                arrival.coming = await request_apart(self._connection, self._stream, arrival.reference)
            except AnswerLostError as error:
                self._needs_restart(str(error))
                return
            # Only now, in case this is cancelled.
            self._not_requested.popleft()
            self._not_requested_bytes -= arrival.size

    def _drop(self) -> None:
        """Forget what has arrived."""
        for arrival in self._arrived:
            if arrival.coming is not None:
                arrival.coming.cancel()
        self._arrived.clear()
        self._not_requested.clear()
        self._arrived_bytes = self._not_requested_bytes = 0

    async def _ask(self) -> None:
        """Request more frames while there is space for a whole pull."""
        while self._restart is None:
            pull = self._pull_frames()
            frames = len(self._arrived) + self._owed + pull
            if frames > (limits.FRAMES_IN_FLIGHT_MAX if self._busy else pull):
                return
            size = self._arrived_bytes + (self._owed + pull) * self._frame_bytes
            # If no frames are here or requested, one pull is always allowed: the server limits it to PULL_BYTES.
            if size > limits.READ_AHEAD_BYTES_MAX and (self._owed or self._arrived):
                return
            if not self._owed:
                # The server had no request until now, so its silence meant nothing.
                self._heard_s = self._now_s()
            self._owed += pull
            try:
                await self._connection.publish(
                    f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}",
                    _pull_request(pull),
                    reply=f"{self._inbox}.{self._round}",
                )
            except AnswerLostError as error:
                self._needs_restart(str(error))

    def _pull_frames(self) -> int:
        """Frames of the next pull: as many as PULLS pulls have space for, by the size of earlier frames."""
        if not self._frame_bytes:
            return PULL_FRAMES
        return max(1, min(PULL_FRAMES, int(limits.READ_AHEAD_BYTES_MAX / PULLS / self._frame_bytes)))

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
        headers = message.headers or {}
        reference = reference_in(headers)
        size = len(message.data) if reference is None else reference.size
        # Larger frames count at once: the next pulls may bring as many of them as they ask for.
        self._frame_bytes = max(size, self._frame_bytes + (size - self._frame_bytes) / PULL_FRAMES)
        self._seen.note(message.subject, sequence, headers, self._losses)
        arrival = _Arrival(sequence, witness_of(sequence, headers), size, message.data, reference)
        self._arrived.append(arrival)
        self._arrived_bytes += size
        if reference is not None:
            self._not_requested.append(arrival)
            self._not_requested_bytes += size
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
            self._drop()
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
