"""What the reply subject of a message says that a consumer of JetStream has delivered. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Origin(NamedTuple):
    """Where a message comes from."""

    consumer: str
    sequence: int
    """In its stream."""
    delivered: int
    """How many the consumer has delivered, this one included."""
    time_ns: int
    """When it was stored."""
    waiting: int
    """How many the consumer has for later."""


def origin_of(reply: str) -> Origin:
    """ "$JS.ACK.<stream>.<consumer>.<count>.<stream sequence>.<delivery>.<time>.<waiting>", or with <domain>.<account>
    before the stream and a random token at the end."""
    tokens = reply.split(".")
    first = 3 if len(tokens) == 9 else 5
    sequence, delivered, time_ns, waiting = (int(token) for token in tokens[first + 2 : first + 6])
    return Origin(tokens[first], sequence, delivered, time_ns, waiting)
