"""A stand-in for BigQuery's Storage API, over the protos that Google publishes: no emulator of it is available.

It checks what the service documents: offsets, states of streams, the schema, the size of a request; and it counts the
rows of a stream. It runs in a thread of its own, keeps its data across `stop` and `start`, and has faults as its API.
What only it has shown counts as emulated.

Above it: tests. Below it: gRPC.
"""

from __future__ import annotations

import asyncio
import io
import json
import re
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import fastavro
import grpc
import grpc.aio
from google.cloud.bigquery_storage_v1 import types
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from millstream.ports import free_ports
from millstream_connectors.bigquery.sink.positions import COLUMNS

REQUEST_BYTES_MAX = 10 * 1000 * 1000
_HALT_TIMEOUT_S = 60.0
_CONDITION = re.compile(r"(\w+) = '((?:[^'\\]|\\.)*)'")
_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0))
_Mode = types.TableFieldSchema.Mode
_Type = types.TableFieldSchema.Type
_AVRO = {"STRING": "string", "INT64": "long"}


@dataclass
class Table:
    schema: Any
    rows: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Stream:
    table: str
    kind: str
    rows: int = 0
    finalized: bool = False


class Halt:
    """A request that stands still before it is carried out."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.over = threading.Event()

    @property
    def is_over(self) -> bool:
        return self.over.is_set()


class _Refuse(Exception):
    def __init__(self, code: grpc.StatusCode, said: str) -> None:
        super().__init__(said)
        self.code = code


def schema_of(columns: Mapping[str, str | tuple[str, str]]) -> Any:
    """A schema: for each column its type, or its type and mode."""
    schema = types.TableSchema.pb()()
    for name, found in columns.items():
        kind, mode = (found, "NULLABLE") if isinstance(found, str) else found
        schema.fields.add(name=name, type_=getattr(_Type, kind), mode=getattr(_Mode, mode))
    return schema


class BigQueryServer:
    """One service. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self.port = free_ports()
        self.tables: dict[str, Table] = {}
        self.streams: dict[str, Stream] = {}
        self.denied: set[str] = set()
        """Tables that the user may not write to."""
        self.refuses: Callable[[Mapping[str, Any]], str] = lambda row: ""
        """Why a row is refused, though it has the right types; empty where it is not."""
        self.before: Callable[[str, Any], None] = lambda method, request: None
        """Called before each request; it may raise `fail`."""
        self.cut_after: Callable[[str, Any], bool] = lambda method, request: False
        """Whether the answer to a request that was carried out is lost, with its connection."""
        self._halts: Callable[[str, Any], Coroutine[Any, Any, None]] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="bigquery")
        self._server: Any = None
        self._sessions: dict[str, list[dict[str, Any]]] = {}
        self._idle: set[asyncio.Future[None]] = set()
        """One for each call that waits for a request. With a result, it ends."""
        self._calls = 0
        """Number of calls that append rows."""
        self._calls_changed = asyncio.Event()
        """Set when a call has ended or begins to wait."""

    # What tests use

    @property
    def settings(self) -> dict[str, Any]:
        """In a pipeline file."""
        return {"endpoint": f"http://127.0.0.1:{self.port}", "project": "shop", "dataset": "d"}

    def create(self, columns: Mapping[str, str | tuple[str, str]], *, schema: Any = None) -> str:
        """A new table, and one of positions beside it, which has its name with `_positions`."""
        name = f"t_{uuid4().hex}"
        self.tables[_path(name)] = Table(schema if schema is not None else schema_of(columns))
        self.tables[_path(f"{name}_positions")] = Table(schema_of(COLUMNS))
        return name

    def table(self, name: str) -> Table:
        return self.tables[_path(name)]

    def rows(self, name: str) -> list[dict[str, Any]]:
        return list(self.table(name).rows)

    def streams_of(self, name: str) -> dict[str, Stream]:
        return {key: stream for key, stream in self.streams.items() if stream.table == _path(name)}

    def rows_of(self, name: str) -> list[dict[str, Any]]:
        """Those of a table, to change."""
        return self.table(name).rows

    def halt_before(self, when: Callable[[str, Any], bool]) -> Halt:
        """The first request for which `when` is true waits to be carried out until the halt is over."""
        halt = Halt()

        async def wait(method: str, request: Any) -> None:
            if not halt.is_over and not halt.begun.is_set() and when(method, request):
                halt.begun.set()
                await asyncio.to_thread(halt.over.wait, _HALT_TIMEOUT_S)

        self._halts = wait
        return halt

    @asynccontextmanager
    async def beside(self, halt: Halt, other: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
        """While the block runs into the halt, `other` runs to its end; then the halt is over."""

        async def run() -> None:
            assert await asyncio.to_thread(halt.begun.wait, _HALT_TIMEOUT_S)
            try:
                await other()
            finally:
                halt.over.set()

        async with asyncio.TaskGroup() as group:
            group.create_task(run())
            yield

    @staticmethod
    def fail(code: grpc.StatusCode, said: str) -> Exception:
        return _Refuse(code, said)

    def start(self) -> None:
        """Returns when it listens."""
        if not self._thread.is_alive():
            self._thread.start()
        self._run(self._start())

    def stop(self) -> None:
        """As a kill does: every connection ends at once."""
        if self._server is not None:
            self._run(self._server.stop(None))
            self._server = None

    def end_idle(self) -> None:
        """Ends every connection whose requests have been answered, as the service does after 10 minutes without one."""

        async def end() -> None:
            # A client may have an answer before its call waits for the next request.
            while len(self._idle) < self._calls:
                self._calls_changed.clear()
                await self._calls_changed.wait()
            for waiting in self._idle:
                waiting.set_result(None)
            self._idle.clear()

        self._run(end())

    def close(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # The service

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    async def _start(self) -> None:
        server = grpc.aio.server(options=_OPTIONS)
        unary: dict[str, Any] = {
            "CreateWriteStream": (types.CreateWriteStreamRequest, self._create_stream),
            "GetWriteStream": (types.GetWriteStreamRequest, self._get_stream),
            "FinalizeWriteStream": (types.FinalizeWriteStreamRequest, self._finalize),
        }
        write = {name: self._unary(name, *one) for name, one in unary.items()}
        write["AppendRows"] = grpc.stream_stream_rpc_method_handler(
            self._append, types.AppendRowsRequest.pb().FromString, _serialized
        )
        read = {
            "CreateReadSession": self._unary("CreateReadSession", types.CreateReadSessionRequest, self._read_session),
            "ReadRows": grpc.unary_stream_rpc_method_handler(
                self._read_rows, types.ReadRowsRequest.pb().FromString, _serialized
            ),
        }
        package = "google.cloud.bigquery.storage.v1"
        server.add_generic_rpc_handlers(
            [
                grpc.method_handlers_generic_handler(f"{package}.BigQueryWrite", write),
                grpc.method_handlers_generic_handler(f"{package}.BigQueryRead", read),
            ]
        )
        assert server.add_insecure_port(f"127.0.0.1:{self.port}") == self.port
        await server.start()
        self._server = server

    def _unary(self, name: str, request: Any, method: Callable[[Any], Any]) -> Any:
        async def handle(received: Any, context: Any) -> Any:
            try:
                await self._arrived(name, received)
                answer = method(received)
            except _Refuse as error:
                await context.abort(error.code, str(error))
            if self.cut_after(name, received):
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection was cut")
            return answer

        return grpc.unary_unary_rpc_method_handler(handle, request.pb().FromString, _serialized)

    async def _arrived(self, method: str, request: Any) -> None:
        self.before(method, request)
        if self._halts is not None:
            await self._halts(method, request)

    def _found(self, name: str) -> Table:
        if name in self.denied:
            raise _Refuse(grpc.StatusCode.PERMISSION_DENIED, f"Permission 'TABLES_UPDATE_DATA' denied on {name}")
        if name not in self.tables:
            raise _Refuse(grpc.StatusCode.NOT_FOUND, f"Requested entity was not found. Entity: {name}")
        return self.tables[name]

    def _stream(self, name: str) -> Stream:
        table, _, last = name.rpartition("/streams/")
        if last == "_default":
            self._found(table)
            return Stream(table, "DEFAULT")
        if name not in self.streams:
            raise _Refuse(grpc.StatusCode.NOT_FOUND, f"Requested entity was not found. Entity: {name}")
        self._found(table)
        return self.streams[name]

    def _create_stream(self, request: Any) -> Any:
        table = self._found(request.parent)
        kind = types.WriteStream.Type(request.write_stream.type_).name
        name = f"{request.parent}/streams/{uuid4().hex}"
        self.streams[name] = Stream(request.parent, kind)
        return types.WriteStream.pb()(name=name, type_=request.write_stream.type_, table_schema=table.schema)

    def _get_stream(self, request: Any) -> Any:
        stream = self._stream(request.name)
        answer = types.WriteStream.pb()(name=request.name)
        if request.view == types.WriteStreamView.FULL:
            answer.table_schema.CopyFrom(self.tables[stream.table].schema)
        return answer

    def _finalize(self, request: Any) -> Any:
        stream = self._stream(request.name)
        if stream.kind == "DEFAULT":
            raise _Refuse(grpc.StatusCode.INVALID_ARGUMENT, "the default stream cannot be finalized")
        stream.finalized = True
        return types.FinalizeWriteStreamResponse.pb()(row_count=stream.rows)

    async def _append(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        self._calls += 1
        try:
            async for answer in self._answers(requests, context):
                yield answer
        finally:
            self._calls -= 1
            self._calls_changed.set()

    async def _answers(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        row: Any = None
        name = ""
        while (request := await self._next_of(requests, context)) is not None:
            if request.HasField("proto_rows") and request.proto_rows.HasField("writer_schema"):
                row = _message(request.proto_rows.writer_schema.proto_descriptor)
            name = request.write_stream or name
            try:
                await self._arrived("AppendRows", request)
                if row is None or not name:
                    raise _Refuse(grpc.StatusCode.INVALID_ARGUMENT, "the first request has no schema or no stream")
                if request.ByteSize() > REQUEST_BYTES_MAX:
                    raise _Refuse(grpc.StatusCode.INVALID_ARGUMENT, "AppendRows request too large")
                stream = self._stream(name)
            except _Refuse as error:
                await context.abort(error.code, str(error))
            answer = self._appended(name, stream, row, request)
            if self.cut_after("AppendRows", request):
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection was cut")
            yield answer

    async def _next_of(self, requests: AsyncIterator[Any], context: Any) -> Any:
        """The next request of a call; None at its end."""
        arriving = asyncio.ensure_future(anext(requests, None))
        ended = asyncio.get_running_loop().create_future()
        self._idle.add(ended)
        self._calls_changed.set()
        try:
            await asyncio.wait((arriving, ended), return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                await context.abort(grpc.StatusCode.ABORTED, "Closing the stream because it was idle for 600 seconds")
            return await arriving
        finally:
            arriving.cancel()
            self._idle.discard(ended)

    def _appended(self, name: str, stream: Stream, row: Any, request: Any) -> Any:
        answer = types.AppendRowsResponse.pb()(write_stream=name)
        try:
            if stream.finalized:
                raise _Refuse(grpc.StatusCode.FAILED_PRECONDITION, f"Stream is finalized. Entity: {name}")
            if request.HasField("offset"):
                offset = request.offset.value
                if offset < stream.rows:
                    said = f"The offset is within stream, expected offset {stream.rows}, received {offset}"
                    raise _Refuse(grpc.StatusCode.ALREADY_EXISTS, said)
                if offset > stream.rows:
                    said = f"The offset is beyond stream, expected offset {stream.rows}, received {offset}"
                    raise _Refuse(grpc.StatusCode.OUT_OF_RANGE, said)
            table = self._found(stream.table)
            rows = _decoded(table, row, request.proto_rows.rows.serialized_rows)
        except _Refuse as error:
            answer.error.code = error.code.value[0]
            answer.error.message = str(error)
            return answer
        bad = [(index, said) for index, one in enumerate(rows) if (said := self.refuses(one))]
        if bad:
            answer.error.code = grpc.StatusCode.INVALID_ARGUMENT.value[0]
            answer.error.message = "Errors found while processing rows. Please refer to the row_errors field"
            for index, said in bad:
                answer.row_errors.add(index=index, code=1, message=said)
            return answer
        if stream.kind != "PENDING":
            table.rows += rows
        answer.append_result.offset.value = stream.rows
        stream.rows += len(rows)
        return answer

    def _read_session(self, request: Any) -> Any:
        session = request.read_session
        table = self._found(session.table)
        conditions = _CONDITION.findall(session.read_options.row_restriction)
        wanted = {name: text.replace("\\'", "'").replace("\\\\", "\\") for name, text in conditions}
        columns = list(session.read_options.selected_fields)
        rows = [
            {name: row.get(name) for name in columns}
            for row in table.rows
            if all(row.get(name) == text for name, text in wanted.items())
        ]
        answer = types.ReadSession.pb()(name=f"s-{uuid4()}", table=session.table)
        kinds = {one.name: _Type(one.type_).name for one in table.schema.fields}
        fields = [{"name": name, "type": ["null", _AVRO[kinds[name]]]} for name in columns]
        answer.avro_schema.schema = json.dumps({"type": "record", "name": "__root__", "fields": fields})
        if rows:
            stream = f"{answer.name}/streams/1"
            self._sessions[stream] = rows
            answer.streams.add(name=stream)
            self._sessions[f"{stream} schema"] = [json.loads(answer.avro_schema.schema)]
        return answer

    async def _read_rows(self, request: Any, context: Any) -> AsyncIterator[Any]:
        schema = fastavro.parse_schema(self._sessions[f"{request.read_stream} schema"][0])
        rows = self._sessions[request.read_stream]
        for start in range(0, len(rows), 100):
            into = io.BytesIO()
            for row in rows[start : start + 100]:
                fastavro.schemaless_writer(into, schema, row)
            answer = types.ReadRowsResponse.pb()(row_count=len(rows[start : start + 100]))
            answer.avro_rows.serialized_binary_rows = into.getvalue()
            yield answer


def _path(table: str) -> str:
    return f"projects/shop/datasets/d/tables/{table}"


def _serialized(message: Any) -> bytes:
    return bytes(message.SerializeToString())


def _message(descriptor: Any) -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="given.proto", package="given", syntax="proto2")
    file.message_type.append(descriptor)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"given.{descriptor.name}"))


def _decoded(table: Table, row: Any, serialized: Sequence[bytes]) -> list[dict[str, Any]]:
    known = {one.name: one for one in table.schema.fields}
    extra = [one.name for one in row.DESCRIPTOR.fields if one.name not in known]
    if extra:
        said = f"Input schema has more fields than BigQuery schema, extra fields: '{','.join(extra)}'"
        raise _Refuse(grpc.StatusCode.INVALID_ARGUMENT, said)
    rows = []
    for data in serialized:
        message = row.FromString(data)
        for one in table.schema.fields:
            if one.mode == _Mode.REQUIRED and not (
                one.name in row.DESCRIPTOR.fields_by_name and message.HasField(one.name)
            ):
                raise _Refuse(grpc.StatusCode.INVALID_ARGUMENT, f"The required field {one.name} is missing")
        rows.append(_plain(message))
    return rows


def _plain(message: Any) -> dict[str, Any]:
    """Values of Python, as the message has them."""
    found: dict[str, Any] = {}
    for one, value in message.ListFields():
        if one.type == one.TYPE_MESSAGE:
            found[one.name] = [_plain(item) for item in value] if one.is_repeated else _plain(value)
        else:
            found[one.name] = list(value) if one.is_repeated else value
    return found


@contextmanager
def open_bigquery() -> Iterator[BigQueryServer]:
    """A service for a while."""
    server = BigQueryServer()
    server.start()
    try:
        yield server
    finally:
        server.close()
