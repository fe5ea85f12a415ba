"""Notes on a valid pipeline: settings without effect, and the costs of some settings. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from millstream.spec.graph import Graph
from millstream.spec.models import GroupBy, Vertex
from millstream.spec.problems import Path
from millstream.spec.tls import stays_on_this_machine
from millstream.spec.topology import reachable


def notes_of(value: Mapping[str, Any], graph: Graph) -> Iterator[tuple[Path, str]]:
    """Places in the file, each with a note; `value` is the file as written."""
    spec = value["spec"]
    for index, vertex in enumerate(graph.pipeline.spec.vertices):
        here: Path = ("spec", "vertices", index)
        settings: Path = (*here, vertex.key)
        for placed in vertex.ends:
            end = placed.end
            yield from end.connector.notes(end.settings, (*settings, *placed.path, end.kind))
            for name, form in end.formats():
                yield from form.notes((*settings, *placed.path, name))
        yield from _in_the_clear(vertex, settings)
        yield from vertex.definition.notes(vertex.settings, settings)
        written = spec["vertices"][index][vertex.key]
        yield from _idle_settings(written, vertex, settings)
        if vertex.group_by is not None:
            yield from _grouping(written, vertex.group_by, (*settings, "groupBy"))
            yield from _endless(graph, vertex.group_by, (*settings, "groupBy"))
            yield from _behind_a_cycle(graph, vertex, here)
    if graph.pipeline.spec.chain and not graph.chains:
        yield ("spec", "chain"), "`chain` has no effect: no edge to a map can be chained"
    if spec.get("spark") is not None and not graph.reduces:
        yield ("spec", "spark"), "`spark` has no effect in a pipeline without a reduce"


def _in_the_clear(vertex: Vertex, here: Path) -> Iterator[tuple[Path, str]]:
    """Records that can be read on the network between two machines."""
    for placed in vertex.programs:
        program = placed.program
        address = program.address if program.tls is None else None
        if address is None or address.startswith("unix:"):
            continue
        host = address.rpartition(":")[0].strip("[]")
        if not stays_on_this_machine(host):
            what = f"records are sent to {host} unencrypted, and the server's identity is not checked"
            way = "; `tls` adds encryption and this check" if vertex.group_by is None else ""
            yield (*here, *placed.path, "address"), what + way


def _idle_settings(written: Mapping[str, Any], vertex: Vertex, here: Path) -> Iterator[tuple[Path, str]]:
    strategy = vertex.definition.retry(vertex.settings)
    backoff = (written.get("retryStrategy") or {}).get("backoff") or {}
    if strategy is not None and strategy.on_failure == "retry" and "steps" in backoff:
        path = (*here, "retryStrategy", "backoff", "steps")
        yield path, "`steps` has no effect with `onFailure: retry`, which never gives up"


def _grouping(written: Mapping[str, Any], group_by: GroupBy, here: Path) -> Iterator[tuple[Path, str]]:
    sliding, global_ = group_by.window.sliding, group_by.window.global_
    if sliding is not None and sliding.slide_s > sliding.length_s:
        path = (*here, "window", "sliding", "slide")
        yield path, "`slide` is longer than `length`: records between two windows belong to none and count as filtered"
    if global_ is not None and global_.accumulate:
        path = (*here, "window", "global", "accumulate")
        yield path, "with `accumulate` every record is kept forever, and each result is computed from all of them"
    if global_ is not None and group_by.allowed_lateness_s and (global_.trigger is None or global_.trigger.count):
        yield (*here, "allowedLateness"), "`allowedLateness` has no effect: no record is late for a global window"
    if group_by.keeps_input:
        storage = written["groupBy"].get("storage") or {}
        path = (*here, "storage", "no_store") if storage.get("no_store") is not None else (*here, "keepInput")
        yield (
            path,
            "the input buffers must hold the records of all open windows: see `bufferMaxLength`, `bufferMaxBytes`",
        )


def _endless(graph: Graph, group_by: GroupBy, here: Path) -> Iterator[tuple[Path, str]]:
    global_ = group_by.window.global_
    endless = [vertex.name for vertex in graph.sources if vertex.definition.bounded(vertex.settings) is False]
    if global_ is not None and global_.trigger is None and endless:
        what = f"without a `trigger` the result comes when every source has ended, but `{endless[0]}` never ends"
        yield (*here, "window", "global"), what


def _behind_a_cycle(graph: Graph, vertex: Vertex, here: Path) -> Iterator[tuple[Path, str]]:
    arcs = [(edge.from_, edge.to) for edge in graph.edges]
    cycles = [name for name in graph.order if graph.in_cycle(name)]
    if vertex.name in reachable(cycles, arcs):
        yield (
            here,
            "records that go round a cycle before this reduce may be late, because watermarks do not wait for them",
        )
