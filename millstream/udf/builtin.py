"""Built-in functions, which run in the vertex process, without a sidecar.

Above it: the vertex process. Below it: frames. Built-ins answer as a sidecar would, so lanes treat both alike. An input
that a built-in cannot read has an outcome of its own, as with any function, and the retry policy decides.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from decimal import Decimal
from functools import partial
from typing import Any

from millstream.exact_json import parse
from millstream.extract import Extraction, member, time_parser
from millstream.frame import Frame
from millstream.spec.programs import CatBuiltin, EventTime, EventTimeBuiltin, FilterArguments, FilterBuiltin
from millstream.udf.answers import MapAnswer, Outcome, Result
from millstream.udf.protocol import StreamName
from millstream.udf.streams import MapStream
from millstream_udf import columns

_Answer = Callable[[Frame], MapAnswer]


class _BuiltinStream:
    takes_arrow = False
    calls_max = 1
    """Built-ins answer immediately, so a second call in flight would only wait."""

    def __init__(self, answer: _Answer) -> None:
        self._answer = answer

    async def call(
        self,
        frame: Frame,
        *,
        watermark_us: int,
        attempt: int = 0,
        traceparent: str = "",
        id_prefix: str = "",
        first_index: int = 0,
        alone: bool = False,
    ) -> MapAnswer:
        return self._answer(frame)


@asynccontextmanager
async def open_builtin(
    builtin: CatBuiltin | FilterBuiltin | EventTimeBuiltin, name: StreamName
) -> AsyncIterator[MapStream]:
    """A stream of calls to a built-in."""
    match builtin:
        case CatBuiltin():
            answer: _Answer = cat
        case FilterBuiltin():
            answer = filtering(builtin.kwargs)
        case EventTimeBuiltin():
            answer = timing(builtin.kwargs)
    yield _BuiltinStream(answer)


def cat(frame: Frame) -> MapAnswer:
    """Returns every record unchanged."""
    return MapAnswer(records=frame.records, values=frame.contents.column)


def filtering(arguments: FilterArguments) -> _Answer:
    """Keeps the records that fulfil the condition."""
    keeps = _condition(arguments)

    def answer(frame: Frame) -> MapAnswer:
        values = frame.values()
        parents = [index for index, value in enumerate(values) if keeps(_parsed(value))]
        if len(parents) == len(values):
            return cat(frame)
        return MapAnswer(
            records=len(parents),
            values=columns.pack_bytes([values[index] for index in parents]),
            parents=columns.pack_offsets(parents),
        )

    return answer


def timing(arguments: EventTime) -> _Answer:
    """Sets each record's event time to the one in its value or in a header."""
    extraction = Extraction(
        time_field=arguments.field, time_header=arguments.header, parse_time=time_parser(arguments.format)
    )

    def times_of(frame: Frame) -> Iterator[Callable[[], int]]:
        if arguments.header is not None:
            return (partial(extraction.header_time_us, headers) for headers in frame.headers())
        return (partial(_field_time_us, extraction, value) for value in frame.values())

    def answer(frame: Frame) -> MapAnswer:
        times: list[int] = []
        parents: list[int] = []
        outcomes: list[Outcome] = []
        for index, time_us in enumerate(times_of(frame)):
            try:
                times.append(time_us())
            except ValueError as error:
                outcomes.append(Outcome(index, Result.ERROR, reason=f"eventTime: {error}"))
            else:
                parents.append(index)
        if not outcomes:
            return MapAnswer(
                records=frame.records, values=frame.contents.column, event_times_us=columns.pack_times(times)
            )
        values = frame.values()
        return MapAnswer(
            records=len(parents),
            values=columns.pack_bytes([values[index] for index in parents]),
            parents=columns.pack_offsets(parents),
            event_times_us=columns.pack_times(times),
            outcomes=outcomes,
        )

    return answer


_ABSENT = object()


def _condition(arguments: FilterArguments) -> Callable[[Any], bool]:
    def found(value: Any) -> Any:
        try:
            return member(value, arguments.field)
        except ValueError:
            return _ABSENT

    if arguments.exists is not None:
        wanted = arguments.exists
        return lambda value: (found(value) is not _ABSENT) is wanted
    if arguments.matches is not None:
        search = re.compile(arguments.matches).search

        def matches(value: Any) -> bool:
            text = found(value)
            return isinstance(text, str) and search(text) is not None

        return matches
    # Members are decimal numbers: the float 0.1 is not exactly 0.1.
    expected = Decimal(repr(arguments.equals)) if isinstance(arguments.equals, float) else arguments.equals

    def equals(value: Any) -> bool:
        actual = found(value)
        # 1 and true are different in JSON, although they are equal in Python.
        return isinstance(actual, bool) is isinstance(expected, bool) and bool(actual == expected)

    return equals


def _parsed(value: bytes) -> Any:
    """The parsed JSON value. A value that is not JSON has no members."""
    try:
        return parse(value, constants=True)
    except ValueError:
        return _ABSENT


def _field_time_us(extraction: Extraction, value: bytes) -> int:
    try:
        parsed = parse(value, constants=True)
    except ValueError as error:
        raise ValueError(f"the value is not JSON: {error}") from None
    return extraction.event_time_us(parsed)
