"""The suite for sinks.

Above it: tests of a connector. Below it: the connector, found by its name.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from millstream.errors import DamageError, FencedError, RetryLaterError, UserError
from millstream.record import Position
from millstream.spec.connectors import GuaranteeId
from millstream.spec.sinks import FallbackSink
from millstream_connectors.opening_sinks import open_sink
from millstream_testing.checks import check, repeated
from millstream_testing.frames import ALL, FRAMES, frame_of, offered, owner_of
from millstream_testing.killed import Moment, die_writing
from millstream_testing.programs import program_of
from millstream_testing.suite import LIMIT_S, Conformance
from millstream_writer.connector import SinkOwner
from millstream_writer.sink import Guarantee, SinkLane


class SinkConformance(Conformance):
    """Inherit from this class, and define the target and what has arrived in it."""

    deaths: ClassVar[Sequence[tuple[int, Moment]]] = (
        (1, "before"),
        (3, "inside"),
        (8, "after"),
        (1, "inside"),
        (5, "inside"),
        (6, "inside"),
        (7, "inside"),
    )
    """The calls in which a lane dies while it writes, each in a target of its own."""
    _model = FallbackSink
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

    # The tests

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
        for call, moment in self.deaths:

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

    # Helpers of the tests

    @asynccontextmanager
    async def _open(self, settings: Mapping[str, Any], owner: SinkOwner) -> AsyncIterator[SinkLane]:
        spec = FallbackSink.model_validate(dict(settings))
        async with (
            asyncio.timeout(LIMIT_S + self.away_s),
            program_of(spec, owner.base_dir) as client,
            open_sink(spec, replace(owner, client=client)) as lane,
        ):
            self._is_exact = lane.guarantee is Guarantee.EXACTLY_ONCE_TRANSACTIONAL
            yield lane

    async def _use(self, settings: Mapping[str, Any], place: Path) -> Sequence[bytes]:
        async def write() -> None:
            async with self._open(settings, owner_of(place, 1)) as lane:
                await self._write(lane, range(1, FRAMES + 1))

        async with asyncio.timeout(LIMIT_S):
            await repeated(write)
        return ()

    async def _use_once(self, settings: Mapping[str, Any], place: Path) -> None:
        async with self._open(settings, owner_of(place, 1)) as lane:
            await self._write_once(lane, 1)

    def _check_used(self, place: Path, settings: Mapping[str, Any], values: Sequence[bytes], when: str) -> None:
        self._check(place, settings, ALL, when)

    async def _opened_and_closed(self, settings: Mapping[str, Any], owner: SinkOwner) -> None:
        async with self._open(settings, owner):
            pass

    async def _write(self, lane: SinkLane, sequences: Iterable[int]) -> None:
        """Writes as a delivery does: it repeats a write until the target accepts it."""
        for frame, end in offered(sequences):
            result = await repeated(partial(lane.write, [frame], end))
            check(not any(result.failures), f"records were refused: {result.failures}")
            await lane.tick()
        await repeated(lane.flush)

    async def _write_once(self, lane: SinkLane, sequence: int) -> None:
        await lane.write([frame_of(sequence)], Position(sequence))
        await lane.flush()

    def _exactly_once(self, settings: Mapping[str, Any]) -> bool:
        promise = FallbackSink.model_validate(dict(settings)).promise()
        return self._is_exact if promise.id is GuaranteeId.BY_FUNCTION else promise.holds("exactlyOnce")

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


def _difference(found: Sequence[int], wanted: Sequence[int]) -> str:
    missing = [number for number in wanted if number not in found]
    twice = sorted({number for number in found if list(found).count(number) > 1})
    return f"missing {missing}, duplicate {twice}, in the order {list(found)[:100]}"
