"""Serves a function to a pipeline over gRPC.

Above it: the command line and `serve`. Below it: gRPC, and the function in its thread. It moves messages and does not
decode frames.

    stream ──► read ──► [held: at most calls_max calls, HELD_BYTES_MAX bytes] ──► function ──► write
      gRPC: in the main thread, which passes each call to the function's thread
      socket: all of it in the function's thread

At SIGTERM it stops reading, answers the calls that it holds, ends its streams and exits with 0. Unread calls are sent
again to the next process.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import io
import os
import signal
import socket
import sys
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from contextvars import copy_context
from typing import Any, Protocol, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import Message

from millstream_udf import checking, debugging, freed_memory, imported, logs, output_prefix, settings, spans
from millstream_udf.answering import (
    MESSAGE_BYTES_MAX,
    answer_map,
    answer_sink,
    context_of,
    encode_map,
    map_call_of,
    sink_call_of,
)
from millstream_udf.calls_socket import PAIRING_TIMEOUT_S, CallsSockets, open_calls_sockets
from millstream_udf.cancellation import result_at_once, result_of
from millstream_udf.context import Context
from millstream_udf.conversation import Conversation
from millstream_udf.defining import define
from millstream_udf.definition import (
    CONCURRENCY_VARIABLE,
    DECORATORS,
    KIND_NAMES,
    MAP,
    REDUCE,
    SINK,
    SOURCE,
    SOURCE_TRANSFORM,
    Definition,
    with_concurrency,
)
from millstream_udf.failures import FAILURES, Gone, failure, summary
from millstream_udf.message_socket import MessageSocket
from millstream_udf.metrics import REGISTRY
from millstream_udf.metrics_stream import MetricsSender
from millstream_udf.position_sinks import PositionSink
from millstream_udf.reduce_stream import PartQueue, reduce_stream
from millstream_udf.reducing import ReduceFunction
from millstream_udf.sources import SourceLane
from millstream_udf.streaming import refuses_streaming, stream_map
from millstream_udf.thread import FunctionThread, loop_factory, open_thread
from millstream_udf.version import PROTOCOL_VERSION, SDK_VERSION
from millstream_udf.wire.udf.v1 import udf_pb2

SOCKET_VARIABLE = "MILLSTREAM_UDF_SOCKET"
"""Environment variable with the path of the unix socket to serve on."""
CALLS_MAX = 16
"""Calls held at a time for functions that process records sequentially, so that the next one is always there."""
CALLS_MAX_ASYNC = 1024
"""Calls held at a time for functions that process many records concurrently: calls may be as small as one record."""
HELD_BYTES_MAX = MESSAGE_BYTES_MAX
"""Bytes of calls held at a time; beyond it, no more are read."""

SWITCH_INTERVAL_S = 0.0005
"""Interval at which a computing reduce function lets the server read; with Python's default of 5 ms, the function would
wait for its input."""

_Servicer: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
_Put: TypeAlias = Callable[[Sequence[bytes]], Awaitable[None]]
"""Sends a message of these parts."""
_Answer: TypeAlias = Callable[[bytes, _Put], Coroutine[Any, Any, Sequence[bytes]]]
"""Creates the parts of the answer to a call, or of its last message: it sends the others before."""
_Run: TypeAlias = Callable[[Coroutine[Any, Any, Sequence[bytes]]], Awaitable[Sequence[bytes]]]
"""Runs such a coroutine in the function's thread."""
_FOR_EVER_S = 365 * 86400.0
_SERVICE = "millstream.udf.v1.Udf"
_OPTIONS = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
]


