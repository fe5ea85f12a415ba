"""The generator: numbered records, at the configured rate.

Above it: a source lane. Below it: the clock, and nothing else. It defines the record of each number: the same settings
and seed give the same values and keys from any position, and with a step the same event times.

Numbers count through the vertex: lane p of P generates p, p + P, p + 2P, ..., so the lanes share the total and the
rate, and each number is generated once. Columns are built per frame, not per record: numbers that share all but their
last four digits differ only in a suffix from a table, and one `join` writes them all.
"""

from __future__ import annotations

import asyncio
import base64
import random
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from itertools import accumulate, chain
from math import gcd
from operator import sub

from millstream.clock import MICROSECONDS, Clock
from millstream.frame import Frame
from millstream.limits import FRAME_RECORDS_MAX
from millstream.values import Values
from millstream_connectors.generator.settings import GeneratorSource
from millstream_connectors.shared.positioned_lane import PositionedLane, number_in
from millstream_reader.connector import SourceOwner
from millstream_reader.source import SourceBatch, SourceLane
from millstream_udf import columns
from millstream_udf.fields import field

_TICK_S = 0.009
"""How often a generator with a rate checks for due records: a read costs the same for any number of records."""
_BUSY_TICK_S = 0.01
_BUSY_PER_S = 10_000
"""The interval from this rate on: downstream, every read costs as much as a hundred records."""

_BLOCK_DIGITS = 4
_BLOCK = 10**_BLOCK_DIGITS
_SUFFIXES = [b"%04d}" % low for low in range(_BLOCK)]
_OFFSETS = 4
"""Columns of offsets that are remembered."""
_SHIFTS = 1 << 16
"""Number of records after which the pattern of moved event times repeats."""
_PERIOD_MAX = 1 << 15
"""Maximum number of keys that are cached, for frames to slice: half a megabyte."""
_RECORD_OVERHEAD = 12
"""Bytes of a record in the columns besides its value and key: an event time and an offset."""


@asynccontextmanager
async def open_generator(settings: GeneratorSource, owner: SourceOwner) -> AsyncIterator[SourceLane]:
    """A generator lane, whose schedule starts now at `owner.position`."""
    yield GeneratorLane(settings, owner)


