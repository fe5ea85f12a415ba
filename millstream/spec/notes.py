"""What to know about a valid pipeline: settings that decide nothing beside others, and what some cost. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from millstream.spec.graph import Graph
from millstream.spec.models import FallbackSink, GroupBy, Source, Vertex
from millstream.spec.problems import Path
from millstream.spec.programs import Program
from millstream.spec.tls import stays_on_this_machine
from millstream.spec.topology import reachable


def notes_of(value: Mapping[str, Any], graph: Graph) -> Iterator[tuple[Path, str]]:
    """Places of the file and what to know about them; `value` is the file as it was written."""
    spec = value["spec"]
    for index, vertex in enumerate(graph.pipeline.spec.vertices):
        here: Path = ("spec", "vertices", index)
        for place, end in _ends(vertex, here):
            yield from end.connector.notes(end.settings, (*place, end.kind))
        yield from _in_the_clear(vertex, here)
        if vertex.udf is not None and vertex.udf.sql is not None and vertex.udf.sql.unsafe:
            what = "`unsafe` lets the query do all that the runner's user may: call Java, read files and other tables"
            yield (*here, "udf", "sql", "unsafe"), what
        yield from _idle_settings(spec["vertices"][index], vertex, here)
        if vertex.group_by is not None:
            yield from _grouping(spec["vertices"][index], vertex.group_by, (*here, "udf", "groupBy"))
            yield from _endless(graph, vertex.group_by, (*here, "udf", "groupBy"))
            yield from _behind_a_cycle(graph, vertex, here)
    if spec.get("spark") is not None and not graph.reduces:
        yield ("spec", "spark"), "`spark` has no effect in a pipeline without a reduce"


def _in_the_clear(vertex: Vertex, here: Path) -> Iterator[tuple[Path, str]]:
    """Records that everybody reads who is between two machines."""
    programs: list[tuple[Path, Program | None]] = [((*here, "udf"), vertex.udf)]
    if vertex.source is not None:
        programs.append(((*here, "source", "transformer"), vertex.source.transformer))
    programs += [((*place, end.kind), end.program) for place, end in _ends(vertex, here)]
    for place, program in programs:
        address = program.address if program is not None and program.tls is None else None
        if address is None or address.startswith("unix:"):
            continue
        host = address.rpartition(":")[0].strip("[]")
        if not stays_on_this_machine(host):
            what = f"records go to {host} in the clear, and whoever answers there is taken for the function"
            way = "; `tls` beside it encrypts them" if vertex.group_by is None else ""
            yield (*place, "address"), what + way


def _ends(vertex: Vertex, here: Path) -> Iterator[tuple[Path, Source | FallbackSink]]:
    """The sources and sinks of a vertex."""
    if vertex.source is not None:
        yield (*here, "source"), vertex.source
    if vertex.sink is not None:
        yield (*here, "sink"), vertex.sink
        if vertex.sink.fallback is not None:
            yield (*here, "sink", "fallback"), vertex.sink.fallback


def _idle_settings(written: Mapping[str, Any], vertex: Vertex, here: Path) -> Iterator[tuple[Path, str]]:
    for kind in ("udf", "sink"):
        strategy = (written.get(kind) or {}).get("retryStrategy") or {}
        forever = strategy.get("onFailure", "retry" if kind == "sink" else None) == "retry"
        if forever and "steps" in (strategy.get("backoff") or {}):
            path = (*here, kind, "retryStrategy", "backoff", "steps")
            yield path, "`steps` has no effect with `onFailure: retry`, which never gives up"
    if vertex.udf is not None and vertex.udf.builtin is not None and vertex.udf.concurrency:
        yield (*here, "udf", "concurrency"), "`concurrency` has no effect on a built-in"


def _grouping(written: Mapping[str, Any], group_by: GroupBy, here: Path) -> Iterator[tuple[Path, str]]:
    sliding, global_ = group_by.window.sliding, group_by.window.global_
    if sliding is not None and sliding.slide_s > sliding.length_s:
        path = (*here, "window", "sliding", "slide")
        yield path, "`slide` is longer than `length`: records between two windows are in none and count as filtered"
    if global_ is not None and global_.accumulate:
        path = (*here, "window", "global", "accumulate")
        yield path, "with `accumulate` every record is kept for ever, and each result is computed over all of them"
    if global_ is not None and group_by.allowed_lateness_s and (global_.trigger is None or global_.trigger.count):
        yield (*here, "allowedLateness"), "`allowedLateness` has no effect: nothing is late for a global window"
    if group_by.keeps_input:
        storage = written["udf"]["groupBy"].get("storage") or {}
        path = (*here, "storage", "no_store") if storage.get("no_store") is not None else (*here, "keepInput")
        yield (
            path,
            "the input buffers must hold the records of all open windows: see `bufferMaxLength`, `bufferMaxBytes`",
        )


def _endless(graph: Graph, group_by: GroupBy, here: Path) -> Iterator[tuple[Path, str]]:
    global_ = group_by.window.global_
    endless = [vertex.name for vertex in graph.sources if vertex.source is not None and vertex.source.bounded is False]
    if global_ is not None and global_.trigger is None and endless:
        what = f"without a `trigger` a result comes when every source has ended, and `{endless[0]}` has no end"
        yield (*here, "window", "global"), what


def _behind_a_cycle(graph: Graph, vertex: Vertex, here: Path) -> Iterator[tuple[Path, str]]:
    arcs = [(edge.from_, edge.to) for edge in graph.edges]
    cycles = [name for name in graph.order if graph.in_cycle(name)]
    if vertex.name in reachable(cycles, arcs):
        yield (
            here,
            "records that go round a cycle before this reduce may be late: watermarks do not wait for them",
        )