class Server:
    """The service of one function."""

    def __init__(
        self,
        definition: Definition,
        thread: FunctionThread,
        tasks: asyncio.TaskGroup,
        sockets: CallsSockets | None = None,
    ) -> None:
        self._definition = definition
        self._thread = thread
        self._tasks = tasks
        self._sockets = sockets
        self._streams: set[_Stoppable] = set()
        self._connections: set[_Stoppable] = set()
        self._draining = False
        self._metrics = MetricsSender(REGISTRY)

    def handlers(self) -> grpc.GenericRpcHandler:
        """Handlers of the service, for messages as bytes."""
        stream = grpc.stream_stream_rpc_method_handler
        return grpc.method_handlers_generic_handler(
            _SERVICE,
            {
                "Describe": grpc.unary_unary_rpc_method_handler(self._describe),
                "Map": stream(self._map),
                "Sink": stream(self._sink),
                "Source": stream(self._source),
                "Reduce": stream(self._reduce),
                "Metrics": grpc.unary_stream_rpc_method_handler(self._send_metrics),
            },
        )

    def drain(self) -> None:
        """Stop reading. Streams end when the calls that they hold are answered."""
        self._draining = True
        for stream in self._streams:
            stream.stop()
        for connection in self._connections:
            self._thread.call_soon(connection.stop)
        self._end_metrics()

    def _end_metrics(self) -> None:
        """End the streams of metrics if no call is left that may count anything."""
        if self._draining and not self._streams and not self._connections:
            self._metrics.end()

    @property
    def calls_max(self) -> int:
        """Maximum number of unanswered calls of a stream."""
        return min(max(CALLS_MAX, self._definition.concurrency), CALLS_MAX_ASYNC)

    async def _describe(self, request: bytes, context: _Servicer) -> bytes:
        return udf_pb2.DescribeResponse(
            protocol_version=PROTOCOL_VERSION,
            kinds=self._definition.kinds,
            language="python",
            sdk_version=SDK_VERSION,
            concurrency=self._definition.concurrency,
            keeps_positions=self._definition.keeps_positions,
        ).SerializeToString()

    async def _send_metrics(self, request: bytes, context: _Servicer) -> None:
        # The client knows by it that the stream is open: there may be no message for a long time.
        await context.send_initial_metadata(())
        async for message in self._metrics.messages():
            await context.write(message)

    async def _map(self, _: Any, context: _Servicer) -> None:
        hello = await self._hello(context, udf_pb2.SealedMapRequest, (MAP, SOURCE_TRANSFORM))
        lane = self._thread.function.lane()
        conversation = Conversation() if self._definition.is_lazy else None
        if conversation is not None and not hello.answers_reads:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"{self._definition.name} has lazy states, and the caller does not know these: install the Millstream "
                "of the same release as the SDK, or declare the states without lazy=True",
            )
        ask = None if conversation is None else conversation.ask

        async def answer(data: bytes, _: _Put) -> Sequence[bytes]:
            return encode_map(await answer_map(lane, hello, *map_call_of(data), ask=ask))

        async def stream(data: bytes, put: _Put) -> Sequence[bytes]:
            async def send(part: udf_pb2.SealedMapAnswer) -> None:
                await put(encode_map(part))

            return encode_map(await stream_map(lane, hello, *map_call_of(data), send))

        if hello.streaming and (refusal := refuses_streaming(self._definition)):
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, refusal)
        await self._serve_calls(
            context,
            hello,
            udf_pb2.MapResponse,
            stream if hello.streaming else answer,
            waits=hello.streaming or self._definition.waits,
            conversation=conversation,
        )

    async def _sink(self, _: Any, context: _Servicer) -> None:
        hello = await self._hello(context, udf_pb2.SealedSinkRequest, (SINK,))
        if self._definition.keeps_positions:
            await self._position_sink(context, hello)
            return
        lane = self._thread.function.lane()

        async def answer(data: bytes, _: _Put) -> Sequence[bytes]:
            answered = await answer_sink(lane, hello, *sink_call_of(data))
            return (udf_pb2.SinkResponse(answer=answered).SerializeToString(),)

        await self._serve_calls(context, hello, udf_pb2.SinkResponse, answer, waits=self._definition.waits)

    async def _position_sink(self, context: _Servicer, hello: udf_pb2.Hello) -> None:
        if not hello.keeps_positions:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"{self._definition.name} keeps positions, and the caller does not know that: start the pipeline "
                "again, if the function was changed, or install a newer Millstream",
            )
        await self._welcome(context, udf_pb2.SinkResponse)
        lane = PositionSink(self._definition, hello)
        with self._stream(context) as stream:
            try:
                while (data := await stream.receive()) is not None:
                    answer = await self._thread.run(lane.answer(udf_pb2.SealedSinkRequest.FromString(data)))
                    await context.write(answer.SerializeToString())
            finally:
                await self._thread.run(lane.close())

    async def _source(self, _: Any, context: _Servicer) -> None:
        hello = await self._hello(context, udf_pb2.SourceRequest, (SOURCE,))
        await self._welcome(context, udf_pb2.SourceResponse)
        with self._stream(context) as stream:
            data = await stream.receive()
            if data is None:
                return
            opening = udf_pb2.SourceRequest.FromString(data)
            if opening.WhichOneof("message") != "open":
                await context.abort(
                    grpc.StatusCode.INVALID_ARGUMENT, "the second message of a source stream must be SourceOpen"
                )
            lane, method = SourceLane(self._definition.target, context_of(hello), self._definition.encode), "open"
            try:
                await self._thread.run(lane.open(opening.open))
                method = "committed"
                while (data := await stream.receive()) is not None:
                    request = udf_pb2.SourceRequest.FromString(data)
                    if request.WhichOneof("message") == "read":
                        batch = await self._thread.run(lane.read(request.read))
                        await context.write(udf_pb2.SourceResponse(batch=batch).SerializeToString())
                    else:
                        await self._thread.run(lane.committed(request.committed))
            except FAILURES as error:
                # In open or committed, which have no answer: the stream ends with it, and is opened again.
                traceback.print_exception(failure(error))
                await context.abort(grpc.StatusCode.ABORTED, f"in {method}: {summary(error)}")
            finally:
                await self._thread.run(lane.close())

    async def _reduce(self, _: Any, context: _Servicer) -> None:
        hello = await self._hello(context, udf_pb2.SealedReduceRequest, (REDUCE,))
        await self._welcome(context, udf_pb2.ReduceResponse)
        parts = PartQueue(patient=not self._definition.is_async)
        loop = asyncio.get_running_loop()

        async def write(data: bytes) -> None:
            # Called in the function's thread; streams belong to this one.
            try:
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(context.write(data), loop))
            except grpc.aio.BaseError:
                # Unanswered calls are sent again on the next stream.
                raise Gone("the stream has ended") from None

        function = ReduceFunction(self._definition, self._thread.function.call)
        with self._stream(context) as stream:
            try:
                async with asyncio.TaskGroup() as tasks:
                    reading = tasks.create_task(_read_parts(stream, parts))
                    await self._thread.run(reduce_stream(function, parts, context_of(hello), write))
            finally:
                parts.end()
        if breach := reading.result():
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, breach)

    async def _hello(
        self, context: _Servicer, request: type[Message], kinds: tuple[udf_pb2.Kind.ValueType, ...]
    ) -> udf_pb2.Hello:
        """Read Hello. Aborts the stream, with advice, if the two sides do not match."""
        first: Any = await context.read()
        hello = getattr(request.FromString(first), "hello", None) if isinstance(first, bytes) else None
        if hello is None or not hello.protocol_version:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message of a stream must be Hello")
        assert isinstance(hello, udf_pb2.Hello)
        if hello.protocol_version != PROTOCOL_VERSION:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"this function uses version {PROTOCOL_VERSION} of the protocol, but the calling Millstream uses "
                f"version {hello.protocol_version}; install the SDK of the same release as Millstream",
            )
        if hello.kind not in kinds or hello.kind not in self._definition.kinds:
            served = " and ".join(KIND_NAMES[kind] for kind in self._definition.kinds)
            wanted = KIND_NAMES.get(hello.kind, str(hello.kind))
            await context.abort(
                grpc.StatusCode.UNIMPLEMENTED,
                f"{self._definition.name} serves {served}, but vertex {hello.vertex} of {hello.pipeline} needs "
                f"{wanted}. Decorate a function with {DECORATORS.get(hello.kind, 'another decorator')}",
            )
        await self._take_settings(context, hello)
        return hello

    async def _take_settings(self, context: _Servicer, hello: udf_pb2.Hello) -> None:
        """Take the settings that come with a stream: those of the newest one hold. Millstream has put them into the
        environment of a process that it has started."""
        settings.take(hello.config, dict(hello.secrets))
        if refusal := settings.refusal():
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, refusal)

    async def _welcome(
        self, context: _Servicer, response: Callable[..., Message], token: bytes = b"", *, streaming: bool = False
    ) -> None:
        keeps = self._definition.keeps_positions
        welcome = udf_pb2.Welcome(
            protocol_version=PROTOCOL_VERSION,
            calls_max=self.calls_max,
            calls_token=token,
            keeps_positions=keeps,
            checks=keeps and self._definition.checks,
            takes_arrow=self._definition.takes_arrow,
            states=[spec.message() for spec in self._definition.states],
            takes_tables=MAP in self._definition.kinds,
            tables=[spec.message() for spec in self._definition.tables.values()],
            streaming=streaming,
        )
        await context.write(response(welcome=welcome).SerializeToString())

    async def _serve_calls(
        self,
        context: _Servicer,
        hello: udf_pb2.Hello,
        response: Callable[..., Message],
        answer: _Answer,
        *,
        waits: bool,
        conversation: Conversation | None = None,
    ) -> None:
        """Welcome the client, and answer its calls over a socket if it offers one, or over the stream itself. `waits`:
        whether an answer waits for anything. `conversation`: for a function that reads while it has calls."""
        if self._sockets is None or not hello.calls_socket:
            await self._welcome(context, response, streaming=hello.streaming)
            run = self._thread.run if waits else self._thread.run_through
            with self._stream(context, conversation) as stream:
                if conversation is not None:
                    await conversation.run(stream, lambda data: answer(data, _put_nothing), run)
                else:
                    await _converse(stream, answer, run, self.calls_max)
            return
        with self._sockets.expecting() as (token, arriving):
            await self._welcome(context, response, token, streaming=hello.streaming)
            try:
                async with asyncio.timeout(PAIRING_TIMEOUT_S):
                    connection = await arriving
            except TimeoutError:
                await context.abort(
                    grpc.StatusCode.UNAVAILABLE, "the client did not connect to the socket for its calls"
                )
            refused = await self._serve_connection(connection, answer, conversation, waits=waits)
        if refused:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, refused)

    async def _serve_connection(
        self, connection: socket.socket, answer: _Answer, conversation: Conversation | None, *, waits: bool
    ) -> str:
        """Answer the calls of a connection until its end. Returns why it was ended here, if its client is the cause."""
        # While a function computes, its thread sends nothing, so a message is sent completely before it goes on.
        unsent = {} if self._definition.waits else {"unsent_bytes_max": 0}
        messages = MessageSocket(MESSAGE_BYTES_MAX, **unsent)

        async def serve() -> None:
            descriptor = connection.detach()
            if descriptor < 0:
                # The stream has ended meanwhile, and closed it.
                return
            await asyncio.get_running_loop().connect_accepted_socket(lambda: messages, socket.socket(fileno=descriptor))
            try:
                if conversation is not None:
                    await conversation.run(messages, lambda data: answer(data, _put_nothing), result_of)
                elif waits:
                    await _converse(messages, answer, result_of, self.calls_max)
                else:
                    await _answer_in_turn(messages, answer)
                if not messages.failed:
                    await messages.close()
            finally:
                messages.abort()

        stoppable = conversation or messages
        self._connections.add(stoppable)
        if self._draining:
            stoppable.stop()
        try:
            await self._thread.run(serve())
        finally:
            self._connections.discard(stoppable)
            self._end_metrics()
        return messages.failed

    @contextmanager
    def _stream(self, context: _Servicer, conversation: Conversation | None = None) -> Iterator[_GrpcStream]:
        stream = _GrpcStream(context, self._tasks, stopped=self._draining)
        stoppable = conversation or stream
        self._streams.add(stoppable)
        try:
            yield stream
        finally:
            self._streams.discard(stoppable)
            self._end_metrics()


