"""The messages of a reduce stream: encodes parts of groups from Arrow, and checks and decodes answers. Pure.

Above it: `reduce_client`. Below it: the column codecs. A message contains the records of many groups, or some records
of a group that is larger than PART_BYTES. Values and event times are copied once, from Arrow's buffers into the
message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from millstream.limits import ANSWER_RECORDS_MAX
from millstream.udf.checks import check_columns, in_column
from millstream_udf import columns
from millstream_udf.groups import Group, Part, Rows, decode_part, encode_group
from millstream_udf.reducing import RESULT_BYTES_MAX, Answer, Failure
from millstream_udf.values import Message
from millstream_udf.wire.frame.v1 import frame_pb2
from millstream_udf.wire.udf.v1 import udf_pb2

PART_BYTES = 1024 * 1024
"""Bytes of records in a message, unless one record is larger."""
PART_GROUPS = 4096
"""Groups in a message."""
RECORD_BYTES = 16
"""Bytes of a record in addition to its value, keys and headers."""


@dataclass(slots=True)
class PartMessage:
    """One message to send, and the groups in it."""

    data: bytes
    first: int
    """Number of the first group with records in it, from 0 in the order of the groups."""
    last: int
    """Number of the last group."""
    unfinished: bool
    """More records of the last group follow in later messages."""
    continues: bool
    """Earlier messages have records of the first group."""


@dataclass(slots=True)
class _Run:
    group: Group
    rows: Rows
    start: int
    stop: int
    begins: bool
    """No record of the group was sent before."""
    ends: bool


class PartEncoder:
    """Turns parts into messages. Groups without records are left out."""

    def __init__(self) -> None:
        self.groups: list[Group] = []
        """All groups encoded so far, except those that `forget` has removed."""
        self._forgotten = 0
        self._open: Group | None = None
        """The group that the last part left open."""
        self._open_begun = False

    @property
    def count(self) -> int:
        """Number of groups so far."""
        return self._forgotten + len(self.groups)

    def group(self, number: int) -> Group:
        return self.groups[number - self._forgotten]

    def forget(self, number: int) -> None:
        """Forgets the groups below `number`, because they are answered."""
        del self.groups[: number - self._forgotten]
        self._forgotten = number

    def messages(self, part: Part) -> Iterator[PartMessage]:
        """Encodes one part."""
        runs: list[_Run] = []
        size = 0
        sizes = _sizes(part.rows)
        left = deque(self._runs(part))
        while left:
            run = left.popleft()
            # As many records as fit, and at least one if the message would be empty otherwise.
            fits = int(np.searchsorted(sizes, sizes[run.start] + max(0, PART_BYTES - size), side="right")) - 1
            stop = min(run.stop, max(fits, run.start + (not runs)))
            if stop == run.stop:
                runs.append(run)
                size += int(sizes[stop] - sizes[run.start])
            else:
                if stop > run.start:
                    runs.append(replace(run, stop=stop, ends=False))
                    run = replace(run, start=stop, begins=False)
                left.appendleft(run)
            if stop < run.stop or len(runs) >= PART_GROUPS:
                yield self._message(runs)
                runs, size = [], 0
        if runs:
            yield self._message(runs)

    def _runs(self, part: Part) -> Iterator[_Run]:
        """A run of records for each group that has any; also an empty run, if a group ends without more records."""
        start = 0
        groups: Iterable[Group] = part.groups
        if self._open is not None:
            groups = (self._open, *part.groups)
        last = len(part.counts) - 1
        for index, (group, count) in enumerate(zip(groups, part.counts, strict=True)):
            begins = not (index == 0 and self._open is not None and self._open_begun)
            ends = not (index == last and part.unfinished)
            if count or (ends and not begins):
                yield _Run(group, part.rows, start, start + count, begins, ends)
                begins = False
            start += count
            if index == last:
                self._open = None if ends else group
                self._open_begun = not begins

    def _message(self, runs: Sequence[_Run]) -> PartMessage:
        first_run, last_run = runs[0], runs[-1]
        begun = [run.group for run in runs if run.begins]
        first = self.count if first_run.begins else self.count - 1
        self.groups.extend(begun)
        message = udf_pb2.SealedReducePart(
            groups=map(encode_group, begun),
            counts=[run.stop - run.start for run in runs],
            frame=encode_rows(first_run.rows, first_run.start, last_run.stop),
            unfinished=not last_run.ends,
        )
        data = udf_pb2.SealedReduceRequest(part=message).SerializeToString()
        return PartMessage(data, first, self.count - 1, not last_run.ends, continues=not first_run.begins)


def one_by_one(messages: Iterable[PartMessage], left_out: int) -> Iterator[PartMessage]:
    """The same records in messages of one group each, without the groups below `left_out`."""
    for message in messages:
        part = decode_part(udf_pb2.SealedReduceRequest.FromString(message.data).part, continues=message.continues)
        start = 0
        begun = iter(part.groups)
        for number, count in enumerate(part.counts, message.first):
            continues = message.continues and number == message.first
            group = [] if continues else [encode_group(next(begun))]
            if number >= left_out:
                unfinished = message.unfinished and number == message.last
                sealed = udf_pb2.SealedReducePart(
                    groups=group,
                    counts=[count],
                    frame=encode_rows(part.rows, start, start + count),
                    unfinished=unfinished,
                )
                data = udf_pb2.SealedReduceRequest(part=sealed).SerializeToString()
                yield PartMessage(data, number, number, unfinished, continues)
            start += count


def encode_rows(rows: Rows, start: int, stop: int) -> bytes:
    """A frame with these rows; empty if there are none."""
    if start == stop:
        return b""
    batch = rows.batch.slice(start, stop - start)
    value: Any = batch["value"]
    time: Any = batch["event_time"]
    offsets = _offsets(value)
    data = value.buffers()[2]
    values = frame_pb2.SealedBytesColumn(
        offsets=(offsets - offsets[0]).astype("<u4").tobytes(),
        data=b"" if data is None else bytes(memoryview(data)[offsets[0] : offsets[-1]]),
    )
    times = np.frombuffer(time.buffers()[1], np.int64)[time.offset : time.offset + len(time)]
    frame = frame_pb2.SealedFrame(
        info=frame_pb2.FrameInfo(
            records=len(batch), event_time_min_us=int(times.min()), event_time_max_us=int(times.max())
        ),
        values=values.SerializeToString(),
        event_times_us=times.astype("<i8").tobytes(),
    )
    if batch["keys"].null_count < len(batch) and (keys := rows.own_keys) is not None:
        parts = [[part.encode() for part in parts] for parts in keys[start:stop]]
        frame.keys = columns.pack_lists(parts) or columns.pack_no_lists(len(batch))
    if batch["headers"].null_count < len(batch) and (headers := rows.own_headers) is not None:
        frame.headers = columns.pack_headers(headers[start:stop])
    return frame.SerializeToString()


def check_reduce_answer(answer: udf_pb2.SealedReduceAnswer) -> None:
    """Raises `ValueError` unless every column has an entry per result. `check_reduce_groups` must be called before."""
    count = sum(answer.counts)
    if count > ANSWER_RECORDS_MAX:
        raise ValueError(
            f"it has {count:,} results; at most {ANSWER_RECORDS_MAX:,} are allowed at once, and more in further answers"
        )
    in_column("values", columns.check_bytes, answer.values, count)
    check_columns(answer.keys, answer.headers, answer.tags, count)


def check_reduce_groups(answer: udf_pb2.SealedReduceAnswer, groups: int) -> None:
    """Raises `ValueError` unless the answer has at most `groups` groups, and each failure refers to one of them. Only
    then can an error in the rest of the answer be attributed to these groups."""
    if not answer.counts:
        raise ValueError("it contains no group")
    if len(answer.counts) > groups:
        raise ValueError(f"it contains {len(answer.counts)} groups, but {groups} are unanswered")
    failed = [failure.index for failure in answer.failures]
    if failed and max(failed) >= len(answer.counts):
        raise ValueError(f"a failure is for group {max(failed)} of {len(answer.counts)}")
    if len(set(failed)) != len(failed):
        raise ValueError("two failures are for one group")


def decode_answer(answer: udf_pb2.SealedReduceAnswer, groups: Sequence[Group]) -> Answer:
    """Decodes an answer. `groups`: the groups that it answers. A group with a result that is too large for a record has
    failed."""
    values = columns.unpack_bytes(answer.values)
    results: list[bytes | Message] = list(values)
    count = len(values)
    if answer.keys or answer.tags or answer.headers:
        keys: Sequence[tuple[str, ...] | None] = [None] * count
        if answer.keys:
            keys = [tuple(part.decode() for part in parts) for parts in columns.unpack_lists(answer.keys, count)]
        tags = [tuple(tag.decode() for tag in tags) for tags in columns.unpack_lists(answer.tags, count)]
        headers = [some or None for some in columns.unpack_headers(answer.headers, count)]
        results = [Message(*row) for row in zip(values, keys, tags, headers, strict=True)]
    failures = [Failure(item.index, item.error, item.detail) for item in answer.failures]
    decoded = Answer(list(groups), list(answer.counts), results, failures, answer.unfinished)
    sizes = [_size_of(result) for result in results] if len(answer.keys) + len(answer.headers) else [*map(len, values)]
    if max(sizes, default=0) > RESULT_BYTES_MAX:
        _fail_large(decoded, sizes)
    return decoded


def _size_of(result: bytes | Message) -> int:
    if isinstance(result, bytes):
        return len(result)
    size = len(result.value) + sum(len(part.encode()) for part in result.keys or ())
    return size + sum(len(name.encode()) + len(value) for name, value in (result.headers or {}).items())


def _fail_large(answer: Answer, sizes: Sequence[int]) -> None:
    failed = {failure.index for failure in answer.failures}
    start = 0
    for index, count in enumerate(answer.counts):
        largest = max(sizes[start : start + count], default=0)
        if largest > RESULT_BYTES_MAX and index not in failed:
            error = f"a result has {largest:,} bytes; the maximum is {RESULT_BYTES_MAX:,}. Return several smaller ones"
            answer.failures.append(Failure(index, error))
        start += count


def _sizes(rows: Rows) -> npt.NDArray[np.int64]:
    """For each row, the bytes of the rows before it; then the bytes of all rows."""
    batch = rows.batch
    count = len(batch)
    sizes = _offsets(batch["value"]).astype(np.int64) + RECORD_BYTES * np.arange(count + 1)
    # Keys and headers are rare and small: spreading their bytes evenly over the rows keeps a message within a few times
    # its size.
    others = sum(batch[name].nbytes for name in ("keys", "headers") if batch[name].null_count < count)
    if others:
        sizes += (others * np.arange(count + 1)) // max(count, 1)
    return sizes


def _offsets(column: Any) -> npt.NDArray[np.int32]:
    if not len(column):
        return np.zeros(1, np.int32)
    return np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
