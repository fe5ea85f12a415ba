"""What the reply subject of a message says about its delivery by a JetStream consumer. Pure."""

from __future__ import annotations

from typing import NamedTuple


class MessageOrigin(NamedTuple):
    """Where a message comes from."""

    consumer: str
    sequence: int
    """Sequence in the stream."""
    delivered: int
    """How many messages the consumer has delivered, including this one."""
    time_ns: int
    """When the message was stored."""
    waiting: int
    """How many messages the consumer has still to deliver."""


def origin_of(reply: str) -> MessageOrigin:
    """ "$JS.ACK.<stream>.<consumer>.<count>.<stream sequence>.<delivery>.<time>.<waiting>", or with <domain>.<account>
    before the stream and a random token at the end."""
    tokens = reply.split(".")
    first = 3 if len(tokens) == 9 else 5
    sequence, delivered, time_ns, waiting = (int(token) for token in tokens[first + 2 : first + 6])
    return MessageOrigin(tokens[first], sequence, delivered, time_ns, waiting)
