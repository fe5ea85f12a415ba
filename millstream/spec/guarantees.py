"""What each sink promises about records that have to be sent again. Pure."""

from millstream.spec.connectors import Guarantee
from millstream.spec.graph import Graph
from millstream.spec.models import OnSinkFailure

_LOSSES: dict[OnSinkFailure, str] = {
    "drop": "; records that are still refused after the retries are dropped and counted",
    "fallback": "; records that are still refused after the retries go to the fallback",
}


def guarantees_of(graph: Graph) -> dict[str, Guarantee]:
    """For each sink vertex, in topological order, its promise; `<vertex> (fallback)` for its
    fallback."""
    result: dict[str, Guarantee] = {}
    for vertex in graph.sinks:
        sink = vertex.sink
        assert sink is not None, "a sink vertex has a sink"
        own = sink.guarantee()
        loss = _LOSSES.get(sink.retry_strategy.on_failure, "")
        result[vertex.name] = Guarantee(own.id, own.sentence + loss)
        if sink.fallback is not None:
            result[f"{vertex.name} (fallback)"] = sink.fallback.guarantee(fallback=True)
    return result