async def _converse(stream: MessageSocket | _GrpcStream, answer: _Answer, run: _Run, calls_max: int) -> None:
    """Read calls, have each answered, and write the answers as they become ready."""
    held = _Held(calls_max)
    writing = asyncio.Lock()
    here = asyncio.get_running_loop()

    async def put(message: Sequence[bytes]) -> None:
        async with writing:
            await stream.send(*message)

    async def put_from_there(message: Sequence[bytes]) -> None:
        # Called where the function runs, which may be another thread.
        if asyncio.get_running_loop() is here:
            await put(message)
        else:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(put(message), here))

    async def handle(data: bytes) -> None:
        size = len(data)
        try:
            await put(await run(answer(data, put_from_there)))
        except (grpc.aio.BaseError, ConnectionError):
            # The stream is lost, so its reader ends, too. Unanswered calls are sent again on the next one.
            return
        finally:
            held.release(size)

    async with asyncio.TaskGroup() as calls:
        while (data := await stream.receive()) is not None:
            await held.acquire(len(data))
            calls.create_task(handle(data))


async def _answer_in_turn(socket: MessageSocket, answer: _Answer) -> None:
    """Answer calls one after another, with a function that never waits, in its own thread."""
    while (data := await socket.receive()) is not None:
        # Each call has a context of its own, so that context variables that the function sets do not reach the next.
        reply = copy_context().run(result_at_once, answer(data, _put_nothing))
        try:
            await socket.send(*reply)
        except ConnectionError:
            # Unanswered calls are sent again on the next stream.
            return
        if socket.has_more:
            # Other streams have their turns, and so does a request to stop.
            await asyncio.sleep(0)


