"""Converts the results of a function to the columns of an answer. Pure.

Above it: `execution`. Below it: the column codecs. `results` always has one entry per input record: the function's
return value for it, or the exception that it raised.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from millstream_udf import columns
from millstream_udf.failures import FAILURES, Outcomes, failure
from millstream_udf.inputs import FrameInputs
from millstream_udf.misfits import BadOutput, hidden
from millstream_udf.returned_values import collected, yielded
from millstream_udf.typed_values import JSON, Encoder, is_object
from millstream_udf.values import Message, Record
from millstream_udf.wire.udf.v1 import udf_pb2

_PLAIN = {bytes}
_FILTERING = {bytes, type(None)}
_TIMES = "in the years 1 to 9999"
_TIMES_NOT_ALLOWED = "only a source transform can set event times, because the watermark is computed after it"
_YEAR_1_US, _YEAR_10000_US = -62_135_596_800_000_000, 253_402_300_800_000_000
_SCALARS = (bytes, str, Message, Record, bytearray, memoryview)
_OWN = {bytes, type(None), str, Message, Record}


def map_answer(
    call_id: int, inputs: FrameInputs, results: Sequence[Any], *, times_allowed: bool, encode: Encoder = JSON
) -> udf_pb2.SealedMapAnswer:
    """`times_allowed`: this is a source transform, so messages may carry event times. `encode`: for objects among the
    results."""
    # The usual cases are recognized by the set of types, at 20 ns per record, without inspecting single records.
    types = set(map(type, results))
    if not types <= _OWN and any(map(encode.takes, types)):
        results = encode.many(results)
        types = set(map(type, results))
    if str in types:
        # A text without a UTF-8 form is left to the slow path, which names its record.
        with suppress(UnicodeEncodeError):
            results = [result.encode() if type(result) is str else result for result in results]
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
    return _mixed_answer(call_id, inputs, results, times_allowed=times_allowed, encode=encode)


def sink_answer(call_id: int, results: Sequence[Any]) -> udf_pb2.SinkAnswer:
    """A sink's function returns nothing."""
    outcomes = Outcomes(sink=True)
    if set(map(type, results)) != {type(None)}:
        for index, result in enumerate(results):
            if isinstance(result, FAILURES):
                outcomes.add(index, result)
            elif result is not None:
                outcomes.add(
                    index,
                    BadOutput(f"a sink's function returns nothing, not {_named(result)}; raise an exception to fail"),
                )
    return udf_pb2.SinkAnswer(call_id=call_id, outcomes=outcomes.items)


def _mixed_answer(
    call_id: int, inputs: FrameInputs, results: Sequence[Any], *, times_allowed: bool, encode: Encoder
) -> udf_pb2.SealedMapAnswer:
    outcomes = Outcomes()
    outputs: list[bytes | Message] = []
    parents: list[int] = []
    for index, result in enumerate(results):
        kind = type(result)
        if kind is bytes or (
            kind is Message and type(result.value) is bytes and (times_allowed or result.event_time_us is None)
        ):
            outputs.append(result)
            parents.append(index)
        elif isinstance(result, FAILURES):
            outcomes.add(index, result)
        elif result is not None:
            try:
                some = _each(result, encode, times_allowed=times_allowed)
            except FAILURES as error:
                # A record that fails partway (a list with one bad item, a generator that raises) has no outputs.
                outcomes.add(index, failure(error))
            else:
                outputs.extend(some)
                parents.extend([index] * len(some))
    try:
        answer = _columns(inputs, outputs, parents)
    except (TypeError, ValueError, AttributeError, OverflowError):
        # A message cannot be encoded. It is searched for only now, so that other calls have no overhead.
        faults = _faults(outputs, parents)
        for index, fault in faults.items():
            outcomes.add(index, fault)
        sound = [position for position, parent in enumerate(parents) if parent not in faults]
        outputs, parents = [outputs[position] for position in sound], [parents[position] for position in sound]
        answer = _columns(inputs, outputs, parents)
    answer.call_id = call_id
    answer.outcomes.extend(outcomes.items)
    if parents != list(range(len(results))):
        answer.parents = columns.pack_offsets(parents)
    return answer


