"""Does an answer fit its call? Pure.

Above it: the streams of `client.py`. Below it: the column codecs. Raises `ValueError` that says what does not fit; who
asked and what follows is the caller's to say.
"""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.message import DecodeError

from millstream_udf import columns
from millstream_udf.wire.frame.v1 import frame_pb2
from millstream_udf.wire.udf.v1 import udf_pb2


def check_map_answer(answer: udf_pb2.SealedMapAnswer, inputs: int) -> None:
    """Every column has one entry per output, and everything that names an input names one of the call."""
    if answer.error:
        return
    count = answer.records
    values = columns.count_bytes(answer.values)
    if values != count:
        raise ValueError(f"it says it has {count} outputs, and has {values} values")
    failed = check_outcomes(answer.outcomes, inputs)
    if answer.parents:
        _check_parents(answer.parents, count, inputs, failed)
    elif count and count != inputs:
        raise ValueError(
            f"it has {count} outputs for {inputs} inputs, and no column parents that says which came from which"
        )
    elif count and failed:
        raise ValueError(f"input {min(failed)} has both an outcome and an output")
    if answer.event_times_us and len(answer.event_times_us) != 8 * count:
        raise ValueError(f"it has {count} outputs, and {len(answer.event_times_us)} bytes of event times")
    _check_columns(answer, count)


def check_reduce_answer(answer: udf_pb2.SealedReduceAnswer, groups: int) -> None:
    """It speaks of at most `groups` groups, each failure of one of them, and every column has an entry per result."""
    if not answer.counts:
        raise ValueError("it speaks of no group")
    if len(answer.counts) > groups:
        raise ValueError(f"it speaks of {len(answer.counts)} groups, and {groups} have no answer yet")
    count = sum(answer.counts)
    values = columns.count_bytes(answer.values)
    if values != count:
        raise ValueError(f"its counts come to {count} results, and it has {values} values")
    _check_columns(answer, count)
    failed = [failure.index for failure in answer.failures]
    if failed and max(failed) >= len(answer.counts):
        raise ValueError(f"a failure speaks of group {max(failed)} of {len(answer.counts)}")
    if len(set(failed)) != len(failed):
        raise ValueError("two failures speak of one group")


def check_outcomes(outcomes: Iterable[udf_pb2.Outcome], inputs: int) -> set[int]:
    """Each names an input of the call, and none twice. The inputs they name."""
    named: set[int] = set()
    for outcome in outcomes:
        if outcome.index >= inputs:
            raise ValueError(f"an outcome speaks of input {outcome.index} of {inputs}")
        if outcome.index in named:
            raise ValueError(f"two outcomes speak of input {outcome.index}")
        if outcome.result == udf_pb2.Outcome.RESULT_UNSPECIFIED:
            raise ValueError(f"the outcome of input {outcome.index} has no result")
        named.add(outcome.index)
    return named


def _check_columns(answer: udf_pb2.SealedMapAnswer | udf_pb2.SealedReduceAnswer, count: int) -> None:
    for name, column in (("keys", answer.keys), ("tags", answer.tags)):
        if column and (entries := columns.count_lists(column)) != count:
            raise ValueError(f"it has {count} outputs, and {entries} entries in {name}")
    if answer.headers:
        entries = _count_headers(answer.headers)
        if entries != count:
            raise ValueError(f"it has {count} outputs, and {entries} entries in headers")


def _check_parents(data: bytes, count: int, inputs: int, failed: set[int]) -> None:
    parents = columns.unpack_offsets(data).tolist()
    if len(parents) != count:
        raise ValueError(f"it has {count} outputs, and {len(parents)} parents")
    if parents != sorted(parents):
        raise ValueError("parents fall; outputs are given in the order of their inputs")
    if parents[-1] >= inputs:
        raise ValueError(f"an output came from input {parents[-1]} of {inputs}")
    if failed and (both := failed.intersection(parents)):
        raise ValueError(f"input {min(both)} has both an outcome and an output")


def _count_headers(column: bytes) -> int:
    try:
        message = frame_pb2.SealedHeadersColumn.FromString(column)
    except DecodeError as error:
        raise ValueError(f"not a column: {error}") from error
    return len(message.starts) // 4 - 1
