"""From what a function returned to the columns of an answer. Pure.

Above it: `execution`. Below it: the column codecs. `results` always has one entry per input record: what the function
returned for it, or the exception it ended with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from millstream_udf import columns
from millstream_udf.failures import BadOutput, Outcomes
from millstream_udf.inputs import Inputs
from millstream_udf.values import Message, Record, hint_for
from millstream_udf.wire.udf.v1 import udf_pb2

_PLAIN = {bytes}
_FILTERING = {bytes, type(None)}
_SCALARS = (bytes, str, Message, Record, bytearray, memoryview)


def map_answer(call_id: int, inputs: Inputs, results: Sequence[Any], *, times_allowed: bool) -> udf_pb2.SealedMapAnswer:
    """`times_allowed`: this is a source transform, so messages may carry event times."""
    # The two usual cases are recognised by the set of types, which costs 20 ns a record, and never look at a record
    # again.
    types = set(map(type, results))
    if types == _PLAIN:
        return udf_pb2.SealedMapAnswer(call_id=call_id, records=len(results), values=columns.pack_bytes(results))
    if types == _FILTERING:
        parents = [index for index, result in enumerate(results) if result is not None]
        values = [results[index] for index in parents]
        return udf_pb2.SealedMapAnswer(
            call_id=call_id,
            records=len(values),
            values=columns.pack_bytes(values),
            parents=columns.pack_offsets(parents),
        )
    return _mixed_answer(call_id, inputs, results, times_allowed=times_allowed)


def sink_answer(call_id: int, results: Sequence[Any]) -> udf_pb2.SinkAnswer:
    """A sink's function returns nothing."""
    outcomes = Outcomes(sink=True)
    if set(map(type, results)) != {type(None)}:
        for index, result in enumerate(results):
            if isinstance(result, Exception):
                outcomes.add(index, result)
            elif result is not None:
                outcomes.add(
                    index, BadOutput(f"a sink's function returns nothing, not {_named(result)}; raise to fail")
                )
    return udf_pb2.SinkAnswer(call_id=call_id, outcomes=outcomes.items)


def _mixed_answer(
    call_id: int, inputs: Inputs, results: Sequence[Any], *, times_allowed: bool
) -> udf_pb2.SealedMapAnswer:
    outcomes = Outcomes()
    values: list[bytes] = []
    parents: list[int] = []
    messages: dict[int, Message] = {}
    for index, result in enumerate(results):
        if type(result) is bytes:
            values.append(result)
            parents.append(index)
        elif isinstance(result, Exception):
            outcomes.add(index, result)
        elif result is not None:
            try:
                outputs = _each(result, times_allowed=times_allowed)
            except Exception as error:  # noqa: BLE001 - users' functions raise anything
                # A record that fails half-way (a list with one bad item, a generator that raises) has no outputs.
                outcomes.add(index, error)
                continue
            for output in outputs:
                if type(output) is Message:
                    messages[len(values)] = output
                    values.append(output.value)
                else:
                    values.append(output)
            parents.extend([index] * len(outputs))
    answer = udf_pb2.SealedMapAnswer(
        call_id=call_id, records=len(values), values=columns.pack_bytes(values), outcomes=outcomes.items
    )
    if parents != list(range(len(results))):
        answer.parents = columns.pack_offsets(parents)
    if messages:
        _add_columns(answer, inputs, parents, messages)
    return answer


def _add_columns(
    answer: udf_pb2.SealedMapAnswer, inputs: Inputs, parents: Sequence[int], messages: Mapping[int, Message]
) -> None:
    """Columns that some message of this answer needs; the other outputs inherit from their parents."""
    count = len(parents)
    given = messages.values()
    if any(message.keys is not None for message in given):
        answer.keys = columns.pack_lists(
            _column(messages, count, lambda m: m.keys and [part.encode() for part in m.keys], inputs.key_parts, parents)
        ) or columns.pack_no_lists(count)
    if any(message.tags for message in given):
        tags: list[Sequence[bytes]] = [()] * count
        for position, message in messages.items():
            tags[position] = [tag.encode() for tag in message.tags]
        answer.tags = columns.pack_lists(tags)
    if any(message.headers is not None for message in given):
        answer.headers = columns.pack_headers(
            _column(messages, count, lambda m: m.headers, inputs.headers, parents)
        ) or columns.pack_no_headers(count)
    if any(message.event_time_us is not None for message in given):
        answer.event_times_us = columns.pack_times(
            _column(messages, count, lambda m: m.event_time_us, inputs.event_times_us, parents)
        )


def _column(
    messages: Mapping[int, Message],
    count: int,
    field: Callable[[Message], Any],
    inherited: Sequence[Any],
    parents: Sequence[int],
) -> list[Any]:
    column = []
    for position in range(count):
        message = messages.get(position)
        own = None if message is None else field(message)
        column.append(inherited[parents[position]] if own is None else own)
    return column


def _each(result: Any, *, times_allowed: bool) -> list[Any]:
    """The outputs in one result: `bytes` and `Message`."""
    if isinstance(result, _SCALARS):
        outputs = [_output(result)]
    elif isinstance(result, dict) or not isinstance(result, Iterable):
        raise BadOutput(
            f"a function returns bytes, str, None, a Message, or a list of these, not "
            f"{_named(result)}{hint_for(result)}"
        )
    else:
        outputs = [_output(item) for item in result]
    if not times_allowed and any(type(item) is Message and item.event_time_us is not None for item in outputs):
        raise BadOutput("only a source transform can set event times: the watermark is taken behind it")
    return outputs


def _output(item: Any) -> bytes | Message:
    match item:
        case bytes() | Message():
            return item
        case str():
            return item.encode()
        case bytearray() | memoryview():
            return bytes(item)
        case Record():
            return Message(item.value, keys=item.keys, headers=item.headers)
    raise BadOutput(f"a list of outputs holds bytes, str or Message, not {_named(item)}{hint_for(item)}")


def _named(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 100 else text[:100] + '...'}"