def _columns(
    inputs: FrameInputs, outputs: Sequence[bytes | Message], parents: Sequence[int]
) -> udf_pb2.SealedMapAnswer:
    """Columns that a message of this answer needs; if a message does not set a value, its output inherits it."""
    count = len(outputs)
    messages = [output if type(output) is Message else None for output in outputs]
    given = [message for message in messages if message is not None]
    if not given:
        return udf_pb2.SealedMapAnswer(records=count, values=columns.pack_bytes(outputs))  # type: ignore[arg-type]  # no Message among them
    values = [output if message is None else message.value for output, message in zip(outputs, messages, strict=True)]
    answer = udf_pb2.SealedMapAnswer(records=count, values=columns.pack_bytes(values))  # type: ignore[arg-type]  # as above
    rows = list(zip(messages, parents, strict=True))
    if any(message.keys is not None for message in given):
        own, encoded = inputs.key_parts, _Encoded()
        keys = [own[at] if m is None or m.keys is None else encoded[m.keys] for m, at in rows]
        answer.keys = columns.pack_lists(keys) or columns.pack_no_lists(count)
    if any(message.tags for message in given):
        encoded = _Encoded()
        answer.tags = columns.pack_lists([() if m is None else encoded[m.tags] for m in messages])
    if any(message.headers is not None for message in given):
        headers = [inputs.headers[at] if m is None or m.headers is None else m.headers for m, at in rows]
        answer.headers = columns.pack_headers(headers) or columns.pack_no_headers(count)
    if any(message.event_time_us is not None for message in given):
        own_times = inputs.event_times_us
        times = [own_times[at] if m is None or m.event_time_us is None else m.event_time_us for m, at in rows]
        if not (_is_time(min(times)) and _is_time(max(times))):
            raise ValueError(f"an event time is not {_TIMES}")
        answer.event_times_us = columns.pack_times(times)
    return answer


class _Encoded(dict[tuple[str, ...], list[bytes]]):
    """Texts as bytes, cached because the same few keys and tags repeat."""

    def __missing__(self, texts: tuple[str, ...]) -> list[bytes]:
        self[texts] = encoded = [text.encode() for text in texts]
        return encoded


def _faults(outputs: Sequence[bytes | Message], parents: Sequence[int]) -> dict[int, BadOutput]:
    """Errors of messages that cannot be encoded, by input."""
    faults: dict[int, BadOutput] = {}
    for output, parent in zip(outputs, parents, strict=True):
        if type(output) is Message and (fault := fault_of(output)) is not None:
            faults[parent] = fault
    return faults


def fault_of(message: Message) -> BadOutput | None:
    """Why a message cannot be encoded."""
    fault = None
    for name, expected, sound in (
        ("value", "bytes", type(message.value) is bytes),
        ("keys", "texts", message.keys is None or _are_texts(message.keys)),
        ("tags", "texts", _are_texts(message.tags)),
        ("headers", "a mapping of texts to bytes", message.headers is None or _are_headers(message.headers)),
        ("event_time", _TIMES, message.event_time_us is None or _is_time(message.event_time_us)),
    ):
        if not sound:
            fault = BadOutput(
                f"{name} of a message must be {expected}, not {_named(getattr(message, name, message.event_time_us))}"
            )
    return fault


def fault_of_record(record: Record) -> str | None:
    """Why a record of a source cannot be encoded."""
    # Checks at run time what the annotations promise.
    value: object = record.value
    keys: object = record.keys
    for name, expected, sound in (
        (
            "value",
            "bytes, str, a dict, a dataclass or a model",
            isinstance(value, bytes | bytearray | memoryview) or _is_text(value) or is_object(type(value)),
        ),
        ("keys", "a tuple of texts", _are_texts(keys)),
        ("headers", "a mapping of texts to bytes", _are_headers(record.headers)),
        ("event_time_us", _TIMES, _is_time(record.event_time_us)),
        ("id", "a text or None", record.id is None or _are_texts((record.id,))),
    ):
        if not sound:
            given: object = getattr(record, name)
            return f"its {name} must be {expected}, not {_named(given)}"
    return None


def _is_time(time_us: int) -> bool:
    """Whether it is a valid event time."""
    return _YEAR_1_US <= time_us < _YEAR_10000_US


def _are_texts(texts: object) -> bool:
    return isinstance(texts, (tuple, list)) and all(_is_text(text) for text in texts)


