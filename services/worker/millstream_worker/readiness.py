"""Whether a replica can do its work: what /readyz answers.

    starting ─► lanes are opened ─► ready, unless something outside is away ─► stopping

Above it: the assembly, which says how far the replica is, and the worker, which is ready when all its replicas are.
Below it: the environment.
"""

from __future__ import annotations

import asyncio

from millstream_worker.environment import Environment

_STARTING = "starting: the broker or a program of the vertex is not ready yet"
_OPENING = "starting: lanes are being opened"
_STOPPING = "stopping: records in flight are being finished"


class Readiness:
    """Of one replica."""

    def __init__(self) -> None:
        self._outside: Environment | None = None
        self._phase: str | None = _STARTING
        self.waits = asyncio.Event()
        """Set while the lanes cannot be opened because a system outside is away: nothing is in flight."""

    def reached(self, outside: Environment) -> None:
        """The environment are open; the lanes are not."""
        self._outside = outside
        self._phase = _OPENING

    def waits_for_outside(self, why: str) -> None:
        """A lane cannot be opened now, because a system outside is away."""
        self._phase = f"starting: {why}"
        self.waits.set()

    def reached_outside(self) -> None:
        """It is there."""
        self._phase = _OPENING
        self.waits.clear()

    def opened(self) -> None:
        """The lanes are open."""
        self._phase = None

    def stopping(self) -> None:
        """Nothing new is taken in."""
        self._phase = _STOPPING

    def over(self) -> None:
        """It has ended: nothing is missing any more."""
        self._phase = self._outside = None

    def reason(self) -> str | None:
        """Why it is not ready; None when it is."""
        if self._phase is not None or self._outside is None:
            return self._phase
        return self._outside.trouble()
