"""The suite for sources.

Above it: tests of a connector. Below it: the connector, found by its name.
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from millstream.clock import SystemClock
from millstream.errors import MillstreamError, RetryLaterError, UserError
from millstream.json_parser import parse_json
from millstream.record import SOURCE_INPUT, LaneId
from millstream.spec.connectors import GuaranteeId
from millstream.spec.sources import Source
from millstream_connectors.opening_sources import open_source
from millstream_reader.source import SourceBatch, SourceLane, is_held_up
from millstream_testing.checks import check
from millstream_testing.rerouted import LATE_S, LOST_ANSWERS, counted_turns, open_path

_LIMIT_S = 60.0
_UNUSED = "`rerouted` returned settings with which nothing went through the path"
_READ_S = 0.2
_QUIET_READS = 5
"""After this many reads without a record, a source that does not end has returned all of its records."""


class SourceConformance(ABC):
    """Inherit from this class, and define what to read and which records exist."""

    partitions = 1
    """Number of lanes that share the source."""
    away_s = 60.0
    """How long the system is away in the test in which it is stopped. A client may give up after a time of its own."""

    @abstractmethod
    def settings(self, place: Path) -> Mapping[str, Any]:
        """The contents of `source:`, such as `{"countdown": {"start": 100}}`. Called for each test, with an empty
        directory that relative paths start from. It creates the records, about a hundred."""

    @abstractmethod
    def expected(self, place: Path) -> Sequence[bytes]:
        """The values of all records, in any order between lanes."""

    def stop_target(self, place: Path) -> bool:
        """Make the system unavailable, as a kill of its server does. Returns False if that is not possible; the test is
        then skipped."""
        return False

    def start_target(self, place: Path) -> None:
        """Start the system again, with its former contents."""
        raise NotImplementedError("what stops the target starts it")

    def rerouted(self, settings: Mapping[str, Any], reroute: Callable[[int], int]) -> Mapping[str, Any] | None:
        """The same settings for a system at `reroute(port)` instead of its own port on this machine. None if the system
        has no port; the tests of lost answers and of a slow system are then skipped."""
        return None

    def refused_settings(self, place: Path) -> tuple[Mapping[str, Any], str] | None:
        """Settings with credentials that the system refuses, and a secret in them that no message may show; None if
        there are none."""
        return None

    # The tests

    def test_the_settings_are_read_and_promise_something(self) -> None:
        """The guarantee has a sentence; an unknown field is a problem."""
        with self._place() as (_, settings):
            check(Source.model_validate(dict(settings)).promise().sentence, "the guarantee has no sentence")
            (kind,) = settings
            try:
                Source.model_validate({kind: {**settings[kind], "noSuchField": 1}})
            except ValueError as error:
                check("noSuchField" in str(error), f"the problem does not name the field: {error}")
            else:
                raise AssertionError("an unknown field was accepted")

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
                if not replayable and _is_lost(settings):
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
                try:
                    async with self._open(place, settings, position) as lane:
                        await lane.read(10, 1 << 20, _READ_S)
                except MillstreamError as error:
                    check(str(error), "the message is empty")
                else:
                    raise AssertionError(f"the position {position!r} was accepted")

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

    def test_an_answer_that_is_lost_changes_nothing(self) -> None:
        """Each answer of the system in turn is lost, together with its connection. No record is lost or repeated."""
        for number in LOST_ANSWERS:
            with self._place() as (place, settings), open_path(loses=number) as path:
                rerouted = self.rerouted(settings, path.reroute)
                if rerouted is None or _is_lost(settings):
                    return
                asyncio.run(self._read_until_done(rerouted, place))
                check(path.answers, _UNUSED)
                if not path.lost:
                    return

    def test_a_slow_system_is_waited_for_while_others_work(self) -> None:
        """Each answer is late. The lanes of a process share its event loop, so nothing may block it meanwhile."""
        with self._place() as (place, settings), open_path(late_s=LATE_S) as path:
            rerouted = self.rerouted(settings, path.reroute)
            if rerouted is None:
                return

            async def run() -> int:
                async with counted_turns() as turns:
                    await self._read_until_done(rerouted, place)
                return turns.count

            turns = asyncio.run(run())
            check(path.answers, _UNUSED)
            check(turns > path.answers, f"the event loop had {turns} turns during {path.answers} late answers")

    def test_refused_credentials_are_said_without_the_secret(self) -> None:
        """The user has to change the credentials, so this is a `UserError`."""
        with self._place() as (place, _):
            refused = self.refused_settings(place)
            if refused is None:
                return
            settings, secret = refused

            async def run() -> None:
                try:
                    async with self._open(place, settings) as lane:
                        await lane.read(1, 1 << 20, _READ_S)
                except UserError as error:
                    check(secret not in str(error), "a message contains the secret")
                else:
                    raise AssertionError("no UserError was raised")

            asyncio.run(run())

    # Helpers of the tests

    @asynccontextmanager
    async def _open(
        self, place: Path, settings: Mapping[str, Any], position: bytes = b"", *, partition: int = 0
    ) -> AsyncIterator[SourceLane]:
        source = Source.model_validate(dict(settings))
        lane = LaneId("in", SOURCE_INPUT, partition)
        opening = open_source(source, lane, self.partitions, position, base_dir=place, clock=SystemClock())
        async with asyncio.timeout(_LIMIT_S + self.away_s), opening as opened:
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
            enough = 1 if self.partitions == 1 else None
            batches += await self._read_all(lane, records_max=1000, enough=enough)
            if self.partitions > 1:
                break
        while not batches[-1].ended and is_held_up(lane):
            batches.append(await lane.read(5, 1 << 20, _READ_S))

    async def _read_until_done(self, settings: Mapping[str, Any], place: Path) -> None:
        """Reads everything as a vertex does, which opens its lane again while the system is away."""
        batches: list[SourceBatch] = []
        async with asyncio.timeout(_LIMIT_S):
            while True:
                position = batches[-1].position if batches else b""
                try:
                    async with self._open(place, settings, position) as lane:
                        while not batches:
                            with suppress(RetryLaterError):
                                batches.append(await lane.read(5, 1 << 20, 5.0))
                        await self._read_the_rest(lane, place, batches)
                        break
                except RetryLaterError:
                    await asyncio.sleep(0.02)
        if self.partitions == 1:
            self._check(_values(batches, lane), place)

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

    def _run(self, run: Any) -> None:
        with self._place() as (place, settings):
            coroutine: Coroutine[Any, Any, None] = run(place, settings)
            asyncio.run(coroutine)

    def _place(self) -> _Place:
        return _Place(self)


class _Place:
    """An empty directory, and the settings for it."""

    def __init__(self, suite: SourceConformance) -> None:
        self._suite = suite
        self._directory = TemporaryDirectory(prefix="millstream-conformance-")

    def __enter__(self) -> tuple[Path, Mapping[str, Any]]:
        place = Path(self._directory.__enter__())
        return place, parse_json(json.dumps(dict(self._suite.settings(place))))

    def __exit__(self, *_: object) -> None:
        self._directory.cleanup()


def _count(batches: Sequence[SourceBatch]) -> int:
    return sum(batch.frame.records for batch in batches if batch.frame is not None)


def _is_lost(settings: Mapping[str, Any]) -> bool:
    """Whether a record counts at most once, so that it has no id by which a repetition could be recognized."""
    return Source.model_validate(dict(settings)).promise().id is GuaranteeId.AT_MOST_ONCE


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
