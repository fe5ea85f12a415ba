"""A message is a line of JSON.

vertex ► {"hello": "p/square/in-square.0"}                        ◄ {"serves": ["map"], "calls": 4}
vertex ► {"call": 1, "attempt": 0, "values": ["MzAwMA==", "MTM="]}
                        ◄ {"call": 1, "values": ["OTAwMDAwMA==", null], "failed": {"1": "13 is unlucky"}}

Values are in base64. An answer has one for each value of the call. One that failed is null, and its reason is in
`failed`. A stream is a connection; what the function says first is also its answer to `describe`.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from millstream import codes
from millstream.errors import UdfError
from millstream.frame import Frame
from millstream.spec.protocols import FunctionKind
from millstream.udf.answers import MapAnswer, Outcome, Result
from millstream.udf.calls import CallStream, Dialect, Wire, WireEndedError, open_call_stream
from millstream.udf.checks import check_map_answer
from millstream.udf.lives import Lives
from millstream.udf.protocol import Connection, Description, NoAnswerError, StreamName
from millstream.udf.streams import MapStream
from millstream_udf import columns

LINE_BYTES_MAX = 64 * 1024 * 1024
LOOK_INTERVAL_S = 0.05


class _LinesWire:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, message: bytes) -> None:
        try:
            self._writer.write(message + b"\n")
            await self._writer.drain()
        except OSError as error:
            raise WireEndedError(str(error)) from error

    async def receive(self) -> bytes:
        try:
            return await self._reader.readuntil(b"\n")
        except (OSError, asyncio.IncompleteReadError) as error:
            raise WireEndedError(str(error)) from error
        except asyncio.LimitOverrunError as error:
            raise UdfError(
                codes.FUNCTION_PROTOCOL, f"the function sent a line of more than {LINE_BYTES_MAX} bytes"
            ) from error

    async def half_close(self) -> None:
        self._writer.write_eof()


@asynccontextmanager
async def _open_wire(path: str) -> AsyncIterator[Wire]:
    try:
        reader, writer = await asyncio.open_unix_connection(path, limit=LINE_BYTES_MAX)
    except OSError as error:
        raise WireEndedError(str(error)) from error
    try:
        yield _LinesWire(reader, writer)
    finally:
        writer.close()


class _LinesMap:
    def __init__(self, stream: CallStream[MapAnswer]) -> None:
        self._stream = stream

    @property
    def takes_arrow(self) -> bool:
        return False

    @property
    def calls_max(self) -> int:
        return self._stream.calls_max

    async def call(self, frame: Frame, *, attempt: int = 0, alone: bool = False, **_: Any) -> MapAnswer:
        values = [b64encode(value).decode() for value in frame.values()]

        def encode(call_id: int) -> bytes:
            return json.dumps({"call": call_id, "attempt": attempt, "values": values}).encode()

        return await self._stream.call(encode, frame.records, alone=alone)


def _message(line: bytes, member: str) -> Any:
    """A member of a message. Raises `ValueError` when it is not there."""
    message = json.loads(line)
    if not isinstance(message, dict) or member not in message:
        raise ValueError(f"there is no {member} in it")
    return message[member]


def _answer(line: bytes, outputs_max: int) -> tuple[int, Callable[[int], MapAnswer]]:
    call_id, given, failed = _message(line, "call"), _message(line, "values"), json.loads(line).get("failed", {})

    def fit(inputs: int) -> MapAnswer:
        outcomes = [Outcome(int(index), Result.ERROR, str(why)) for index, why in failed.items()]
        parents = [index for index, value in enumerate(given) if value is not None]
        values = [b64decode(given[index]) for index in parents]
        answer = MapAnswer(
            len(values), columns.pack_bytes(values), parents=columns.pack_offsets(parents), outcomes=outcomes
        )
        check_map_answer(answer, inputs, outputs_max=outputs_max)
        return answer

    return call_id, fit


class _LinesConnection(Connection):
    def __init__(self, path: str, lives: Lives) -> None:
        self._path = path
        self._lives = lives

    async def describe(self, timeout_s: float, *, wait: bool = True) -> Description:
        why = "nothing listens"
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        async with _open_wire(self._path) as wire:
                            await wire.send(b'{"hello": "who are you?"}')
                            served = _message(await wire.receive(), "serves")
                            return Description(frozenset(map(FunctionKind, served)), language="json")
                    except WireEndedError as error:
                        if not wait:
                            raise NoAnswerError(str(error)) from error
                        why = str(error)
                        await asyncio.sleep(LOOK_INTERVAL_S)
        except TimeoutError:
            raise NoAnswerError(why) from None

    @asynccontextmanager
    async def open_map(
        self, kind: FunctionKind, name: StreamName, *, outputs_max: int, may_return_arrow: bool = False
    ) -> AsyncIterator[MapStream]:
        dialect = Dialect(
            open=partial(_open_wire, self._path),
            hello=json.dumps({"hello": name.where}).encode(),
            welcome=lambda line: int(_message(line, "calls")),
            answer=partial(_answer, outputs_max=outputs_max),
            failed=lambda error: MapAnswer(error=error),
        )
        async with open_call_stream(name, dialect, self._lives) as stream:
            yield _LinesMap(stream)


@asynccontextmanager
async def open_lines(path: str, lives: Lives) -> AsyncIterator[Connection]:
    """A connection to the function at a unix socket."""
    yield _LinesConnection(path, lives)
