"""Checks whether an answer fits its call. Pure.

This is the only place that checks the output of a function, before it is used: after that, columns can be cut, passed
on and stored as they are. A check costs one pass over a column, without decoding its items.

Above it: every protocol, which checks each answer in our own types before passing it on. Below it: the column codecs.
The checks raise `ValueError` with what does not fit; the caller adds the context and the consequence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from millstream.extract import YEAR_1_US, YEAR_10000_US
from millstream.limits import (
    ANSWER_ITEMS_PER_RECORD_MAX,
    ANSWER_RECORDS_MAX,
    COLUMN_BYTES_UNCOUNTED,
    MESSAGE_BYTES_UNCOUNTED,
    MESSAGE_PARTS_MAX,
    RECORD_BYTES_MAX,
    SOURCE_POSITION_BYTES_MAX,
    TRACEPARENT_BYTES_MAX,
)
from millstream.udf.answers import MapAnswer, Outcome, ReadBatch, Result, SinkAnswer
from millstream.udf.states import DeclaredState, StateChanges, StateKind
from millstream_udf import columns
from millstream_udf.fields import FIXED_BYTES, read_varint
from millstream_udf.timer_entries import EVENT, TIMER_NAME_BYTES_MAX, unpack_timer

MAP_RESULTS = frozenset((Result.ERROR, Result.RETRY, Result.DEAD_LETTER, Result.DROP))
STATE_RESULTS = MAP_RESULTS | {Result.HELD_UP}
SINK_RESULTS = MAP_RESULTS | {Result.FALLBACK}

NUMBER_BYTES = 8
"""Of a counter, and of an item of a list."""
ITEMS_MAX = ANSWER_ITEMS_PER_RECORD_MAX * ANSWER_RECORDS_MAX


def check_parts(message: bytes, path: Sequence[int] = ()) -> None:
    """Raises `ValueError` for a large message with more fields than an answer can have: decoding would make it many
    times larger. `path`: numbers of the fields that lead to the answer."""
    if len(message) > MESSAGE_BYTES_UNCOUNTED:
        count_parts(memoryview(message), path, MESSAGE_PARTS_MAX)


def check_map_answer(
    answer: MapAnswer,
    inputs: int,
    *,
    outputs_max: int = ANSWER_RECORDS_MAX,
    times_allowed: bool = False,
    arrow_allowed: bool = False,
    held_up_allowed: bool = False,
) -> None:
    """Checks that every column has one entry per output, and that all indexes of inputs are inside the call. Only a
    source transform may set event times, because it runs before the watermark is computed."""
    if answer.error:
        return
    count = answer.records
    if count > outputs_max:
        raise ValueError(f"it has {count:,} outputs; at most {outputs_max:,} are allowed per call (`outputsMax`)")
    failed = check_outcomes(answer.outcomes, inputs, STATE_RESULTS if held_up_allowed else MAP_RESULTS)
    if not answer.arrow:
        in_column("values", columns.check_bytes, answer.values, count)
    elif not arrow_allowed:
        raise ValueError("it has Arrow columns in place of values, which were not asked for")
    elif answer.values or not count:
        raise ValueError("it has Arrow columns besides values, or without outputs")
    if answer.parents:
        _check_parents(answer.parents, count, inputs, failed)
    elif count and count != inputs:
        raise ValueError(f"it has {count} outputs for {inputs} inputs, but no column parents with the input of each")
    elif count and failed:
        raise ValueError(f"input {min(failed)} has both an outcome and an output")
    if answer.event_times_us:
        if not times_allowed:
            raise ValueError("it sets event times, which only a source transform can")
        _check_times(answer.event_times_us, count)
    check_columns(answer.keys, answer.headers, answer.tags, count, ANSWER_ITEMS_PER_RECORD_MAX * outputs_max)


def check_changes(answer: MapAnswer, keys: int, states: Sequence[DeclaredState]) -> None:
    """Checks that the changes refer to keys of the call and to states of the function, each entry once, and that all of
    their columns have as many entries. `keys`: how many keys the call had; 0 for a function without states."""
    changes, count = answer.changes, len(answer.changes.keys)
    if not keys and (count or any(one.result is Result.HELD_UP for one in answer.outcomes)):
        raise ValueError("it has changes of states or holds records up, and the function has no states")
    needed = {"states": changes.states, "values": changes.values}
    absent = {"items": changes.items, "deleted": changes.deleted, "expires_us": changes.expires_us}
    for name, column in (*needed.items(), *((name, column) for name, column in absent.items() if column)):
        if len(column) != count:
            raise ValueError(f"its {count} changes have {len(column)} {name}")
    if not count:
        return
    if max(changes.keys) >= keys or max(changes.states) >= len(states):
        raise ValueError("a change is of a key or a state that there is not")
    for number in set(changes.states):
        if changes.items and not states[number].kind.has_items:
            with_items = (item for item, state in zip(changes.items, changes.states, strict=True) if state == number)
            if any(with_items):
                raise ValueError(f"a change of the state {states[number].name} has an item")
        if states[number].kind is StateKind.TIMER:
            _check_timers(changes, number)
        else:
            _check_numbers(changes, number, states[number])
    is_one_state = not changes.items and changes.states.count(changes.states[0]) == count
    items = changes.items or [b""] * count
    if len(set(changes.keys if is_one_state else zip(changes.keys, changes.states, items, strict=True))) < count:
        raise ValueError("two changes are of one entry")


def _check_numbers(changes: StateChanges, number: int, state: DeclaredState) -> None:
    """Checks what is a number in the changes of state `number`: stored otherwise, no function could read it."""
    if state.kind is StateKind.LIST:
        items = changes.items or [b""] * len(changes.keys)
        if any(len(item) != NUMBER_BYTES for item, one in zip(items, changes.states, strict=True) if one == number):
            raise ValueError(f"an item of the list {state.name} is not a number of {NUMBER_BYTES} bytes")
    elif state.kind is StateKind.COUNTER:
        gone = changes.deleted or bytes(len(changes.keys))
        rows = zip(changes.values, changes.states, gone, strict=True)
        if any(len(value) != NUMBER_BYTES for value, one, is_gone in rows if one == number and not is_gone):
            raise ValueError(f"a value of the counter {state.name} is not a number of {NUMBER_BYTES} bytes")


def _check_timers(changes: StateChanges, number: int) -> None:
    """Checks the changes of timers, which are state `number`."""
    count = len(changes.keys)
    deleted, expires_us = changes.deleted or bytes(count), changes.expires_us or [0] * count
    rows = zip(changes.states, changes.items or [b""] * count, changes.values, deleted, expires_us, strict=True)
    for state, name, value, gone, expiry_us in rows:
        if state != number:
            continue
        if expiry_us:
            raise ValueError("a timer does not expire, and a change of one says when")
        if not 0 < len(name) <= TIMER_NAME_BYTES_MAX:
            raise ValueError(f"the name of a timer has {len(name)} bytes; 1 to {TIMER_NAME_BYTES_MAX} are allowed")
        # A `UnicodeDecodeError` is a `ValueError`.
        name.decode()
        if gone:
            continue
        time = unpack_timer(value)
        if not all(YEAR_1_US <= time_us < YEAR_10000_US for time_us in (time.at_us, time.event_us)):
            raise ValueError("the time of a timer is not in the years 1 to 9999")
        if time.holds and time.clock == EVENT and time.event_us > time.at_us:
            raise ValueError("the output time of a timer is later than its time")


def check_times(answer: MapAnswer, earliest_us: Sequence[int] | None) -> None:
    """Checks the event times of the outputs of a map. `earliest_us`: those of timers, by input; None for records, of
    which outputs have the time."""
    if not answer.event_times_us:
        return
    if earliest_us is None:
        raise ValueError("it sets event times, which only a source transform can, and the outputs of timers")
    parents = columns.unpack_offsets(answer.parents) if answer.parents else range(answer.records)
    for parent, time_us in zip(parents, columns.unpack_times(answer.event_times_us), strict=True):
        if time_us < earliest_us[parent]:
            raise ValueError(f"an output of timer {parent} is earlier than the time of the timer")


def check_sink_answer(answer: SinkAnswer, records: int) -> None:
    """Checks that the outcomes refer to records of the call."""
    if not answer.error:
        check_outcomes(answer.outcomes, records, SINK_RESULTS)


def check_read_batch(batch: ReadBatch, records_max: int) -> None:
    """Checks that the batch has at most `records_max` records, none too large, and that every column has an entry for
    each of them."""
    if batch.error:
        return
    if len(batch.position) > SOURCE_POSITION_BYTES_MAX:
        raise ValueError(
            f"its position has {len(batch.position)} bytes; at most {SOURCE_POSITION_BYTES_MAX} are allowed"
        )
    frame = batch.frame
    if frame is None:
        return
    if frame.records > records_max:
        raise ValueError(f"it has {frame.records} records, but at most {records_max} were requested")
    _check_times(frame.event_times_column, frame.records)
    in_column("values", columns.check_bytes, frame.contents.column, frame.records)
    if frame.ids_column:
        in_column("ids", columns.check_bytes, frame.ids_column, frame.records, text=True)
    check_columns(frame.keys_column, frame.headers_column, b"", frame.records)
    if not 0 <= frame.ingest_time_us < YEAR_10000_US or len(frame.traceparent) > TRACEPARENT_BYTES_MAX:
        raise ValueError("its info has an invalid time or trace context")
    if frame.size > RECORD_BYTES_MAX and (largest := max(frame.record_sizes())) > RECORD_BYTES_MAX:
        raise ValueError(f"a record has {largest} bytes; at most {RECORD_BYTES_MAX} are allowed")


def check_outcomes(outcomes: Collection[Outcome], inputs: int, results: Collection[Result]) -> set[int]:
    """Checks that each outcome refers to a different input of the call, and has one of these results. Returns the
    indexes of the inputs."""
    named: set[int] = set()
    for outcome in outcomes:
        if not 0 <= outcome.index < inputs:
            raise ValueError(f"an outcome is for input {outcome.index} of {inputs}")
        if outcome.index in named:
            raise ValueError(f"two outcomes are for input {outcome.index}")
        if outcome.result not in results:
            raise ValueError(
                f"the outcome of input {outcome.index} has the result {outcome.result.value}, which is not allowed here"
            )
        named.add(outcome.index)
    return named


def check_columns(keys: bytes, headers: bytes, tags: bytes, count: int, items_max: int = ITEMS_MAX) -> None:
    """Checks that the keys, headers and tags of that many records can be read."""
    in_column("keys", columns.check_lists, keys, count, items_max=items_max)
    in_column("tags", columns.check_lists, tags, count, items_max=items_max)
    if len(headers) > COLUMN_BYTES_UNCOUNTED:
        # Two fields for each header, and the offsets.
        in_column("headers", count_parts, memoryview(headers), (), 2 * items_max + 1)
    in_column("headers", columns.check_headers, headers, count, items_max=items_max)


def _check_parents(data: bytes, count: int, inputs: int, failed: set[int]) -> None:
    if len(data) != 4 * count:
        raise ValueError(f"it has {count} outputs, but {len(data) / 4:g} parents")
    try:
        columns.check_rising(data)
    except ValueError as error:
        raise ValueError(
            f"parents are not in ascending order; outputs must be in the order of their inputs ({error})"
        ) from error
    last = int.from_bytes(data[-4:], "little")
    if last >= inputs:
        raise ValueError(f"an output came from input {last} of {inputs}")
    if failed and (both := failed.intersection(columns.unpack_offsets(data))):
        raise ValueError(f"input {min(both)} has both an outcome and an output")


def _check_times(data: bytes, count: int) -> None:
    if len(data) != 8 * count:
        raise ValueError(f"it has {count} records, but {len(data)} bytes of event times")
    times = columns.unpack_times(data)
    for time_us in (min(times), max(times)):
        if not YEAR_1_US <= time_us < YEAR_10000_US:
            raise ValueError(
                f"the event time of record {times.index(time_us)}, {time_us} us, is not in the years 1 to 9999"
            )


def in_column(name: str, check: Callable[..., object], *arguments: object, **options: object) -> None:
    """Checks a column. The error names the column."""
    try:
        check(*arguments, **options)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def count_parts(data: memoryview, path: Sequence[int], left: int) -> int:
    """Subtracts the number of fields in a message from `left`, and returns the rest. Follows the encoding of protobuf
    without decoding fields. Raises `ValueError` if there are more fields, and for bytes that are not a message."""
    position, end = 0, len(data)
    while position < end:
        left -= 1
        if left < 0:
            raise ValueError("it has more fields than this message can have")
        tag, position = read_varint(data, position)
        kind = tag & 7
        if kind == 2:
            length, position = read_varint(data, position)
            if path and tag >> 3 == path[0]:
                left = count_parts(data[position : position + length], path[1:], left)
            position += length
        elif kind == 0:
            _, position = read_varint(data, position)
        elif kind in FIXED_BYTES:
            position += FIXED_BYTES[kind]
        else:
            raise ValueError(f"a field has the type {kind}")
    return left
