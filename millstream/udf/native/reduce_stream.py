"""One reduce stream over gRPC's synchronous API: sends and receives messages, and reports why the stream ended.

    offer() ─► outbox ─► gRPC's thread ══► function ══► receiving thread ─► inbox ─► take(), wait()

Above it: `reduce_client`. Below it: gRPC. Both boxes are bounded, so a slow side stops the other. The module handles
Hello and Welcome, but does not depend on groups. A process has one channel for each address. The channel is created at
first use, because Spark's workers are forked and gRPC must not be used before a fork.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from millstream import codes
from millstream.errors import RetryLaterError, UdfError
from millstream.udf.native.service import CHANNEL_OPTIONS, PROTOCOL_VERSION, SERVICE, fatal_error
from millstream.wire.reduce.v1 import engine_pb2
from millstream_udf.version import SDK_VERSION
from millstream_udf.wire.udf.v1 import udf_pb2

CONNECT_TIMEOUT_S = 60.0
"""How long to wait for a function that does not answer: it may be restarting."""
OUTBOX_MESSAGES_MAX = 2
"""Messages that wait until HTTP/2 accepts them."""
REOPEN_PAUSE_S = 0.1
"""Pause before the next attempt, if a stream ended before its Welcome."""
INBOX_MESSAGES_MAX = 16
"""Messages that wait for the caller."""

_OPTIONS = (
    *CHANNEL_OPTIONS,
    # An address may be on another machine, and the loss of that machine must be noticed. By default, servers allow a
    # keepalive ping every five minutes.
    ("grpc.keepalive_time_ms", 310_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)

_channels: dict[tuple[int, str], grpc.Channel] = {}
_channels_lock = threading.Lock()


class FunctionLostError(RetryLaterError):
    """The function went away, and the caller has to start again from the beginning."""

    def __init__(self, message: str) -> None:
        super().__init__(codes.FUNCTION_UNREACHABLE, message)


class Stream:
    """One stream. Made by `open_stream`. It belongs to one thread."""

    def __init__(self, first: int) -> None:
        self.first = first
        """Number of the first group on this stream."""
        self.code = grpc.StatusCode.OK
        self.details = ""
        """Why the stream ended, if it has ended."""
        self._outbox: deque[bytes] = deque()
        self._inbox: deque[bytes] = deque()
        self._half_closed = False
        self._over = False
        self._closed = False
        self._changed = threading.Condition()
        self._call: Any = None
        self._receiving: threading.Thread | None = None

    @property
    def ended(self) -> bool:
        """Whether no more messages will arrive, and all messages that arrived have been taken."""
        with self._changed:
            return self._over and not self._inbox

    @property
    def why(self) -> str:
        """Why the stream ended, in words."""
        if self.code is grpc.StatusCode.OK:
            return "the stream ended early"
        return f"{self.code.name}: {self.details}" if self.details else self.code.name

    def offer(self, data: bytes) -> bool:
        """Sends a message, and returns True, if there is space in the outbox."""
        with self._changed:
            if self._over or len(self._outbox) >= OUTBOX_MESSAGES_MAX:
                return False
            self._outbox.append(data)
            self._changed.notify_all()
            return True

    def half_close(self) -> None:
        """Half-closes the stream: no more messages will be sent."""
        with self._changed:
            self._half_closed = True
            self._changed.notify_all()

    def wait(self, *, for_room: bool = False) -> list[bytes]:
        """Returns the messages that have arrived. Waits for one, for the end or, with `for_room`, for space in the
        outbox."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._inbox or self._over or (for_room and len(self._outbox) < OUTBOX_MESSAGES_MAX)
            )
        return self.take()

    def take(self) -> list[bytes]:
        """Returns the messages that have arrived, without waiting."""
        with self._changed:
            taken = list(self._inbox)
            self._inbox.clear()
            self._changed.notify_all()
            return taken

    def close(self) -> None:
        """Ends the stream, and returns when its thread has ended."""
        with self._changed:
            self._closed = True
            self._over = True
            self._changed.notify_all()
        self._call.cancel()
        if self._receiving is not None:
            self._receiving.join()

    def start(self, method: Any, hello: bytes) -> None:
        """Opens the stream."""
        self._call = method(self._requests(hello), wait_for_ready=True)
        self._receiving = threading.Thread(target=self._receive, name="reduce answers", daemon=True)
        self._receiving.start()

    def _requests(self, hello: bytes) -> Iterator[bytes]:
        yield hello
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._outbox or self._half_closed or self._over)
                if self._over or not self._outbox:
                    return
                data = self._outbox.popleft()
                self._changed.notify_all()
            yield data

    def _receive(self) -> None:
        try:
            for data in self._call:
                with self._changed:
                    self._inbox.append(data)
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: len(self._inbox) < INBOX_MESSAGES_MAX or self._closed)
        except grpc.RpcError as error:
            status: Any = error
            self.code, self.details = status.code(), status.details() or ""
        finally:
            with self._changed:
                self._over = True
                self._changed.notify_all()


def open_stream(program: engine_pb2.UdfProgram, where: str, first: int) -> Stream:
    """Opens a stream to the function at an address, waiting for it up to CONNECT_TIMEOUT_S.

    `first`: number of the first group on the stream. Raises `FunctionLostError` if nothing answers, and `UdfError` if
    the program that answers is not a reduce function.
    """
    opening = udf_pb2.SealedReduceRequest(
        hello=udf_pb2.Hello(
            protocol_version=PROTOCOL_VERSION,
            kind=udf_pb2.KIND_REDUCE,
            pipeline=program.pipeline,
            vertex=program.vertex,
            lane=program.lane,
            replica=program.replica,
            config=program.config,
            version=SDK_VERSION,
        )
    ).SerializeToString()
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    while True:
        _wait_ready(program.address, where, deadline)
        stream = Stream(first)
        stream.start(_channel(program.address).stream_stream(f"{SERVICE}/Reduce"), opening)
        if _is_welcomed(stream, where):
            return stream
        # A server that drains does not accept new streams, until its successor has replaced it.
        stream.close()
        if (fatal := fatal_error(stream.code, stream.details, where)) is not None:
            raise fatal
        threading.Event().wait(REOPEN_PAUSE_S)
        if time.monotonic() > deadline:
            raise FunctionLostError(f"{where} has not opened a stream for {CONNECT_TIMEOUT_S:g} s ({stream.why})")


def _wait_ready(address: str, where: str, deadline: float) -> None:
    ready = grpc.channel_ready_future(_channel(address))
    try:
        ready.result(timeout=max(REOPEN_PAUSE_S, deadline - time.monotonic()))
    except grpc.FutureTimeoutError:
        raise FunctionLostError(
            f"{where} has not answered for {CONNECT_TIMEOUT_S:g} s. Is it running, and can every task reach it there?"
        ) from None
    finally:
        ready.cancel()


def _is_welcomed(stream: Stream, where: str) -> bool:
    for data in stream.wait():
        if not _is_welcome(data):
            stream.close()
            raise UdfError(
                codes.FUNCTION_PROTOCOL, f"{where} does not use the protocol: its first message is not a Welcome"
            )
        return True
    return False


def _is_welcome(data: bytes) -> bool:
    try:
        welcome = udf_pb2.SealedReduceResponse.FromString(data).welcome
    except DecodeError:
        return False
    return welcome.protocol_version >= PROTOCOL_VERSION


def _channel(address: str) -> grpc.Channel:
    with _channels_lock:
        place = (os.getpid(), address)
        channel = _channels.get(place)
        if channel is None:
            channel = _channels[place] = grpc.insecure_channel(address, options=_OPTIONS)
        return channel
