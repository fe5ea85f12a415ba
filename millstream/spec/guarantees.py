"""What each sink promises about records that have to be sent again. Pure."""

from dataclasses import dataclass
from enum import Enum

from millstream.spec.graph import Graph
from millstream.spec.models import FallbackSink, OnSinkFailure


class GuaranteeId(Enum):
    """How often a record can take effect in the target."""

    TRANSACTIONAL = "exactly-once-transactional"
    IDEMPOTENT = "exactly-once-idempotent"
    AT_LEAST_ONCE = "at-least-once"
    NO_TARGET = "no-target"


@dataclass(frozen=True, slots=True)
class Guarantee:
    """The promise of one sink."""

    id: GuaranteeId
    """Which promise."""
    sentence: str
    """The promise and how it is kept, for people."""


_SENTENCES = {
    "file": (
        GuaranteeId.TRANSACTIONAL,
        (
            "exactly once: a file appears whole under a name that carries its position, and after a "
            "restart the finished names say how far the sink is"
        ),
    ),
    "http": (
        GuaranteeId.IDEMPOTENT,
        (
            "exactly once if the receiver keeps to the `{header}` header: the key of a request is the "
            "same on every retry"
        ),
    ),
    "log": (
        GuaranteeId.AT_LEAST_ONCE,
        "at least once: lines written shortly before a crash are written again",
    ),
    "udsink": (
        GuaranteeId.AT_LEAST_ONCE,
        ("at least once: after a crash the program gets records again, with the same ids, by which it can tell"),
    ),
    "blackhole": (
        GuaranteeId.NO_TARGET,
        "nothing is written; each record is counted exactly once",
    ),
}

_LOSSES: dict[OnSinkFailure, str] = {
    "drop": "; records that are still refused after the retries are dropped and counted",
    "fallback": "; records that are still refused after the retries go to the fallback",
}


def guarantee_of(sink: FallbackSink) -> Guarantee:
    """The promise of one kind of sink."""
    id_, sentence = _SENTENCES[sink.kind]
    header = sink.http.idempotency_header if sink.http is not None else ""
    return Guarantee(id_, sentence.format(header=header))


def guarantees_of(graph: Graph) -> dict[str, Guarantee]:
    """For each sink vertex, in topological order, its promise; `<vertex> (fallback)` for its
    fallback."""
    result: dict[str, Guarantee] = {}
    for vertex in graph.sinks:
        sink = vertex.sink
        assert sink is not None, "a sink vertex has a sink"
        own = guarantee_of(sink)
        loss = _LOSSES.get(sink.retry_strategy.on_failure, "")
        result[vertex.name] = Guarantee(own.id, own.sentence + loss)
        if sink.fallback is not None:
            result[f"{vertex.name} (fallback)"] = _guarantee_of_fallback(sink.fallback)
    return result


def _guarantee_of_fallback(sink: FallbackSink) -> Guarantee:
    """A fallback gets some of the lane's records only, so its files cannot tell how far the lane is."""
    if sink.file is None:
        return guarantee_of(sink)
    what = "at least once: after a crash, records that went to the fallback shortly before may be in its files twice"
    return Guarantee(GuaranteeId.AT_LEAST_ONCE, what)