async def _put_nothing(message: Sequence[bytes]) -> None:
    raise AssertionError("an answer that does not wait is one message")


async def _read_parts(stream: _GrpcStream, parts: PartQueue) -> str:
    """Read to the end of the stream. Returns the client's protocol error, if there is one."""
    try:
        while (data := await stream.receive()) is not None:
            await parts.put(data)
    except ValueError as error:
        return str(error)
    finally:
        parts.end()
    return ""


class _Stoppable(Protocol):
    """A stream that can be drained."""

    def stop(self) -> None:
        """Read no more calls."""


class _GrpcStream:
    """The messages of a gRPC stream, as those of a `MessageSocket`. It is read until its end, or until that is
    stopped."""

    def __init__(self, context: _Servicer, tasks: asyncio.TaskGroup, *, stopped: bool) -> None:
        self._context = context
        self._tasks = tasks
        self._stopped = stopped
        self._pending: asyncio.Task[bytes | None] | None = None

    async def receive(self) -> bytes | None:
        """The next message; None at the end."""
        if self._stopped:
            return None
        # A separate task, so that stopping it cannot be confused with the cancellation of the stream.
        self._pending = self._tasks.create_task(self._read())
        try:
            return await self._pending
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return None

    async def _read(self) -> bytes | None:
        try:
            data: Any = await self._context.read()
        except grpc.aio.BaseError:
            return None
        return data if isinstance(data, bytes) else None

    async def send(self, *parts: bytes) -> None:
        """Send the message of these parts. Raises `BaseError` if the stream is lost."""
        await self._context.write(b"".join(parts))

    def stop(self) -> None:
        self._stopped = True
        if self._pending is not None:
            self._pending.cancel()


