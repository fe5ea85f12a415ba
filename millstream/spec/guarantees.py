"""What vertices guarantee for records that are sent again. Pure."""

from collections.abc import Iterator

from millstream.spec.connectors import Guarantee
from millstream.spec.graph import Graph
from millstream.spec.models import Vertex


def promises(graph: Graph) -> Iterator[tuple[Vertex, str, Guarantee]]:
    """The vertices with a guarantee, such as sinks, in topological order, each with its guarantee and what it is for:
    its name, or `<name> (fallback)` for the fallback of a sink."""
    for vertex in graph.vertices:
        kind = vertex.definition
        given = kind.guarantees if graph.chained_into(vertex.name) is None else kind.guarantees_in_chain
        for part, guarantee in given(vertex.settings):
            yield vertex, f"{vertex.name} ({part})" if part else vertex.name, guarantee


def guarantees_of(graph: Graph) -> dict[str, Guarantee]:
    """The guarantees by what they are for."""
    return {name: guarantee for _, name, guarantee in promises(graph)}
