"""Runs a reduce function without a pipeline: the part of the test kit for `@udf.reduce`; see `testing`.

Records are packed into frames and go through the same code as in a running sidecar.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import Any

from millstream_udf.context import Context
from millstream_udf.defining import define
from millstream_udf.definition import REDUCE, Definition
from millstream_udf.execution import open_function
from millstream_udf.function_types import UNKNOWN
from millstream_udf.groups import Cursor, Group, Part, decode_part, encode_group
from millstream_udf.reducing import Answer, Parts, ReduceFunction
from millstream_udf.sources import frame_of
from millstream_udf.testing_objects import objects_of, record_of
from millstream_udf.values import Message, Record, Window
from millstream_udf.wire.udf.v1 import udf_pb2

MINUTE = Window(0, 60_000_000)
"""The default window of `run_reduce`."""


@dataclass(frozen=True, slots=True)
class Reduced:
    """The results of a function for one window, or for one key of a window."""

    window: Window
    keys: tuple[str, ...]
    messages: Sequence[Message] = ()
    """Results in order, with inherited members filled in: keys, and the event time, which is the end of the window."""

    gives: Any = UNKNOWN
    """The type of the results, if the function is annotated with one."""

    @property
    def values(self) -> list[bytes]:
        """Values of the results."""
        return [message.value for message in self.messages]

    def objects(self, kind: Any = None) -> list[Any]:
        """The results, decoded to `kind`. Default: the type that the function is annotated to return, else any JSON.

        Raises `ValueError` for a result that does not fit.
        """
        return objects_of(self.values, self.gives if kind is None else kind)


def run_reduce(
    function: Any,
    inputs: Iterable[Any],
    *,
    keys: Sequence[str] = (),
    window: Window = MINUTE,
    frame_records: int = 1000,
) -> Reduced:
    """Run `function` on one group, with inputs as for `testing.run`. Raises `RuntimeError`, with the traceback, if the
    group fails.

    The records arrive in frames of `frame_records`, like those of a large group.
    """
    records = [record_of(item, window.start_us) for item in inputs]
    return _reduced(function, {Group(window, tuple(keys)): records}, frame_records)[0]


def run_windows(
    function: Any,
    records: Iterable[Record[Any]],
    length: timedelta | int,
    *,
    keyed: bool = True,
    frame_records: int = 1000,
) -> list[Reduced]:
    """Run `function` on every fixed window of `length` (microseconds as an int), and on each of its keys if `keyed`.

    The results are in the order of windows and keys. Raises as `run_reduce` does.
    """
    length_us = length // timedelta(microseconds=1) if isinstance(length, timedelta) else length
    groups: dict[Group, list[Record[Any]]] = {}
    for record in records:
        start_us = record.event_time_us // length_us * length_us
        group = Group(Window(start_us, start_us + length_us), record.keys if keyed else ())
        groups.setdefault(group, []).append(record)
    return _reduced(function, {group: groups[group] for group in sorted(groups)}, frame_records)


async def _answers(
    definition: Definition, groups: Mapping[Group, Sequence[Record[Any]]], frame_records: int
) -> list[Answer]:
    context = Context(pipeline="test", vertex=definition.name, lane=f"window-{definition.name}.0")
    parts = [part for group, records in groups.items() for part in _parts(group, records, frame_records)]
    async with open_function(definition, context) as opened:
        reducing = ReduceFunction(definition, opened.call)
        return [answer async for answer in reducing.answers(Cursor(Parts(parts)), context)]


def _parts(group: Group, records: Sequence[Record[Any]], frame_records: int) -> Iterable[Part]:
    """Parts as they would arrive over a stream: many frames, decoded from their bytes."""
    if all(record.keys in ((), group.keys) for record in records):
        # As in a keyed vertex: the keys belong to the group, and no frame repeats them.
        records = [Record(record.value, record.event_time_us, (), record.headers) for record in records]
    left = iter(records)
    for first in range(0, max(1, len(records)), frame_records):
        some = list(islice(left, frame_records))
        message = udf_pb2.SealedReducePart(
            groups=[] if first else [encode_group(group)],
            counts=[len(some)],
            frame=frame_of(some) if some else b"",
            unfinished=first + frame_records < len(records),
        )
        yield decode_part(message, continues=first > 0)


def _reduced(function: Any, groups: Mapping[Group, Sequence[Record[Any]]], frame_records: int) -> list[Reduced]:
    definition = define(function, getattr(function, "__name__", type(function).__name__))
    if REDUCE not in definition.kinds:
        raise TypeError(f"{definition.name} is not a reduce function; decorate it with @udf.reduce, or use run")
    messages: dict[Group, list[Message]] = {group: [] for group in groups}
    for answer in asyncio.run(_answers(definition, groups, frame_records)):
        for failure in answer.failures:
            raise RuntimeError(f"{answer.groups[failure.index]}: {failure.error}\n{failure.detail}".rstrip())
        results = iter(answer.results)
        for group, count in zip(answer.groups, answer.counts, strict=True):
            messages[group] += [_filled(group, result) for result in islice(results, count)]
    return [Reduced(group.window, group.keys, messages[group], definition.gives) for group in groups]


def _filled(group: Group, result: bytes | Message) -> Message:
    message = result if isinstance(result, Message) else Message(result)
    return Message(
        message.value,
        group.keys if message.keys is None else message.keys,
        message.tags,
        message.headers or {},
        group.window.end_us - 1,
    )