class _Held:
    """Bounds the number and bytes of unanswered calls of a stream."""

    def __init__(self, calls_max: int) -> None:
        self._calls_left = calls_max
        self._bytes = 0
        self._freed = asyncio.Event()

    async def acquire(self, size: int) -> None:
        """Waits for space; a message larger than the whole space is admitted alone."""
        while self._calls_left == 0 or (self._bytes and self._bytes + size > HELD_BYTES_MAX):
            self._freed.clear()
            await self._freed.wait()
        self._calls_left -= 1
        self._bytes += size

    def release(self, size: int) -> None:
        self._calls_left += 1
        self._bytes -= size
        self._freed.set()


async def serve_until_stopped(definition: Definition, path: str) -> int:
    """Serve on a unix socket at `path` until SIGTERM or SIGINT. Returns the exit code."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    async with (
        open_thread(definition, _context()) as thread,
        asyncio.TaskGroup() as tasks,
        AsyncExitStack() as listening,
    ):
        # The modules and the objects from `setup` live as long as the process: repeated garbage collection of them
        # would delay calls by tens of milliseconds and find nothing.
        gc.collect()
        gc.freeze()
        sockets = await listening.enter_async_context(open_calls_sockets(path, tasks))
        server = Server(definition, thread, tasks, sockets)
        transport = grpc.aio.server(options=_OPTIONS)
        transport.add_generic_rpc_handlers((server.handlers(),))
        transport.add_insecure_port(f"unix:{path}")
        await transport.start()
        waiting = tasks.create_task(stopping.wait())
        ended = asyncio.wrap_future(thread.ended)
        await asyncio.wait((waiting, ended), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if ended.done():
            # The function ended the process (sys.exit): its current calls have no answer and are sent again.
            await transport.stop(None)
            return _exit_code(ended.exception())
        server.drain()
        # No time limit here: the sender of the signal decides how long to wait for the answers.
        await transport.stop(_FOR_EVER_S)
    return 0


def serve(target: Any) -> None:
    """Serve a function from its own script: `if __name__ == "__main__": udf.serve(function)`. Ends the process."""
    name = getattr(target, "__name__", type(target).__name__)
    try:
        definition = define(target, name)
    except TypeError as error:
        if checking.asked():
            checking.report_unusable(error)
        sys.exit(f"millstream_udf: {error}")
    debugging.wait_for_debugger()
    run(definition)


def run(definition: Definition) -> None:
    """Serve `definition` on the socket that the environment names. Ends the process."""
    if checking.asked():
        checking.check(definition)
    path = os.environ.get(SOCKET_VARIABLE)
    if not path:
        print(
            f"millstream_udf: {SOCKET_VARIABLE} is not set. Millstream starts this program and sets it; to try a "
            "function without a pipeline, use millstream_udf.testing.run",
            file=sys.stderr,
        )
        sys.exit(2)
    try:
        definition = with_concurrency(definition, os.environ.get(CONCURRENCY_VARIABLE))
    except TypeError as error:
        print(f"millstream_udf: {error}", file=sys.stderr)
        sys.exit(2)
    settings.take_environment()
    if refusal := settings.refusal():
        print(f"millstream_udf: {refusal}", file=sys.stderr)
        sys.exit(2)
    # A crash, and a call that takes too long, show where the function is.
    faulthandler.enable()
    # A function's output is read line by line, and must not be lost when the process is killed.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    # Before lines get labels: log lines have the group as a field.
    logs.configure()
    if REDUCE in definition.kinds:
        output_prefix.install()
        # A reduce function computes for a long time, and this process's other thread has to read parts meanwhile.
        sys.setswitchinterval(SWITCH_INTERVAL_S)
    freed_memory.keep()
    imported.keep_listed()
    debugging.explain_breakpoints()
    context = _context()
    spanning = spans.exported(context.pipeline, context.vertex, context.replica)
    with spanning, asyncio.Runner(loop_factory=loop_factory()) as runner:
        code = runner.run(serve_until_stopped(definition, path))
    # The user's running threads must not delay the end of a process that has answered everything.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _context() -> Context:
    """The context of every call."""
    return Context(
        pipeline=os.environ.get("MILLSTREAM_PIPELINE", ""),
        vertex=os.environ.get("MILLSTREAM_VERTEX", ""),
        replica=int(os.environ.get("MILLSTREAM_REPLICA", "0")),
        version=os.environ.get("MILLSTREAM_VERSION", ""),
    )


def _exit_code(error: BaseException | None) -> int:
    match error:
        case SystemExit(code=None):
            return 0
        case SystemExit(code=int(code)):
            return code
    if error is not None:
        traceback.print_exception(error)
    return 1
