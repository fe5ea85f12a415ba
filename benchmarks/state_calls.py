"""What the states of a function cost its process: calls of 500 records with and without them, in one process.

    python benchmarks/state_calls.py [--keys 100000] [--seconds 5]
    python benchmarks/state_calls.py --items 100000 [--seconds 5]

A call goes through everything but the socket: bytes of the request to bytes of the answer. With states, each record
gets the value of its key, of 100 bytes, and puts another one; a vertex would send the values of the keys along, and so
does this. Alternately with and without, so that other work on the machine meets both. Prints microseconds of processor
time per record, and the ratio of the medians.

With `--items`, a key has a map of so many items, and each call has one record of it, which reads and writes one item,
and adds another. The function is a process of its own, and the vertex's side is here: what it sends, and what becomes
of the answer. Alternately with a map whose items come with the call, and a lazy one. Prints milliseconds per call, and
bytes of state in it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import millstream_udf as udf
from millstream.frame import build_frame
from millstream.spec.protocols import FunctionKind
from millstream.udf.function import open_local_function
from millstream.udf.protocol import StreamName
from millstream.udf.sidecar import SidecarSpec, python_command
from millstream.udf.states import StateChanges
from millstream.udf.streams import KeyedMapStream
from millstream_udf.answering import answer_map, context_of, encode_map, map_call_of
from millstream_udf.defining import define
from millstream_udf.execution import FunctionLane, open_function
from millstream_udf.sources import frame_of
from millstream_udf.state_entries import StateEntries, pack_entries, unpack_changes
from millstream_udf.wire.udf.v1 import udf_pb2
from millstream_vertex.keyed.state import KeyedState

RECORDS = 500
"""Records of a call."""
VALUE_BYTES = 100
HELLO = udf_pb2.Hello(protocol_version=1, kind=udf_pb2.KIND_MAP, pipeline="bench", vertex="state", lane="in-state.0")
Prepare = Callable[[list[int]], bytes]
"""Makes the request of a call for these keys."""


@udf.map
class Without:
    """The function, without what it remembers."""

    def process(self, record: udf.Record) -> bytes:
        return record.value


@udf.map
class Value:
    """A value of bytes."""

    last = udf.value(bytes, default=b"")

    def process(self, record: udf.Record) -> bytes:
        before = self.last
        self.last = record.value
        return before or record.value


@udf.map
class Json:
    """A text in JSON, in a map."""

    last = udf.map_state(str, str)

    def process(self, record: udf.Record) -> bytes:
        before = self.last.get("last", "")
        self.last["last"] = record.value.decode()
        return before.encode() or record.value


@udf.map
def plain(record: udf.Record, state: udf.State) -> bytes:
    """A plain function."""
    before: str = state.get("last", "")
    state["last"] = record.value.decode()
    return before.encode() or record.value


def request(
    keys: list[int], values: list[bytes], remembered: dict[int, list[tuple[int, bytes, bytes]]] | None
) -> bytes:
    """A call; `remembered`: state, item and value of each entry, by key."""
    call = udf_pb2.SealedMapCall(call_id=1, id_prefix="state/in/0/1/")
    call.frame = frame_of([udf.Record(value, 0, (f"key-{key}",)) for key, value in zip(keys, values, strict=True)])
    if remembered is not None:
        numbers: dict[int, int] = {}
        record_keys = array("I", [numbers.setdefault(key, len(numbers)) for key in keys])
        rows = [(number, *entry) for key, number in numbers.items() for entry in remembered.get(key, [])]
        call.states = pack_entries(
            StateEntries(
                record_keys,
                array("I", [row[0] for row in rows]),
                bytes(row[1] for row in rows),
                [row[2] for row in rows] if any(row[2] for row in rows) else None,
                [row[3] for row in rows],
                None,
            )
        )
    return udf_pb2.SealedMapRequest(call=call).SerializeToString()


async def measured(
    lane: FunctionLane, requests: list[bytes], check: Callable[[udf_pb2.SealedMapAnswer], None]
) -> float:
    """Microseconds of processor time per record."""
    began = time.process_time()
    for data in requests:
        answer = await answer_map(lane, HELLO, *map_call_of(data))
        encoded = encode_map(answer)
    taken = time.process_time() - began
    check(udf_pb2.SealedMapResponse.FromString(b"".join(encoded)).answer)
    return taken / len(requests) / RECORDS * 1e6


async def compare(name: str, function: Any, keys_max: int, seconds: float) -> None:
    """Print what a function costs, beside the one without states."""
    source = random.Random(7)
    calls = [[source.randrange(keys_max) for _ in range(RECORDS)] for _ in range(20)]
    values = [[source.randbytes(VALUE_BYTES // 2).hex().encode() for _ in range(RECORDS)] for _ in calls]
    definition = define(function, name)
    old = source.randbytes(VALUE_BYTES // 2).hex().encode()
    entry = (0, b"", old) if function is Value else (0, b'"last"', b'"' + old + b'"')
    remembered = {key: [entry] for key in range(keys_max)}
    with_states = [request(keys, some, remembered) for keys, some in zip(calls, values, strict=True)]
    without = [request(keys, some, None) for keys, some in zip(calls, values, strict=True)]

    def check(answer: udf_pb2.SealedMapAnswer) -> None:
        assert answer.records == RECORDS, answer
        assert len(unpack_changes(answer.changes)) == len(set(calls[-1])), "each key is changed once"

    def check_plain(answer: udf_pb2.SealedMapAnswer) -> None:
        assert answer.records == RECORDS, answer

    costs: dict[bool, list[float]] = {False: [], True: []}
    async with (
        open_function(definition, context_of(HELLO)) as remembering,
        open_function(define(Without, "without"), context_of(HELLO)) as forgetting,
    ):
        runs: list[tuple[bool, Callable[[], Awaitable[float]]]] = [
            (True, lambda: measured(remembering.lane(), with_states, check)),
            (False, lambda: measured(forgetting.lane(), without, check_plain)),
        ]
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            for has_states, run in runs:
                costs[has_states].append(await run())
    with_us, without_us = statistics.median(costs[True]), statistics.median(costs[False])
    print(f"{name:6} {with_us:6.2f} us per record, {without_us:.2f} without states: {with_us / without_us:.2f} times")


@udf.map
class Eager:
    """A map whose items come with each call."""

    seen = udf.map_state(bytes, bytes)

    def process(self, value: bytes) -> bytes:
        found = self.seen[value]
        self.seen[value] = b"later"
        self.seen[b"added-" + value] = b"x"
        return found


@udf.map
class Lazy:
    """The same, read item by item."""

    seen = udf.map_state(bytes, bytes, lazy=True)

    def process(self, value: bytes) -> bytes:
        found = self.seen[value]
        self.seen[value] = b"later"
        self.seen[b"added-" + value] = b"x"
        return found


class Caller:
    """Calls of one function, as a vertex makes them."""

    def __init__(self, stream: KeyedMapStream, items: int) -> None:
        self._stream = stream
        self._state = KeyedState("bench", size_max=1 << 40, key_size_max=1 << 40)
        self._state.loaded()
        self._state.declare(stream.states)
        names = [b"item-%07d" % number for number in range(items)]
        stored = StateChanges(array("I", bytes(4 * items)), bytes(items), names, [b"first"] * items)
        assert self._state.apply([b"key"], stored) is None
        self.size = 0
        """Bytes of state in the last call."""

    async def call(self, number: int) -> float:
        """Seconds."""
        frame = build_frame([b"item-%07d" % number], array("q", [0]), ingest_time_us=0, keys=[[b"key"]])
        began = time.perf_counter()
        self._state.begin()
        entries = self._state.entries([b"key"], [0], 0)
        reader = self._state.reader([b"key"], 0)
        answer = await self._stream.keyed_call(frame, entries, reader=reader, watermark_us=0)
        assert (answer.error, answer.outcomes) == ("", ()), answer
        assert self._state.apply([b"key"], answer.changes) is None
        self._state.take_steps()
        taken = time.perf_counter() - began
        self.size = entries.size
        return taken


@asynccontextmanager
async def calling(name: str, items: int) -> AsyncIterator[Caller]:
    """A process of a function of this file, and what calls it."""
    where = StreamName("bench", name, "in.0", 0)
    spec = SidecarSpec(python_command(f"{__file__}:{name}"), "udf", where.pipeline, where.vertex)
    async with (
        open_local_function(spec, log=lambda stream, line: print(line)) as function,
        function.open_map(FunctionKind.MAP, where) as stream,
    ):
        assert isinstance(stream, KeyedMapStream)
        yield Caller(stream, items)


async def compare_lazy(items: int, seconds: float) -> None:
    """Print what a call costs with and without lazy."""
    async with calling("Eager", items) as eager, calling("Lazy", items) as lazy:
        callers = {"eager": eager, "lazy": lazy}
        costs: dict[str, list[float]] = {name: [] for name in callers}
        number, ends = 0, time.monotonic() + seconds
        while time.monotonic() < ends or number < 10:
            for name, caller in callers.items():
                costs[name].append(await caller.call(number % items))
            number += 1
    for name, caller in callers.items():
        # The first call also counts the bytes of the key.
        first, median = costs[name][0], statistics.median(costs[name][1:])
        print(
            f"{name:6} {median * 1e3:8.2f} ms per call ({first * 1e3:.2f} the first one), "
            f"{caller.size:,} bytes of state in it, {items:,} items of its key"
        )


async def main() -> None:
    """Compare each form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--items", type=int)
    parser.add_argument("--seconds", type=float, default=5)
    options = parser.parse_args()
    if options.items is not None:
        await compare_lazy(options.items, options.seconds)
        return
    for name, function in (("value", Value), ("map", Json), ("plain", plain)):
        await compare(name, function, options.keys, options.seconds)


if __name__ == "__main__":
    asyncio.run(main())
