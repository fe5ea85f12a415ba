"""The ledgers of a data directory: recorded when they are created, and looked for before a run begins.

A server that cannot read the description of a stream omits the stream, and a vertex creates a missing ledger. It would
start over as if nothing had been stored.

Above it: the runner. Below it: one small file.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from millstream import codes
from millstream.errors import DamageError
from millstream_runner.local.directory import read_json, write_json


class KnownLedgers:
    """The ledgers of one data directory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, str] = read_json(path) or {}

    def check(self, found: Mapping[str, str]) -> None:
        """Raise `DamageError` if a ledger is missing, or was recreated. `found`: the existing ledgers, id by vertex."""
        lost = [
            f"that of vertex {vertex} " + ("is gone" if vertex not in found else "was rebuilt")
            for vertex, ledger_id in sorted(self._known.items())
            if found.get(vertex) != ledger_id
        ]
        if lost:
            raise DamageError(
                codes.LEDGER_GONE,
                f"ledgers listed in {self._path} are missing from the broker's store: {'; '.join(lost)}. Their "
                "contents are not available; the broker's log says whether files of the store are damaged. Restore "
                "the store, or start the pipeline over with --fresh",
            )

    def forget(self, vertices: Collection[str]) -> None:
        """Record that these are about to be removed. Durable on return."""
        self.replace({vertex: ledger_id for vertex, ledger_id in self._known.items() if vertex not in vertices})

    def note(self, found: Mapping[str, str]) -> None:
        """Record that these exist. Durable on return."""
        self.replace({**self._known, **found})

    def replace(self, found: Mapping[str, str]) -> None:
        """Record that these are all there are, and drop what was recorded about others. Durable on return."""
        if found != self._known:
            self._known = dict(found)
            write_json(self._path, self._known)