class GeneratorLane(PositionedLane):
    """One lane of a generator. See `SourceLane`."""

    kind, noun = "generator", "a generator"

    def __init__(self, settings: GeneratorSource, owner: SourceOwner) -> None:
        super().__init__(owner)
        body = self._unpacked(owner.position)
        if body is None:
            body = {"made": 0, "origin_us": owner.clock.now_us()}
        with self._restoring():
            made, origin_us = number_in(body, "made"), number_in(body, "origin_us")
        first, partitions = owner.lane.partition, owner.partitions
        self._origin_us = origin_us
        self._first = first
        self._partitions = partitions
        self._made = made
        self._step_us = settings.step_us
        self._start_us = origin_us if settings.start_us is None else settings.start_us
        self._tick_s = _BUSY_TICK_S if settings.records_per_s >= _BUSY_PER_S * partitions else _TICK_S
        self._schedule = _Schedule(settings.records_per_s, first, partitions, made, owner.clock)
        self._values = _Values(settings, first, partitions)
        self._keys = _Keys(settings.key_count, first, partitions)
        self._shifts = _event_time_shifts(settings, first)
        self._newest_us = 0
        self._clock = owner.clock
        self._read_s = 0.0
        self._total: int | None = None
        if settings.records is not None:
            self._total = max(0, -(-(settings.records - first) // partitions))

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> SourceBatch:
        """The records that are due; at full speed, as many as fit."""
        if self._draining or self._ended:
            return self._batch(None)
        count = self._ready()
        pause_s = self._pause_s() if count < records_max else 0.0
        if pause_s > 0:
            await asyncio.sleep(min(pause_s, timeout_s))
            count = self._ready()
        else:
            # A source that always has records must let other tasks run.
            await asyncio.sleep(0)
        self._read_s = self._clock.monotonic_s()
        count = min(count, records_max, max(1, bytes_max // self._record_bytes))
        return self._batch(self._make(count) if count else None)

    def pending(self) -> int | None:
        return self._ready() if self._schedule.paced or self._total is not None else None

    @property
    def _ended(self) -> bool:
        return self._total is not None and self._made >= self._total

    @property
    def _record_bytes(self) -> int:
        return self._values.record_bytes_max + self._keys.record_bytes_max + _RECORD_OVERHEAD

    def _ready(self) -> int:
        due = self._schedule.due(self._made)
        return due if self._total is None else min(due, self._total - self._made)

    def _pause_s(self) -> float:
        """Wait until a read is worthwhile."""
        if not self._schedule.paced:
            return 0.0
        return max(self._schedule.wait_s(self._made), self._read_s + self._tick_s - self._clock.monotonic_s())

    def _batch(self, frame: Frame | None) -> SourceBatch:
        return SourceBatch(frame, self._packed({"made": self._made, "origin_us": self._origin_us}), self._ended)

    def _make(self, count: int) -> Frame:
        start = self._made
        ingest_us = self._schedule.wall_us(start)
        times = self._event_times(start, count)
        frame = Frame(
            records=count,
            # Without shifts, times are in order.
            event_time_min_us=min(times) if self._shifts else times[0],
            event_time_max_us=max(times) if self._shifts else times[-1],
            ingest_time_us=ingest_us,
            contents=Values(self._values.column(start, count)),
            event_times_column=columns.pack_times(times),
            keys_column=self._keys.column(start, count),
        )
        self._made += count
        return frame

    def _event_times(self, start: int, count: int) -> array[int]:
        if self._step_us is not None:
            times = self._stepped_times(self._step_us, start, count)
        else:
            times = self._schedule.due_times_us(start, count)
            # The wall clock may be set back; ordered event times stay in order.
            if times[0] < self._newest_us:
                times = array("q", [max(time_us, self._newest_us) for time_us in times])
            self._newest_us = times[-1]
        if not self._shifts:
            return times
        offset = start % _SHIFTS
        repeats = -(-(offset + count) // _SHIFTS)
        stretch = self._shifts if repeats == 1 else self._shifts * repeats
        return array("q", map(sub, times, stretch[offset : offset + count]))

    def _stepped_times(self, step_us: float, start: int, count: int) -> array[int]:
        first = self._first + start * self._partitions
        numbers = range(first, first + count * self._partitions, self._partitions)
        if not step_us.is_integer():
            return array("q", [self._start_us + int(number * step_us) for number in numbers])
        step = int(step_us)
        if step == 0:
            return array("q", [self._start_us]) * count
        begin = self._start_us + first * step
        return array("q", range(begin, begin + count * self._partitions * step, self._partitions * step))


class _Schedule:
    """When each record of a lane is due. The schedule starts at the opening and skips nothing: a record that was not
    read in time is due immediately, with its scheduled time."""

    def __init__(self, records_per_s: float, first: int, partitions: int, made: int, clock: Clock) -> None:
        self._rate = records_per_s
        self._first = first
        self._partitions = partitions
        self._made = made
        self._clock = clock
        self._start_s = clock.monotonic_s()
        self._start_us = clock.now_us()

    @property
    def paced(self) -> bool:
        return self._rate > 0

    def due(self, made: int) -> int:
        """Number of records that are due now, after `made`."""
        if not self.paced:
            return 1 << 62
        elapsed = (self._clock.monotonic_s() - self._start_s) * self._rate
        since_start = int((elapsed - self._first) // self._partitions) + 1 if elapsed >= self._first else 0
        return max(0, since_start - (made - self._made))

    def wait_s(self, made: int) -> float:
        """Seconds until the record after `made` is due."""
        if not self.paced:
            return 0.0
        return max(0.0, self._offset_s(made) - (self._clock.monotonic_s() - self._start_s))

    def wall_us(self, made: int) -> int:
        """When the record after `made` was due, by the wall clock's current setting."""
        now_us = self._clock.now_us()
        if not self.paced:
            return now_us
        late_s = self._clock.monotonic_s() - self._start_s - self._offset_s(made)
        return now_us - max(0, int(late_s * MICROSECONDS))

    def due_times_us(self, made: int, count: int) -> array[int]:
        """When `count` records after `made` are due, by the wall clock's setting at the start."""
        if not self.paced:
            return array("q", [self._clock.now_us()]) * count
        step = self._partitions * MICROSECONDS / self._rate
        first = self._start_us + self._offset_s(made) * MICROSECONDS
        return array("q", [int(first + index * step) for index in range(count)])

    def _offset_s(self, made: int) -> float:
        return ((made - self._made) * self._partitions + self._first) / self._rate


class _Values:
    """The value column: `{"lane":0,"number":   17}`, padded with spaces before the number; or a blob."""

    def __init__(self, settings: GeneratorSource, lane: int, partitions: int) -> None:
        self._first = lane
        self._partitions = partitions
        self._blob = base64.b64decode(settings.value_blob) if settings.value_blob is not None else None
        self._blob_column: tuple[int, bytes] = (0, b"")
        extra = b"" if settings.value is None else b'"value":%d,' % settings.value
        self._prefix = b'{"lane":%d,%b"number":' % (lane, extra)
        self._width = max(0, settings.msg_size - len(self._prefix) - 1)
        if self._blob is not None:
            self.record_bytes_max = len(self._blob)
        else:
            self.record_bytes_max = max(settings.msg_size, len(self._prefix) + len(str(1 << 63)) + 1)

    def column(self, start: int, count: int) -> bytes:
        """Of `count` records from the lane's record `start`."""
        if self._blob is not None:
            if self._blob_column[0] != count:
                self._blob_column = (count, columns.pack_bytes([self._blob] * count))
            return self._blob_column[1]
        number = self._first + start * self._partitions
        stop = number + count * self._partitions
        pieces: list[bytes] = []
        sizes_of_pieces: list[tuple[int, int | list[int]]] = []
        while number < stop:
            block = number // _BLOCK
            numbers = range(number, min(stop, (block + 1) * _BLOCK), self._partitions)
            piece, sizes = self._piece(block, numbers)
            pieces.append(piece)
            sizes_of_pieces.append((len(numbers), sizes))
            number += len(numbers) * self._partitions
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return b"".join([*field(1, _offsets(sizes_of_pieces)), *field(2, data)])

    def _piece(self, block: int, numbers: range) -> tuple[bytes, int | list[int]]:
        """Values of the numbers of one block, and their size, or sizes if they differ."""
        if block == 0:
            values = [b"%b%*d}" % (self._prefix, self._width, number) for number in numbers]
            return b"".join(values), list(map(len, values))
        prefix = b"%b%*d" % (self._prefix, max(0, self._width - _BLOCK_DIGITS), block)
        low = numbers.start - block * _BLOCK
        suffixes = _SUFFIXES[low : low + len(numbers) * self._partitions : self._partitions]
        return prefix + prefix.join(suffixes), len(prefix) + len(_SUFFIXES[0])


def _offsets(pieces: Sequence[tuple[int, int | list[int]]]) -> bytes:
    """The offsets of values. `pieces`: number of values and their size, or sizes if they differ."""
    records, size = sum(count for count, _ in pieces), pieces[0][1]
    if isinstance(size, int) and all(one == size for _, one in pieces):
        return _equal_offsets(records, size)
    sizes = chain.from_iterable([one] * count if isinstance(one, int) else one for count, one in pieces)
    return columns.pack_offsets(array("I", accumulate(sizes, initial=0)))


@lru_cache(_OFFSETS)
def _equal_offsets(records: int, size: int) -> bytes:
    """The offsets of values of equal size. A source without a rate makes frames of one length."""
    return columns.pack_offsets(array("I", range(0, records * size + 1, size)))


class _Keys:
    """The key column: number n has the key `key-<n modulo key count>`."""

    def __init__(self, key_count: int, lane: int, partitions: int) -> None:
        self._count = key_count
        self._first = lane
        self._partitions = partitions
        self._period = key_count // gcd(key_count, partitions) if key_count else 0
        """Records of the lane after which its keys repeat."""
        self._periods = b""
        """The keys of one period, and of one frame after it."""
        self.record_bytes_max = len(self._key(key_count)) + 4 if key_count else 0

    def column(self, start: int, count: int) -> bytes:
        """Of `count` records from the lane's record `start`; empty without keys."""
        if not self._count:
            return b""
        if self._period > _PERIOD_MAX or count > FRAME_RECORDS_MAX:
            return self._made(start, count)
        if not self._periods:
            self._periods = self._made(0, self._period + FRAME_RECORDS_MAX)
        begin = start % self._period
        return columns.slice_lists(self._periods, begin, begin + count)

    def _made(self, start: int, count: int) -> bytes:
        first = self._first + start * self._partitions
        numbers = range(first, first + count * self._partitions, self._partitions)
        return columns.pack_lists([(self._key(number % self._count),) for number in numbers])

    @staticmethod
    def _key(number: int) -> bytes:
        return b"key-%d" % number


def _event_time_shifts(settings: GeneratorSource, lane: int) -> array[int]:
    """By how much the event time of each record is moved back, for one period of the pattern; empty if none is
    moved."""
    late, swapped = round(settings.late_share * _SHIFTS), round(settings.out_of_order_share * _SHIFTS)
    late_us, swapped_us, jitter_us = map(
        _microseconds, (settings.late_by_s, settings.out_of_order_by_s, settings.jitter_s)
    )
    if not (late and late_us) and not (swapped and swapped_us) and not jitter_us:
        return array("q")
    chance = random.Random(f"{settings.seed}/{lane}")
    order = chance.sample(range(_SHIFTS), _SHIFTS)
    shifts = array("q", [0]) * _SHIFTS
    for index in order[:late]:
        shifts[index] += late_us
    for index in order[_SHIFTS - swapped :]:
        shifts[index] += swapped_us
    if jitter_us:
        for index in range(_SHIFTS):
            shifts[index] += chance.randint(0, jitter_us)
    return shifts


def _microseconds(seconds: float) -> int:
    return round(seconds * MICROSECONDS)
