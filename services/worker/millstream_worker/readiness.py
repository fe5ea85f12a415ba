"""Whether a replica can do its work: the answer of /readyz.

    starting ─► lanes are opened ─► ready, unless something external is unavailable ─► stopping

Above it: the assembly, which reports the replica's progress, and the worker, which is ready when all its replicas are.
Below it: the environment.
"""

from __future__ import annotations

import asyncio

from millstream_worker.environment import Outside

_STARTING = "starting: the broker or a program of the vertex is not ready yet"
_OPENING = "starting: lanes are being opened"
_STOPPING = "stopping: records in flight are being finished"


class Readiness:
    """The readiness of one replica."""

    def __init__(self) -> None:
        self._outside: Outside | None = None
        self._phase: str | None = _STARTING
        self.waits = asyncio.Event()
        """Set while an unavailable external system prevents the lanes from opening; nothing is in flight then."""

    def reached(self, outside: Outside) -> None:
        """The environment is open; the lanes are not."""
        self._outside = outside
        self._phase = _OPENING

    def waits_for_outside(self, why: str) -> None:
        """A lane cannot be opened yet because an external system is unavailable."""
        self._phase = f"starting: {why}"
        self.waits.set()

    def reached_outside(self) -> None:
        """The external system is available again."""
        self._phase = _OPENING
        self.waits.clear()

    def opened(self) -> None:
        """The lanes are open."""
        self._phase = None

    def stopping(self) -> None:
        """The replica accepts no new input."""
        self._phase = _STOPPING

    def over(self) -> None:
        """The replica has ended, so it no longer counts as not ready."""
        self._phase = self._outside = None

    def reason(self) -> str | None:
        """Why the replica is not ready; None if it is."""
        if self._phase is not None or self._outside is None:
            return self._phase
        return self._outside.trouble()
