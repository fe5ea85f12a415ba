"""What a run needs of its machine, checked before anything is started: open files, storage, ports.

- The broker refuses a ledger for which it has no space, and counts what it granted as used from then on. So a full disk
  is noticed before anything is stored, and not in the middle of a commit.
- A vertex that finds its port taken tries again, because a process that is ending may still have it. A run that begins
  has nothing to wait for, and reports at once which option to change. The broker chooses its own port, and avoids
  these.

Above it: the runner, `validate` and `doctor`. Below it: the system.
"""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from millstream import codes
from millstream.errors import InfrastructureError, UserError
from millstream.limits import MIB
from millstream.plan.plan import Plan
from millstream.ports import promise, why_not
from millstream.spec.graph import Graph
from millstream.spec.models import Source
from millstream_runner.local.directory import DataDirectory
from millstream_vertex.settings import ledger_limits

if TYPE_CHECKING:
    from millstream_runner.local.replica import ProcessPlan

FILES_MIN = 48
"""The fewest open files with which a small pipeline starts."""
FILES_ADVISED = 1024
BROKER_SHARE = 0.75
"""The share of the free space that a NATS server uses for its streams, as of its start."""
_PORT_LAST = 65_535


def check_open_files() -> None:
    """Raises `InfrastructureError` if so few files may be open that nothing would start."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= FILES_MIN:
        return
    raise InfrastructureError(
        codes.PROCESS_NOT_STARTED,
        f"a process may open at most {soft} files here, and a run needs at least {FILES_MIN}, or more with more "
        f"vertices: {more_files('it')}",
    )


def more_files(program: str) -> str:
    """What to do so that `program` may open more files."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FILES_ADVISED:
        return f"ask for a hard limit of {FILES_ADVISED} (limits.conf, systemd's LimitNOFILE)"
    return f"`ulimit -n {FILES_ADVISED}` in the shell that starts {program}"


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
    if sum(reserved_bytes(plan).values()) > free * BROKER_SHARE:
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


def refuse_taken_ports(graph: Graph, plans: Iterable[ProcessPlan], metrics_host: str) -> None:
    """Raise `UserError` with every port that cannot be listened on, what it was for, and the option to change."""
    taken = [*_taken_by_metrics(plans, metrics_host), *_taken_by_sources(graph)]
    if taken:
        raise UserError(codes.PORTS_TAKEN, "; ".join(taken))


def _taken_by_metrics(plans: Iterable[ProcessPlan], host: str) -> Iterator[str]:
    for plan in plans:
        if plan.metrics_port is None:
            continue
        advice = "choose another --metrics-port-base: each worker uses the next port"
        if not 0 < plan.metrics_port <= _PORT_LAST:
            yield f"{plan.metrics_port}, for the metrics of {plan.label}, is not a valid port; {advice}"
        elif (reason := why_not(plan.metrics_port, host)) is not None:
            yield f"the metrics of {plan.label} cannot be served on {host}:{plan.metrics_port}: {reason}; {advice}"
        else:
            promise(plan.metrics_port)


def _taken_by_sources(graph: Graph) -> Iterator[str]:
    for vertex, kind, host, port in listeners(graph):
        if (reason := why_not(port, host)) is not None:
            yield (
                f"vertex {vertex}: the {kind} source cannot listen on {host} port {port}: {reason}; stop the program "
                f"that uses the port, or choose another `{kind}.host` or `{kind}.port` (0 takes a free port)"
            )
        else:
            promise(port)


def listeners(graph: Graph) -> Iterator[tuple[str, str, str, int]]:
    """Vertex, kind, host and port of each source that listens, for each of its partitions. Port 0: a free one."""
    for vertex in graph.vertices:
        for source in (placed.end for placed in vertex.ends if isinstance(placed.end, Source)):
            for partition in range(vertex.partitions):
                address = source.connector.address(source.settings, partition)
                if address is not None:
                    yield vertex.name, source.kind, *address
