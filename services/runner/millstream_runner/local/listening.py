"""The ports that a run was asked to listen on: tried and assigned before anything is started.

Above it: the runner. Below it: the system's sockets. A vertex that finds its port taken tries again, because a process
that is ending may still have it. A run that begins has nothing to wait for, and reports at once which option to change.
The broker chooses its own port, and avoids these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from millstream import codes
from millstream.errors import UserError
from millstream.ports import promise, why_not
from millstream.spec.graph import Graph
from millstream.spec.models import Source

if TYPE_CHECKING:
    from millstream_runner.local.replica import ProcessPlan

_PORT_LAST = 65_535


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
