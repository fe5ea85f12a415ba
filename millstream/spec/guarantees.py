"""What vertices promise about records that have to be sent again. Pure."""

from collections.abc import Iterator

from millstream.spec.connectors import Guarantee
from millstream.spec.graph import Graph
from millstream.spec.models import Vertex


def promises(graph: Graph) -> Iterator[tuple[Vertex, str, Guarantee]]:
    """The vertices that promise something, such as sinks, in topological order, each with what is promised and of what:
    its name, or `<name> (fallback)` for the fallback of a sink."""
    for vertex in graph.vertices:
        kind = vertex.definition
        given = kind.guarantees if graph.chained_into(vertex.name) is None else kind.guarantees_in_chain
        for part, guarantee in given(vertex.settings):
            yield vertex, f"{vertex.name} ({part})" if part else vertex.name, guarantee


def guarantees_of(graph: Graph) -> dict[str, Guarantee]:
    """The promises by what they are about."""
    return {name: guarantee for _, name, guarantee in promises(graph)}
