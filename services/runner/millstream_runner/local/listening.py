"""The ports that a run was asked to listen on: tried and assigned before anything is started.

Above it: the runner. Below it: the system's sockets. A vertex that finds its port taken tries again, because a process
that is ending may still have it. A run that begins has nothing to wait for, and reports at once which option to change.
The broker chooses its own port, and avoids these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from millstream import codes
from millstream.errors import UserError
from millstream.ports import promise, why_not
from millstream.spec.graph import Graph
from millstream.spec.models import Source
from millstream_runner.local.workers import WorkerPlan

_PORT_LAST = 65_535


def refuse_taken_ports(graph: Graph, plans: Iterable[WorkerPlan], metrics_host: str) -> None:
    """Raise `UserError` with every port that cannot be listened on, what it was for, and the option to change."""
    taken = [*_taken_by_metrics(plans, metrics_host), *_taken_by_sources(graph)]
    if taken:
        raise UserError(codes.PORTS_TAKEN, "; ".join(taken))


def _taken_by_metrics(plans: Iterable[WorkerPlan], host: str) -> Iterator[str]:
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
    sources = [(vertex, placed.end) for vertex in graph.vertices for placed in vertex.ends]
    for vertex, source in sources:
        if not isinstance(source, Source):
            continue
        kind = source.kind
        addresses = (source.connector.address(source.settings, partition) for partition in range(vertex.partitions))
        for host, port in filter(None, addresses):
            if (reason := why_not(port, host)) is not None:
                yield (
                    f"vertex {vertex.name}: the {kind} source cannot listen on {host} port {port}: {reason}; stop "
                    f"the program that uses the port, or choose another `{kind}.host` or `{kind}.port` (0 takes a "
                    "free port)"
                )
            else:
                promise(port)
