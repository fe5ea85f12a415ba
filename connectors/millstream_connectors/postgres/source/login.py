"""Where, and as whom, a lane that reads changes connects."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from millstream_connectors.postgres.client import Connection, connect
from millstream_connectors.postgres.replication import Replication, open_replication
from millstream_connectors.postgres.settings import PostgresCdc, PostgresSource


@dataclass(frozen=True, slots=True)
class Login:
    """What all connections of a lane have in common."""

    spec: PostgresSource
    cdc: PostgresCdc
    base_dir: Path
    where: str
    """The lane, as messages begin."""
    application: str
    """Its name on the server, by which a hanging process of this lane is recognized."""

    async def connect(self) -> Connection:
        """A connection for statements. Raises Millstream errors."""
        return await connect(self.spec, self.base_dir, self.where, self.application)

    async def open_replication(self) -> Replication:
        """A connection for replication. Raises Millstream errors."""
        return await open_replication(self.spec, self.base_dir, self.where, self.application)
