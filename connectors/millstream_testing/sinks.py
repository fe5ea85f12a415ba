"""The suite for sinks.

Above it: tests of a connector. Below it: the connector, found by its name.
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from millstream.errors import DamageError, FencedError, MillstreamError, RetryLaterError, UserError
from millstream.json_parser import parse_json
from millstream.record import Position
from millstream.spec.connectors import GuaranteeId
from millstream.spec.sinks import FallbackSink
from millstream_connectors.opening_sinks import open_sink
from millstream_testing.checks import check
from millstream_testing.frames import ALL, FRAMES, frame_of, offered, owner_of
from millstream_testing.killed import Moment, die_writing
from millstream_testing.programs import program_of
from millstream_testing.rerouted import LATE_S, LOST_ANSWERS, counted_turns, open_path
from millstream_writer.connector import SinkOwner
from millstream_writer.sink import Guarantee, SinkLane

_LIMIT_S = 60.0
_UNUSED = "`rerouted` returned settings with which nothing went through the path"


class SinkConformance(ABC):
    """Inherit from this class, and define the target and what has arrived in it."""

    away_s = 60.0
    """How long the target is away in the test in which it is stopped. A client may give up after a time of its own."""
    _is_exact = False
    """Whether the target of the lane that was opened last keeps positions."""

    @abstractmethod
    def settings(self, place: Path) -> Mapping[str, Any]:
        """The contents of `sink:`, such as `{"sqlite": {"path": "out.db"}}`. Called for each test, with an empty
        directory that relative paths start from. It creates what the sink needs, such as an empty table."""

    @abstractmethod
    def arrived(self, place: Path) -> Sequence[int]:
        """The member `n` of each record that a reader of the target sees, in the target's own order. Records that the
        target itself recognizes as duplicates appear once."""

    def stop_target(self, place: Path) -> bool:
        """Make the target unavailable, as a kill of its server does. Returns False if that is not possible; the test is
        then skipped."""
        return False

    def start_target(self, place: Path) -> None:
        """Start the target again, with its former contents."""
        raise NotImplementedError("a suite that can stop its target must also start it")

    def rerouted(self, settings: Mapping[str, Any], reroute: Callable[[int], int]) -> Mapping[str, Any] | None:
        """The same settings for a target at `reroute(port)` instead of its own port on this machine. None if the target
        has no port; the tests of lost answers and of a slow target are then skipped."""
        return None

    def refused_settings(self, place: Path) -> tuple[Mapping[str, Any], str] | None:
        """Settings with credentials that the target refuses, and a secret in them that no message may show; None if
        there are none."""
        return None

    # The tests

    def test_the_settings_are_read_and_promise_something(self) -> None:
        """The guarantee has a sentence; an unknown field is a problem."""
        with self._place() as (_, settings):
            spec = FallbackSink.model_validate(dict(settings))
            check(spec.promise().sentence, "the guarantee has no sentence")
            (kind,) = settings
            try:
                FallbackSink.model_validate({kind: {**settings[kind], "noSuchField": 1}})
            except ValueError as error:
                check("noSuchField" in str(error), f"the problem does not name the field: {error}")
            else:
                raise AssertionError("an unknown field was accepted")

    def test_records_arrive_in_order_and_are_durable_after_a_flush(self) -> None:
        """After the flush, `durable` is None or the end."""

        async def run(place: Path, settings: Mapping[str, Any]) -> None:
            async with self._open(settings, owner_of(place, 1)) as lane:
                await self._write(lane, range(1, FRAMES + 1))
                check(lane.durable in (None, Position(FRAMES)), f"the lane reports {lane.durable} as durable")

        self._run(run)

    def test_a_write_without_records_moves_it_on(self) -> None:
        """A batch may have no records for this sink."""

        async def run(place: Path, settings: Mapping[str, Any]) -> None:
            async with self._open(settings, owner_of(place, 1)) as lane:
                result = await lane.write([], Position(3))
                await lane.flush()
                check(not any(result.failures), f"records were refused: {result.failures}")
                check(lane.durable in (None, Position(3)), f"the lane reports {lane.durable} as durable")

        self._run(run, expected=())

    def test_an_owner_goes_on_from_a_mark_that_is_behind_the_target(self) -> None:
        """The mark is written after the target, so it may be behind. Repeated records are left out, from any mark."""

        async def run(place: Path, settings: Mapping[str, Any]) -> None:
            async with self._open(settings, owner_of(place, 1)) as lane:
                await self._write(lane, range(1, 4))
            for epoch, mark in ((2, 0), (3, 2), (4, 3)):
                async with self._open(settings, owner_of(place, epoch, start=Position(mark))) as lane:
                    await self._write(lane, range(mark + 1, min(FRAMES, mark + epoch) + 1))
            async with self._open(settings, owner_of(place, 5, start=Position(4))) as lane:
                await self._write(lane, range(5, FRAMES + 1))

        self._run(run)

    def test_of_two_owners_the_older_has_no_effect(self) -> None:
        """The older owner ends with `FencedError`, however late it resumes."""

        async def run(place: Path, settings: Mapping[str, Any]) -> None:
            async with self._open(settings, owner_of(place, 1)) as old:
                if old.guarantee is not Guarantee.EXACTLY_ONCE_TRANSACTIONAL:
                    await self._write(old, range(1, FRAMES + 1))
                    return
                await self._write(old, (1,))
                async with self._open(settings, owner_of(place, 2, start=Position(1))) as new:
                    await self._refuses(FencedError, lambda: self._write(old, (2,)))
                    await self._write(new, range(2, FRAMES + 1))
                    await self._refuses(FencedError, lambda: self._opened_and_closed(settings, owner_of(place, 1)))

        self._run(run)

    def test_a_target_of_another_run_is_refused(self) -> None:
        """The positions of another run do not refer to the records of this run."""

        async def run(place: Path, settings: Mapping[str, Any]) -> None:
            async with self._open(settings, owner_of(place, 1)) as lane:
                await self._write(lane, range(1, FRAMES + 1))
                exact = lane.guarantee is Guarantee.EXACTLY_ONCE_TRANSACTIONAL
            if exact:
                other = owner_of(place, 1, run="second")
                await self._refuses((DamageError, UserError), lambda: self._opened_and_closed(settings, other))

        self._run(run)

    def test_killed_at_calls_each_record_counts_once(self) -> None:
        """A lane dies before, during and after calls; the next lane writes everything again."""
        moments: Sequence[tuple[int, Moment]] = [
            (1, "before"),
            *((call, "inside") for call in (1, 3, 5, 6, 7)),
            (8, "after"),
        ]
        for call, moment in moments:

            async def run(place: Path, settings: Mapping[str, Any]) -> None:
                async with self._open(settings, owner_of(place, 2)) as lane:
                    await self._write(lane, range(1, FRAMES + 1))

            with self._place() as (place, settings):
                die_writing(settings, place, call, moment)
                asyncio.run(run(place, settings))
                self._check(place, settings, ALL, f"killed {moment} call {call}")

    def test_a_write_that_is_given_up_leaves_nothing_half_done(self) -> None:
        """The lane is closed during a write, as when its vertex is stopped."""

        async def run(place: Path, settings: Mapping[str, Any]) -> None:
            async with self._open(settings, owner_of(place, 1)) as lane:
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.002):
                        await self._write(lane, range(1, FRAMES + 1))
            async with self._open(settings, owner_of(place, 2)) as lane:
                await self._write(lane, range(1, FRAMES + 1))

        self._run(run)

    def test_a_target_that_is_away_is_waited_for(self) -> None:
        """A write raises `RetryLaterError` until the target is available again; nothing is lost or repeated."""
        with self._place() as (place, settings):

            async def run() -> None:
                async with self._open(settings, owner_of(place, 1)) as lane:
                    await self._write(lane, range(1, 3))
                    if not self.stop_target(place):
                        await self._write(lane, range(3, FRAMES + 1))
                        return
                    try:
                        await self._refuses(RetryLaterError, lambda: self._write_once(lane, 3))
                        await asyncio.sleep(self.away_s)
                    finally:
                        self.start_target(place)
                    await self._write(lane, range(3, FRAMES + 1))

            asyncio.run(run())
            self._check(place, settings, ALL, "stopped and started")

    def test_an_answer_that_is_lost_changes_nothing(self) -> None:
        """The target has done what it was asked to, and the lane does not hear of it: each answer in turn is lost,
        together with its connection."""
        for number in LOST_ANSWERS:
            with self._place() as (place, settings), open_path(loses=number) as path:
                rerouted = self.rerouted(settings, path.reroute)
                if rerouted is None:
                    return
                asyncio.run(self._write_until_done(rerouted, place))
                check(path.answers, _UNUSED)
                self._check(place, settings, ALL, f"answer {number} was lost")
                if not path.lost:
                    return

    def test_a_slow_target_is_waited_for_while_others_work(self) -> None:
        """Each answer is late. The lanes of a process share its event loop, so nothing may block it meanwhile."""
        with self._place() as (place, settings), open_path(late_s=LATE_S) as path:
            rerouted = self.rerouted(settings, path.reroute)
            if rerouted is None:
                return

            async def run() -> int:
                async with counted_turns() as turns:
                    await self._write_until_done(rerouted, place)
                return turns.count

            turns = asyncio.run(run())
            check(path.answers, _UNUSED)
            self._check(place, settings, ALL, "slow")
            check(turns > path.answers, f"the event loop had {turns} turns during {path.answers} late answers")

    def test_refused_credentials_are_said_without_the_secret(self) -> None:
        """The user has to change the credentials, so this is a `UserError`."""
        with self._place() as (place, _):
            refused = self.refused_settings(place)
            if refused is None:
                return
            settings, secret = refused

            async def run() -> None:
                async def open_and_write() -> None:
                    async with open_sink(FallbackSink.model_validate(dict(settings)), owner_of(place, 1)) as lane:
                        await lane.write([frame_of(1)], Position(1))
                        await lane.flush()

                error = await self._refuses(UserError, open_and_write)
                check(secret not in str(error), "a message contains the secret")

            asyncio.run(run())

    # Helpers of the tests

    @asynccontextmanager
    async def _open(self, settings: Mapping[str, Any], owner: SinkOwner) -> AsyncIterator[SinkLane]:
        spec = FallbackSink.model_validate(dict(settings))
        async with (
            asyncio.timeout(_LIMIT_S + self.away_s),
            program_of(spec, owner.base_dir) as client,
            open_sink(spec, replace(owner, client=client)) as lane,
        ):
            self._is_exact = lane.guarantee is Guarantee.EXACTLY_ONCE_TRANSACTIONAL
            yield lane

    async def _write_until_done(self, settings: Mapping[str, Any], place: Path) -> None:
        """Writes everything as a vertex does, which opens its lane again while the target is away."""
        async with asyncio.timeout(_LIMIT_S):
            while True:
                try:
                    async with self._open(settings, owner_of(place, 1)) as lane:
                        await self._write(lane, range(1, FRAMES + 1))
                        return
                except RetryLaterError:
                    await asyncio.sleep(0.02)

    async def _opened_and_closed(self, settings: Mapping[str, Any], owner: SinkOwner) -> None:
        async with self._open(settings, owner):
            pass

    async def _write(self, lane: SinkLane, sequences: Iterable[int]) -> None:
        """Writes as a delivery does: it repeats a write until the target accepts it."""
        for frame, end in offered(sequences):
            while True:
                try:
                    result = await lane.write([frame], end)
                    break
                except RetryLaterError:
                    await asyncio.sleep(0.02)
            check(not any(result.failures), f"records were refused: {result.failures}")
            await lane.tick()
        while True:
            try:
                await lane.flush()
                return
            except RetryLaterError:
                await asyncio.sleep(0.02)

    async def _write_once(self, lane: SinkLane, sequence: int) -> None:
        await lane.write([frame_of(sequence)], Position(sequence))
        await lane.flush()

    async def _refuses(
        self,
        kinds: type[MillstreamError] | tuple[type[MillstreamError], ...],
        call: Callable[[], Coroutine[Any, Any, object]],
    ) -> MillstreamError:
        try:
            await call()
        except kinds as error:
            check(str(error), "the message is empty")
            return error
        names = [kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,))]
        raise AssertionError(f"no {' or '.join(names)} was raised")

    def _exactly_once(self, settings: Mapping[str, Any]) -> bool:
        promise = FallbackSink.model_validate(dict(settings)).promise()
        if promise.id is GuaranteeId.BY_FUNCTION:
            return self._is_exact
        return promise.holds("exactlyOnce")

    def _check(self, place: Path, settings: Mapping[str, Any], expected: Iterable[int], when: str) -> None:
        found, wanted = list(self.arrived(place)), list(expected)
        if self._exactly_once(settings):
            check(found == wanted, f"{when}: {_difference(found, wanted)}")
        else:
            check(sorted(set(found)) == wanted, f"{when}: {_difference(sorted(set(found)), wanted)}")

    def _run(
        self,
        run: Callable[[Path, Mapping[str, Any]], Coroutine[Any, Any, None]],
        *,
        expected: Iterable[int] = ALL,
    ) -> None:
        with self._place() as (place, settings):
            asyncio.run(run(place, settings))
            self._check(place, settings, expected, "at the end")

    def _place(self) -> _Place:
        return _Place(self)


class _Place:
    """An empty directory, and the settings for it."""

    def __init__(self, suite: SinkConformance) -> None:
        self._suite = suite
        self._directory = TemporaryDirectory(prefix="millstream-conformance-")

    def __enter__(self) -> tuple[Path, Mapping[str, Any]]:
        place = Path(self._directory.__enter__())
        return place, parse_json(json.dumps(dict(self._suite.settings(place))))

    def __exit__(self, *_: object) -> None:
        self._directory.cleanup()


def _difference(found: Sequence[int], wanted: Sequence[int]) -> str:
    missing = [number for number in wanted if number not in found]
    twice = sorted({number for number in found if list(found).count(number) > 1})
    return f"missing {missing}, duplicate {twice}, in the order {list(found)[:100]}"
