"""What the suites for sources and sinks have in common: hooks that a package defines, and the tests of what is outside.

Above it: the suites. Below it: paths to a system on this machine, and the specification's models.
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from millstream.errors import MillstreamError, UserError
from millstream.json_parser import parse_json
from millstream.spec.sinks import FallbackSink
from millstream.spec.sources import Source
from millstream_testing.checks import check
from millstream_testing.rerouted import LATE_S, LOST_ANSWERS, counted_turns, open_path

LIMIT_S = 60.0
"""Time for the use of one lane, without the time for which its system is away."""
_UNUSED = "`rerouted` returned settings with which nothing went through the path"


class Conformance(ABC):
    """The base of both suites. The system is what a source reads, or the target of a sink."""

    away_s = 60.0
    """How long the system is away in the test in which it is stopped. A client may give up after a time of its own."""
    _model: ClassVar[type[Source] | type[FallbackSink]]
    """What the settings are parsed with."""

    @abstractmethod
    def settings(self, place: Path) -> Mapping[str, Any]:
        """The contents of `source:` or `sink:`. Called for each test, with an empty directory that relative paths start
        from."""

    def stop_target(self, place: Path) -> bool:
        """Make the system unavailable, as a kill of its server does. Returns False if that is not possible; the test is
        then skipped."""
        return False

    def start_target(self, place: Path) -> None:
        """Start the system again, with its former contents."""
        raise NotImplementedError("a suite that can stop its target must also start it")

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
            check(self._model.model_validate(dict(settings)).promise().sentence, "the guarantee has no sentence")
            (kind,) = settings
            try:
                self._model.model_validate({kind: {**settings[kind], "noSuchField": 1}})
            except ValueError as error:
                check("noSuchField" in str(error), f"the problem does not name the field: {error}")
            else:
                raise AssertionError("an unknown field was accepted")

    def test_an_answer_that_is_lost_changes_nothing(self) -> None:
        """The system has done what it was asked to, and the lane does not hear of it: each answer in turn is lost,
        together with its connection. No record is lost or repeated."""
        for number in LOST_ANSWERS:
            with self._place() as (place, settings), open_path(loses=number) as path:
                rerouted = self.rerouted(settings, path.reroute)
                if rerouted is None or self._may_lose(settings):
                    return
                values = asyncio.run(self._use(rerouted, place))
                check(path.answers, _UNUSED)
                self._check_used(place, settings, values, f"answer {number} was lost")
                if not path.lost:
                    return

    def test_a_slow_system_is_waited_for_while_others_work(self) -> None:
        """Each answer is late. The lanes of a process share its event loop, so nothing may block it meanwhile."""
        with self._place() as (place, settings), open_path(late_s=LATE_S) as path:
            rerouted = self.rerouted(settings, path.reroute)
            if rerouted is None:
                return

            async def run() -> tuple[Sequence[bytes], int]:
                async with counted_turns() as turns:
                    values = await self._use(rerouted, place)
                return values, turns.count

            values, turns = asyncio.run(run())
            check(path.answers, _UNUSED)
            self._check_used(place, settings, values, "slow")
            check(turns > path.answers, f"the event loop had {turns} turns during {path.answers} late answers")

    def test_refused_credentials_are_said_without_the_secret(self) -> None:
        """The user has to change the credentials, so this is a `UserError`."""
        with self._place() as (place, _):
            refused = self.refused_settings(place)
            if refused is not None:
                settings, secret = refused
                error = asyncio.run(self._refuses(UserError, lambda: self._use_once(settings, place)))
                check(secret not in str(error), "a message contains the secret")

    # Helpers of the tests

    @abstractmethod
    async def _use(self, settings: Mapping[str, Any], place: Path) -> Sequence[bytes]:
        """Pass all records through the connector as a vertex does, which opens its lane again while the system is
        away. Returns the values that it read; empty for a sink."""

    @abstractmethod
    def _check_used(self, place: Path, settings: Mapping[str, Any], values: Sequence[bytes], when: str) -> None:
        """Check what `_use` has read or written."""

    @abstractmethod
    async def _use_once(self, settings: Mapping[str, Any], place: Path) -> None:
        """Open a lane, and pass at least one record."""

    def _may_lose(self, settings: Mapping[str, Any]) -> bool:
        """Whether these settings promise so little that a lost answer may lose a record."""
        return False

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

    @contextmanager
    def _place(self) -> Iterator[tuple[Path, Mapping[str, Any]]]:
        """An empty directory, and the settings for it."""
        with TemporaryDirectory(prefix="millstream-conformance-") as directory:
            place = Path(directory)
            yield place, parse_json(json.dumps(dict(self.settings(place))))
