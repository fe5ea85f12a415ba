"""A pipeline's graph for display: text for a terminal, Mermaid for a page. Pure."""

from typing import Any

from millstream.spec.graph import Graph
from millstream.spec.models import Edge, Vertex


def to_text(graph: Graph) -> str:
    """One block per vertex in topological order, its outgoing edges as arrows below it.

        in  source (generator)
        ├──► even  tags or [even]
        └──► odd   tags or [odd]

    Vertices with `chained` between them run as one lane.
    An arrow with `↺` goes back into a cycle, one with `╌╌►` carries dead letters or late records.
    """
    lines = [f"pipeline {graph.pipeline.name}"]
    for vertex in graph.vertices:
        lines += ["", f"{vertex.name}  {description(vertex)}"]
        edges = graph.edges_out[vertex.name]
        width = max((len(edge.to) for edge in edges), default=0)
        for index, edge in enumerate(edges):
            corner = "└" if index == len(edges) - 1 else "├"
            arrow = "──►" if edge.kind == "data" else "╌╌►"
            label = ", ".join(edge_labels(graph, edge))
            lines.append(f"{corner}{arrow} {edge.to:<{width}}  {label}".rstrip())
    return "\n".join(lines) + "\n"


def to_mermaid(graph: Graph) -> str:
    """A Mermaid flow chart; sources are stadiums, reduces double-edged, sinks cylinders, dead-letter and late edges
    dotted."""
    ids = {vertex.name: f"v{index}" for index, vertex in enumerate(graph.vertices)}
    lines = ["flowchart LR"]
    for vertex in graph.vertices:
        opening, closing = vertex.definition.drawn
        text = f"{vertex.name}<br/>{description(vertex)}".replace('"', "#quot;")
        lines.append(f'    {ids[vertex.name]}{opening}"{text}"{closing}')
    for edge in graph.edges:
        arrow = "-->" if edge.kind == "data" else "-.->"
        label = ", ".join(edge_labels(graph, edge)).replace('"', "#quot;")
        between = f'{arrow}|"{label}"|' if label else arrow
        lines.append(f"    {ids[edge.from_]} {between} {ids[edge.to]}")
    return "\n".join(lines) + "\n"


def to_json(graph: Graph) -> dict[str, Any]:
    """The graph for programs: `pipeline`, `vertices` in topological order, `edges`."""
    return {
        "pipeline": graph.pipeline.name,
        "vertices": [
            {
                "name": vertex.name,
                "type": vertex.kind,
                "description": description(vertex),
                "partitions": vertex.partitions,
            }
            for vertex in graph.vertices
        ],
        "edges": [
            {
                "name": edge.name,
                "from": edge.from_,
                "to": edge.to,
                "kind": edge.kind,
                "labels": edge_labels(graph, edge),
            }
            for edge in graph.edges
        ],
        **({"chains": [list(chain) for chain in graph.chains]} if graph.chains else {}),
    }


def description(vertex: Vertex) -> str:
    """A description of a vertex, on one line."""
    contents = vertex.definition.contents(vertex.settings)
    parts = [vertex.kind, f"({contents})"] if contents else [vertex.kind]
    if vertex.group_by is not None:
        # For example `fixed 1h, keyed`.
        parts.append(str(vertex.group_by.window) + (", keyed" if vertex.group_by.keyed else ""))
    if vertex.partitions > 1:
        parts.append(f"x{vertex.partitions}")
    return " ".join(parts)


def edge_labels(graph: Graph, edge: Edge) -> list[str]:
    """Properties of an edge: which records it takes, and where it leads."""
    labels = []
    if edge.kind != "data":
        labels.append({"deadLetter": "dead letters", "late": "late records"}[edge.kind])
    if edge.conditions is not None and edge.conditions.tags is not None:
        tags = edge.conditions.tags
        labels.append(f"tags {tags.operator} [{', '.join(tags.values)}]")
    if edge.chain:
        labels.append("chained")
    if edge.on_full == "discardLatest":
        labels.append("discards when full")
    if edge.name in graph.back_edges:
        labels.append("↺")
    return labels
