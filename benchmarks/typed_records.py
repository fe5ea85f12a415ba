"""What a function with types costs beside one that calls `json.loads` and `json.dumps` itself.

    python benchmarks/typed_records.py [--records 4096] [--rounds 9]

In one process and in turns, so that other load falls on all of them alike: values of about 120 bytes are decoded, and
calls go through the SDK as in a sidecar (frame in, answer out). Prints rates of the best round and, as medians of the
rounds, how many times the rate of the standard library each has; exits with 1 where msgspec decodes less than three
times as fast.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic

from millstream_udf import typed_values
from millstream_udf.answering import answer_map
from millstream_udf.context import Context
from millstream_udf.defining import define
from millstream_udf.definition import MAP
from millstream_udf.execution import open_function
from millstream_udf.sources import frame_of
from millstream_udf.values import Record
from millstream_udf.wire.udf.v1 import udf_pb2

TIMES_MIN = 3.0
"""How much faster msgspec has to decode than `json.loads`."""


@dataclass
class Order:
    id: int
    customer: str
    item: str
    pieces: int
    price: float
    express: bool = False


@dataclass
class Priced:
    id: int
    total: float


class OrderStruct(msgspec.Struct):
    id: int
    customer: str
    item: str
    pieces: int
    price: float
    express: bool = False


class OrderModel(pydantic.BaseModel):
    id: int
    customer: str
    item: str
    pieces: int
    price: float
    express: bool = False


def by_hand(value: bytes) -> bytes:
    order = json.loads(value)
    return json.dumps({"id": order["id"], "total": order["pieces"] * order["price"]}).encode()


def typed(order: Order) -> Priced:
    return Priced(order.id, order.pieces * order.price)


def struct(order: OrderStruct) -> Priced:
    return Priced(order.id, order.pieces * order.price)


def model(order: OrderModel) -> Priced:
    return Priced(order.id, order.pieces * order.price)


def dictionary(order: dict[str, Any]) -> dict[str, Any]:
    return {"id": order["id"], "total": order["pieces"] * order["price"]}


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "json.loads and json.dumps": by_hand,
    "dict": dictionary,
    "dataclass": typed,
    "msgspec.Struct": struct,
    "pydantic model": model,
}
KINDS = {"dict": dict, "dataclass": Order, "msgspec.Struct": OrderStruct, "pydantic model": OrderModel}
PLAIN = " without msgspec"


@contextmanager
def without_msgspec() -> Iterator[None]:
    """As where it is not installed."""
    typed_values._writer.cache_clear()
    sys.modules["msgspec"] = None  # type: ignore[assignment]  # says that it cannot be imported
    try:
        yield
    finally:
        sys.modules["msgspec"] = msgspec
        typed_values._writer.cache_clear()


def values_of(count: int) -> list[bytes]:
    return [
        b'{"id": %d, "customer": "customer-%d", "item": "a nut of steel, 8 mm", "pieces": %d, "price": %.2f}'
        % (number, number % 977, number % 40 + 1, number % 300 / 7 + 0.01)
        for number in range(count)
    ]


def decoders(values: list[bytes]) -> dict[str, Callable[[], Any]]:
    """What is measured first: values to objects."""
    ways: dict[str, Callable[[], Any]] = {"json.loads": lambda: list(map(json.loads, values))}
    for name, kind in KINDS.items():
        decoder = typed_values.decoder(kind)
        ways[name] = lambda decoder=decoder: decoder.many(values)  # type: ignore[misc]  # of this round of the loop
    with without_msgspec():
        plain = typed_values.decoder(Order)
    ways["dataclass" + PLAIN] = lambda: plain.many(values)
    return ways


def calls(values: list[bytes]) -> dict[str, Callable[[], Any]]:
    """And then: a whole call of a function, from frame to answer."""
    frame = frame_of([Record(value) for value in values])

    def calling(function: Callable[[Any], Any]) -> Callable[[], Any]:
        definition = define(function, function.__name__)
        hello = udf_pb2.Hello(protocol_version=1, kind=MAP)

        async def call() -> None:
            async with open_function(definition, Context()) as opened:
                answer = await answer_map(opened.lane(), hello, udf_pb2.SealedMapCall(frame=frame))
                assert answer.records == len(values), answer.error or answer.outcomes[0].reason

        return lambda: asyncio.run(call())

    ways = {name: calling(function) for name, function in FUNCTIONS.items()}
    with without_msgspec():
        plain = calling(typed)

    def plainly() -> None:
        with without_msgspec():
            plain()

    return {**ways, "dataclass" + PLAIN: plainly}


def measured(ways: dict[str, Callable[[], Any]], count: int, rounds: int) -> dict[str, float]:
    """Rates are printed; returned is how many times the rate of the first each has."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            began = time.process_time()
            way()
            seconds[name].append(time.process_time() - began)
    first = next(iter(ways))
    ratios: dict[str, float] = {}
    for name, times in seconds.items():
        ratios[name] = statistics.median(a / b for a, b in zip(seconds[first], times, strict=True))
        print(f"  {name:<28} {count / min(times):>12,.0f} records/s  {ratios[name]:>6.2f} x")
    return ratios


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=4096, help="of one call (default: 4096)")
    parser.add_argument("--rounds", type=int, default=9, help="(default: 9)")
    options = parser.parse_args()
    values = values_of(options.records)
    print(f"decoding {options.records:,} values of {sum(map(len, values)) // len(values)} bytes")
    ratios = measured(decoders(values), options.records, options.rounds)
    print("a whole call: frame, decoding, function, encoding, answer")
    measured(calls(values), options.records, options.rounds)
    if ratios["dataclass"] < TIMES_MIN:
        print(f"msgspec decodes {ratios['dataclass']:.2f} times as fast as json.loads; expected: {TIMES_MIN:g}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
