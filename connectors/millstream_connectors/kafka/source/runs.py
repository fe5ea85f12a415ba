"""Records from a consumer as runs: consecutive records of one partition, in columns. Pure.

A client returns messages one by one, and each access to a message is a call. So each attribute is read once, column by
column, and later steps slice whole columns. Above it: the lane.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Any

from confluent_kafka import Message

from millstream.extract import EPOCH_MS, scaled_ms
from millstream.frame import Frame, build_frame
from millstream.keys import KeyMapping, text_of_key
from millstream.limits import RECORD_BYTES_MAX
from millstream_connectors.shared.messages import event_time

Split = tuple[str, int]
"""A topic and one of its partitions."""

_RECORD_OVERHEAD_BYTES = 64
_NO_HEADERS: Mapping[str, bytes] = {}


@dataclass(slots=True)
class Run:
    """Records of one split, in order, or none if an error or the end of the partition took their place."""

    split: Split
    offsets: Sequence[int]
    values: Sequence[bytes] = ()
    keys: Sequence[tuple[bytes, ...]] | None = None
    """Keys of the records; None if no record has one."""
    headers: Sequence[Mapping[str, bytes]] | None = None
    times: Sequence[int | None] = ()
    """Event time of each record in microseconds; None for a record without one."""
    ends: Sequence[int] = ()
    """Cumulative bytes of the records, including each one."""
    fault: str = ""
    """Why the record of the run, which is alone in it, cannot be a record of a pipeline; empty if it can."""
    at: int = 0
    """Number of records that were taken."""

    def skip_to(self, offset: int) -> None:
        """Skip the records before this offset."""
        self.at = max(self.at, bisect_left(self.offsets, offset))

    def fitting(self, records_max: int, bytes_max: int, end: int | None) -> int:
        """Number of remaining records before the offset `end` and within the limits."""
        taken = self.ends[self.at - 1] if self.at else 0
        stop = bisect_left(self.ends, taken + bytes_max + 1, self.at, min(self.at + records_max, len(self.ends)))
        return max(0, (stop if end is None else bisect_left(self.offsets, end, self.at, stop)) - self.at)

    def size_of(self, records: int) -> int:
        """Bytes of the next `records` records."""
        return self.ends[self.at + records - 1] - (self.ends[self.at - 1] if self.at else 0)


class RunBatch:
    """A batch that is being built."""

    def __init__(self, now_us: int) -> None:
        self._now_us = now_us
        self._values: list[bytes] = []
        self._times = array("q")
        self._keys: list[tuple[bytes, ...]] = []
        self._headers: list[Mapping[str, bytes]] = []
        self._keyed = self._headed = False
        self.size = 0

    def __len__(self) -> int:
        return len(self._values)

    def add(self, run: Run, records: int) -> None:
        """Take the next `records` records of a run."""
        part = slice(run.at, run.at + records)
        self.size += run.size_of(records)
        self._values += run.values[part]
        self._times.extend([self._now_us if time_us is None else time_us for time_us in run.times[part]])
        self._keyed |= run.keys is not None
        self._keys += run.keys[part] if run.keys is not None else [()] * records
        self._headed |= run.headers is not None
        self._headers += run.headers[part] if run.headers is not None else [_NO_HEADERS] * records
        run.at += records

    def frame(self) -> Frame | None:
        """The frame of the taken records; None if there are none."""
        if not self._values:
            return None
        return build_frame(
            self._values,
            self._times,
            ingest_time_us=self._now_us,
            keys=self._keys if self._keyed else None,
            headers=self._headers if self._headed else None,
        )


def runs_of(messages: Sequence[Message], key_mapping: KeyMapping = text_of_key) -> Iterator[Run]:
    """Messages without errors, in runs. A record that is invalid has its own run."""
    if not messages:
        return
    topics = [topic or "" for topic in map(Message.topic, messages)]
    partitions = [partition or 0 for partition in map(Message.partition, messages)]
    borders = [0, len(messages)]
    if partitions.count(partitions[0]) < len(messages) or topics.count(topics[0]) < len(messages):
        places = list(zip(topics, partitions, strict=True))
        borders[1:1] = [row for row, (one, next_one) in enumerate(pairwise(places), 1) if one != next_one]
    for start, stop in pairwise(borders):
        yield from _of_one((topics[start], partitions[start]), messages[start:stop], key_mapping)


def _of_one(split: Split, messages: Sequence[Message], key_mapping: KeyMapping) -> Iterator[Run]:
    """The records of one partition."""
    values = [value or b"" for value in map(Message.value, messages)]
    given = list(map(Message.key, messages))
    keys = None if given.count(None) == len(given) else [_keys(key, key_mapping) for key in given]
    named = list(map(Message.headers, messages))
    headers = [_headers(of_one) for of_one in named] if any(named) else None
    sizes = [len(value) + _RECORD_OVERHEAD_BYTES for value in values]
    if keys is not None:
        sizes = [size + len(key or b"") for size, key in zip(sizes, given, strict=True)]
    if headers is not None:
        pairs = (sum(len(name) + len(text) for name, text in of_one.items()) for of_one in headers)
        sizes = [size + more for size, more in zip(sizes, pairs, strict=True)]
    offsets = [offset or 0 for offset in map(Message.offset, messages)]
    stamps = list(map(Message.timestamp, messages))
    times = _times(stamps)
    if max(sizes) <= RECORD_BYTES_MAX and times is not None:
        yield Run(split, offsets, values, keys, headers, times, list(accumulate(sizes)))
        return
    # So rare that it may be slow.
    for row, size in enumerate(sizes):
        one = slice(row, row + 1)
        of_keys, of_headers = keys and keys[one], headers and headers[one]
        of_times, fault = _times(stamps[one]), ""
        if size > RECORD_BYTES_MAX:
            fault = f"the record has {size} bytes; the limit is {RECORD_BYTES_MAX}"
        elif of_times is None:
            _, fault = event_time(EPOCH_MS, stamps[row][1])
        yield Run(split, offsets[one], values[one], of_keys, of_headers, of_times or (), [size], fault)


def _times(stamps: Sequence[tuple[int, int]]) -> Sequence[int | None] | None:
    """Of each record, by the type of its timestamp and milliseconds; None if one is not an event time."""
    scaled: Sequence[int | None] | None = scaled_ms([time_ms if kind else 0 for kind, time_ms in stamps])
    if scaled is None or all(map(itemgetter(0), stamps)):
        return scaled
    return [time_us if kind else None for (kind, _), time_us in zip(stamps, scaled, strict=True)]


def _keys(key: str | bytes | None, key_mapping: KeyMapping) -> tuple[bytes, ...]:
    return () if key is None else (key_mapping(key.encode() if isinstance(key, str) else key),)


def _headers(headers: Any) -> Mapping[str, bytes]:
    """If a header is repeated, the last one counts."""
    pairs = headers.items() if isinstance(headers, dict) else headers or ()
    return {name: text.encode() if isinstance(text, str) else text or b"" for name, text in pairs}
