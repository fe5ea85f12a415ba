"""The storage that a pipeline reserves on its broker, and whether the disk of a data directory has that much.

The broker refuses a ledger for which it has no space, and counts what it granted as used from then on. So a full disk
is noticed before anything is stored, and not in the middle of a commit.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from millstream import codes
from millstream.errors import InfrastructureError
from millstream.limits import MIB
from millstream.plan.plan import Plan
from millstream_runner.local.directory import DataDirectory
from millstream_vertex.settings import ledger_limits

BROKER_SHARE = 0.75
"""The share of the free space that a NATS server uses for its streams, as of its start."""


def reserved_bytes(plan: Plan) -> dict[str, int]:
    """What each ledger reserves, by its name; a chain has one ledger, that of its first vertex."""
    return {plan.ledger_of(vertex): ledger_limits(plan, vertex).bytes_max for vertex in plan.order}


def reservation_text(plan: Plan) -> str:
    """For people: the total, and which vertex reserves most of it."""
    reserved = reserved_bytes(plan)
    largest = max(reserved, key=lambda name: reserved[name])
    return f"{_shown(sum(reserved.values()))}, of which vertex {largest} {_shown(reserved[largest])}"


def refuse_small_disk(plan: Plan, directory: DataDirectory) -> None:
    """Raise `InfrastructureError` if a new pipeline would not get the storage that it reserves."""
    place = existing(directory.root)
    freed = sum(file.stat().st_size for file in directory.broker.rglob("*") if file.is_file())
    free = shutil.disk_usage(place).free + freed
    needed = sum(reserved_bytes(plan).values())
    if needed > free * BROKER_SHARE:
        raise InfrastructureError(
            codes.DISK_TOO_SMALL,
            f"the buffers of the pipeline reserve {reservation_text(plan)}, but the disk that holds {place} has "
            f"{_shown(free)} free, of which the broker uses at most three quarters. Lower `limits.bufferMaxBytes` "
            f"(now {_shown(plan.pipeline.spec.limits.buffer_max_bytes)} for each buffer), or choose a larger disk "
            "with --data-dir",
        )


def existing(path: Path) -> Path:
    """The directory, or the nearest one above it that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def _shown(size: int) -> str:
    return f"{-(-size // MIB):,} MiB"
