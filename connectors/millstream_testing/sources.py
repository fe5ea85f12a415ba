"""The suite for sources.

Above it: tests of a connector. Below it: the connector, found by its name.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from millstream.clock import SystemClock
from millstream.errors import MillstreamError, RetryLaterError
from millstream.record import SOURCE_INPUT, LaneId
from millstream.spec.connectors import GuaranteeId
from millstream.spec.sources import Source
from millstream_connectors.opening_sources import open_source
from millstream_reader.source import SourceBatch, SourceLane, is_held_up
from millstream_testing.checks import check, repeated
from millstream_testing.suite import LIMIT_S, Conformance

_READ_S = 0.2
_QUIET_READS = 5
"""After this many reads without a record, a source that does not end has returned all of its records."""


class SourceConformance(Conformance):
    """Inherit from this class, and define what to read and which records exist."""

    partitions = 1
    """Number of lanes that share the source."""
    _model = Source

    @abstractmethod
    def settings(self, place: Path) -> Mapping[str, Any]:
        """The contents of `source:`, such as `{"countdown": {"start": 100}}`. Called for each test, with an empty
        directory that relative paths start from. It creates the records, about a hundred."""

    @abstractmethod
    def expected(self, place: Path) -> Sequence[bytes]:
        """The values of all records, in any order between lanes."""

    # The tests

    def test_all_records_are_read_within_the_limits(self) -> None:
        """All lanes together read each record once."""

        async def run(place: Path, settings: Mapping[str, Any]) -> None:
            values: list[bytes] = []
            for partition in range(self.partitions):
                async with self._open(place, settings, partition=partition) as lane:
                    values += _values(await self._read_all(lane, records_max=7))
            self._check(values, place)

        self._run(run)

    def test_reading_again_from_any_position_gives_the_rest_once(self) -> None:
        """A position is committed with the records before it, so a lane continues there after a crash. A source that
        cannot go back gives an id to each record instead, unless it only promises at-most-once."""

        async def run(place: Path, settings: Mapping[str, Any]) -> None:
            for partition in range(self.partitions):
                async with self._open(place, settings, partition=partition) as lane:
                    replayable = lane.replayable
                    batches = await self._read_all(lane, records_max=13)
                if not replayable and self._may_lose(settings):
                    return
                if not replayable:
                    check(
                        all(batch.frame is None or batch.frame.ids_column for batch in batches), "records have no ids"
                    )
                    return
                whole = _values(batches)
                done = 0
                for batch in batches:
                    done += batch.frame.records if batch.frame is not None else 0
                    if batch.frame is None and not batch.ended:
                        continue
                    async with self._open(place, settings, batch.position, partition=partition) as lane:
                        rest = _values(await self._read_all(lane, records_max=1000))
                    check(
                        rest == whole[done:],
                        f"from {batch.position!r} it returns {len(rest)} of {len(whole) - done} records",
                    )

        self._run(run)

    def test_a_position_that_is_none_of_its_own_is_refused(self) -> None:
        """The error says that the position is unreadable or belongs to something else. The source never starts over
        silently."""

        async def run(place: Path, settings: Mapping[str, Any]) -> None:
            async with self._open(place, settings) as lane:
                if not lane.replayable:
                    return
            for position in (b"\xff\x00", b'{"source": "another", "version": 1, "partitions": 1}'):
                await self._refuses(MillstreamError, partial(self._use_once, settings, place, position))

        self._run(run)

    def test_a_lane_that_drains_ends_what_it_began(self) -> None:
        """After `drain`, the lane accepts nothing new, and reads end soon."""

        async def run(place: Path, settings: Mapping[str, Any]) -> None:
            async with self._open(place, settings) as lane:
                first = await lane.read(3, 1 << 20, 5.0)
                await lane.drain()
                batches = [first]
                for _ in range(_QUIET_READS):
                    batches.append(await lane.read(1000, 1 << 24, _READ_S))
                    if batches[-1].ended:
                        break
                drained = _values(batches)
            if not lane.replayable:
                return
            async with self._open(place, settings, batches[-1].position) as lane:
                rest = _values(await self._read_all(lane, records_max=1000))
            if self.partitions == 1:
                self._check(drained + rest, place)

        self._run(run)

    def test_a_system_that_is_away_is_waited_for(self) -> None:
        """Reads return nothing until the system is available again, and the lane says that it is held up, unless it
        raises `RetryLaterError`: its source is not silent. Nothing is lost or repeated."""
        with self._place() as (place, settings):

            async def run() -> None:
                async with self._open(place, settings) as lane:
                    batches = [await lane.read(5, 1 << 20, 5.0)]
                    if self.stop_target(place):
                        try:
                            batches += await self._read_until_held_up(lane)
                            await asyncio.sleep(self.away_s)
                        finally:
                            self.start_target(place)
                    await self._read_the_rest(lane, place, batches)
                if self.partitions == 1:
                    self._check(_values(batches, lane), place)

            asyncio.run(run())

    # Helpers of the tests

    @asynccontextmanager
    async def _open(
        self, place: Path, settings: Mapping[str, Any], position: bytes = b"", *, partition: int = 0
    ) -> AsyncIterator[SourceLane]:
        source = Source.model_validate(dict(settings))
        lane = LaneId("in", SOURCE_INPUT, partition)
        async with (
            asyncio.timeout(LIMIT_S + self.away_s),
            open_source(source, lane, self.partitions, position, base_dir=place, clock=SystemClock()) as opened,
        ):
            yield opened

    async def _read_all(self, lane: SourceLane, *, records_max: int, enough: int | None = None) -> list[SourceBatch]:
        """Reads until the lane has ended, or has been quiet for a while and has returned at least `enough` records."""
        batches: list[SourceBatch] = []
        quiet = 0
        while (not batches or not batches[-1].ended) and (quiet < _QUIET_READS or (enough or 0) > _count(batches)):
            batch = await lane.read(records_max, 1 << 20, _READ_S)
            check(batch.frame is None or 1 <= batch.frame.records <= records_max, "more records than were asked for")
            quiet = quiet + 1 if batch.frame is None else 0
            batches.append(batch)
        if batches[-1].ended:
            last = await lane.read(records_max, 1 << 20, _READ_S)
            check(last.frame is None, "it returned records after its end")
            check(last.ended, "it continued after its end")
        return batches

    async def _read_the_rest(self, lane: SourceLane, place: Path, batches: list[SourceBatch]) -> None:
        """Adds what follows, until all records are there or the lane has ended."""
        wanted = len(self.expected(place))
        while not batches[-1].ended and len(_values(batches, lane)) < wanted:
            # One of several lanes has only some of the records.
            batches += await self._read_all(lane, records_max=1000, enough=1 if self.partitions == 1 else None)
            if self.partitions > 1:
                break
        while not batches[-1].ended and is_held_up(lane):
            batches.append(await lane.read(5, 1 << 20, _READ_S))

    async def _use_once(self, settings: Mapping[str, Any], place: Path, position: bytes = b"") -> None:
        async with self._open(place, settings, position) as lane:
            await lane.read(1, 1 << 20, _READ_S)

    def _may_lose(self, settings: Mapping[str, Any]) -> bool:
        """Whether a record counts at most once, so that it has no id by which a repetition could be recognized."""
        return Source.model_validate(dict(settings)).promise().id is GuaranteeId.AT_MOST_ONCE

    async def _use(self, settings: Mapping[str, Any], place: Path) -> Sequence[bytes]:
        batches: list[SourceBatch] = []

        async def read() -> list[bytes]:
            async with self._open(place, settings, batches[-1].position if batches else b"") as lane:
                if not batches:
                    batches.append(await repeated(partial(lane.read, 5, 1 << 20, 5.0)))
                await self._read_the_rest(lane, place, batches)
                return _values(batches, lane)

        async with asyncio.timeout(LIMIT_S):
            return await repeated(read)

    def _check_used(self, place: Path, settings: Mapping[str, Any], values: Sequence[bytes], when: str) -> None:
        if self.partitions == 1:
            self._check(values, place)

    async def _read_until_held_up(self, lane: SourceLane) -> list[SourceBatch]:
        """Some reads, until the lane knows that its source is away."""
        batches: list[SourceBatch] = []
        while len(batches) < 3 or not (is_held_up(lane) or batches[-1].ended):
            try:
                batches.append(await lane.read(5, 1 << 20, _READ_S))
            except RetryLaterError:
                break
        return batches

    def _check(self, values: Sequence[bytes], place: Path) -> None:
        expected = self.expected(place)
        check(sorted(values) == sorted(expected), f"it returned {len(values)} records of {len(expected)}")

    def _run(self, run: Callable[[Path, Mapping[str, Any]], Coroutine[Any, Any, None]]) -> None:
        with self._place() as (place, settings):
            asyncio.run(run(place, settings))


def _count(batches: Sequence[SourceBatch]) -> int:
    return sum(batch.frame.records for batch in batches if batch.frame is not None)


def _values(batches: Sequence[SourceBatch], lane: SourceLane | None = None) -> list[bytes]:
    """The values of all batches. If the lane cannot go back, repeated records are recognized by their ids, as in a
    vertex."""
    frames = [batch.frame for batch in batches if batch.frame is not None]
    if lane is None or lane.replayable or not all(frame.ids_column for frame in frames):
        return [value for frame in frames for value in frame.values()]
    return list(
        {
            name: value for frame in frames for name, value in zip(frame.ids() or (), frame.values(), strict=True)
        }.values()
    )
