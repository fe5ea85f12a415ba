"""What the connection to a database needs of this machine. SQLAlchemy is imported only if it is there."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path as FilePath

from millstream import codes
from millstream.spec.problems import Finding, Path
from millstream_connectors.sql.settings import SqlDatabase


def database_findings(settings: SqlDatabase, path: Path, base_dir: FilePath) -> Iterator[Finding]:
    """What the connection to a database needs and this machine does not have."""
    if settings.file is not None:
        directory = (base_dir / settings.file).parent
        if not directory.is_dir():
            what = f"there is no directory {directory}"
            yield Finding(codes.NO_SUCH_FILE, (*path, "url"), what, "an existing directory for the database file")
        return
    if find_spec("sqlalchemy") is not None:
        from millstream_connectors.sql.client import driver_fault

        fault = driver_fault(settings)
        if fault is not None:
            yield Finding(codes.EXTRA_NEEDED, (*path, "url"), *fault)