def _are_headers(headers: object) -> bool:
    return isinstance(headers, Mapping) and all(
        _is_text(name) and isinstance(value, bytes) for name, value in headers.items()
    )


def _is_text(text: object) -> bool:
    # A str with a lone surrogate has no UTF-8 form.
    return isinstance(text, str) and not any("\ud800" <= character <= "\udfff" for character in text)


def _each(result: Any, encode: Encoder, *, times_allowed: bool) -> list[Any]:
    outputs = collected(each_output(result, encode))
    if not times_allowed and any(type(item) is Message and item.event_time_us is not None for item in outputs):
        raise BadOutput(_TIMES_NOT_ALLOWED)
    return outputs


def encoded_outputs(result: Any, encode: Encoder, earliest_us: int | None = None) -> Any:
    """A result of a map whose outputs are encoded, so that they can be sent, whatever becomes of the objects. Raises
    what makes its record fail. `earliest_us`: see `sendable`."""
    if type(result) is bytes or result is None:
        return result
    outputs = [sendable(output, earliest_us) for output in collected(each_output(result, encode))]
    return outputs[0] if len(outputs) == 1 else outputs


def sendable(output: bytes | Message, earliest_us: int | None = None) -> bytes | Message:
    """An output of a map that can be sent, whatever becomes of the object. Raises what makes its record fail.
    `earliest_us`: the earliest event time that it may have, if it may have one of its own: that of its timer."""
    if type(output) is not Message:
        return output
    time_us = output.event_time_us
    if time_us is not None and earliest_us is None:
        raise BadOutput(_TIMES_NOT_ALLOWED)
    if (fault := fault_of(output)) is not None:
        raise fault
    if time_us is not None and earliest_us is not None and time_us < earliest_us:
        raise BadOutput(
            f"an output of the timer is {(earliest_us - time_us) / 1e6:g} s earlier than its event_time: set the timer "
            "with output_at=..., the earliest event time of its outputs"
        )
    headers = None if output.headers is None else dict(output.headers)
    return Message(output.value, output.keys, output.tags, headers, time_us)


def answer_of(
    inputs: FrameInputs, outputs: Sequence[bytes | Message], parents: Sequence[int]
) -> udf_pb2.SealedMapAnswer:
    """An answer with these outputs, which can be sent. `parents`: index of the input of each."""
    if not outputs:
        return udf_pb2.SealedMapAnswer()
    answer = _columns(inputs, outputs, parents)
    answer.parents = columns.pack_offsets(parents)
    return answer


def each_output(result: Any, encode: Encoder = JSON) -> Iterator[bytes | Message]:
    """The outputs in one result, one by one as an iterator produces them."""
    if result is None:
        return iter(())
    if isinstance(result, _SCALARS) or encode.takes(type(result)):
        return iter((output_of(result, encode),))
    if not isinstance(result, Iterable):
        raise BadOutput(
            "a function must return bytes, str, None, a Message, a dict, a dataclass or a model (they become "
            f"JSON), or a list of these, not {_named(result)}{_hint_for(result)}"
        )
    return (output_of(item, encode) for item in yielded(result))


def output_of(item: Any, encode: Encoder = JSON) -> bytes | Message:
    """One item of a function's result."""
    match item:
        case bytes():
            return item
        case Message():
            return item if type(item.value) is bytes else _with_value(item, _value_of(item.value, encode))
        case str():
            return item.encode()
        case bytearray() | memoryview():
            return bytes(item)
        case Record():
            return Message(_value_of(item.value, encode), keys=item.keys, headers=item.headers)
    if encode.takes(type(item)):
        return encode.one(item)
    raise BadOutput(
        "a list of outputs can contain bytes, str, Message, dict, dataclass or model, not "
        f"{_named(item)}{_hint_for(item)}"
    )


def _hint_for(value: object) -> str:
    return "; for JSON return json.dumps(value)" if isinstance(value, int | float) else ""


def _value_of(value: Any, encode: Encoder) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return bytes(value) if isinstance(value, bytearray | memoryview) else encode.one(value)


def _with_value(message: Message, value: bytes) -> Message:
    """A copy, because the function may continue to use its own object."""
    copied = Message(value, message.keys, message.tags, message.headers)
    copied.event_time_us = message.event_time_us
    return copied


def _named(value: object) -> str:
    if hidden():
        return type(value).__name__
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 100 else text[:100] + '...'}"
