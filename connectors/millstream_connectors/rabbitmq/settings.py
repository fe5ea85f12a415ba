"""The settings of the `rabbitmq` source and sink, as pipeline files have them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from millstream import codes
from millstream.spec.addresses import address_check
from millstream.spec.connectors import IdBounds, RemembersIds
from millstream.spec.references import TextOrReference
from millstream.spec.values import After, Flag, ShapeProblem, Strict, Text, problem
from millstream_connectors.shared.servers import ServerByUrl
from millstream_connectors.shared.starts import EARLIEST, LATEST, Start

_PORTS = {"amqp": 5672, "amqps": 5671}

_checked_url = address_check(
    "the address of a RabbitMQ server",
    _PORTS,
    "amqp://host:port, or amqps:// with TLS; set `virtualHost`, `user` and `password` separately",
    path=("", "/").__contains__,
)


class RabbitServer(ServerByUrl):
    """A server, and the user that connects to it."""

    noun = "a rabbitmq connection"
    ports: ClassVar = _PORTS

    url: Annotated[Text, After(_checked_url)]
    """The server, `amqp://host:port`, or `amqps://host:port` with TLS."""
    user: Text | None = None
    """Name of the user that connects. Default: the one that `tls.certificate` names (EXTERNAL), if it is set; otherwise
    `guest`, which servers accept only from their own machine."""
    password: TextOrReference | None = None
    """Its password, as `{env: NAME}` or `{file: PATH}`. Default: that of `guest`."""
    virtual_host: Text = "/"
    """Virtual host of the server."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Rejects a user without a password, and a password without a user, too."""
        yield from super().relation_problems()
        if (self.user is None) != (self.password is None):
            what = "`user` and `password` belong together"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("user",), what, "both of them, or neither")

    @property
    def by_certificate(self) -> bool:
        """Whether the client's certificate says who connects."""
        return self.user is None and self.tls is not None and self.tls.certificate is not None

    @property
    def shown_user(self) -> str:
        """Who connects, in messages."""
        return "the user of the client certificate" if self.by_certificate else f"user {self.user or 'guest'}"


_PREFETCH_MAX = 65_535
"""The protocol has two bytes for the number."""


class RabbitSource(RemembersIds, RabbitServer):
    """Receives messages from a RabbitMQ queue, and acknowledges them once they are committed. Or reads a RabbitMQ
    stream, by offset."""

    noun = "a rabbitmq source"

    queue: Text
    """Name of the queue or stream. One lane reads it, in the order of delivery."""
    stream: Flag = False
    """The queue is a stream, which keeps its messages. It is read by offset, so messages need no ids."""
    start: Start = EARLIEST
    """Where the first run starts in a stream: `earliest`, or at a time (RFC 3339, with an offset). Later runs continue
    after the message of the last commit."""
    prefetch: Annotated[int, Strict(ge=1, le=_PREFETCH_MAX)] = 1000
    """Maximum number of unacknowledged messages of a queue that is not a stream. Fewer are held if they are large, so
    that they take some 32 MiB."""

    @property
    def id_bounds(self) -> IdBounds | None:
        return None if self.stream else super().id_bounds

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Rejects a `start` that is not a place in a stream, or that has no effect."""
        yield from super().relation_problems()
        if self.start == LATEST:
            # Until the first message is read, each restart would begin at another place.
            yield ShapeProblem(codes.VALUE_MALFORMED, ("start",), "`latest` is not a place in a stream", "a time")
        elif self.start != EARLIEST and not self.stream:
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("start",), "`start` has no effect without `stream`", "both")


_NAME_BYTES_MAX = 255


def _checked_name(written: str) -> str:
    if len(written.encode()) > _NAME_BYTES_MAX:
        what = f"{written[:40]!r}… has {len(written.encode())} bytes"
        raise problem(codes.VALUE_MALFORMED, what, f"at most {_NAME_BYTES_MAX}")
    return written


class RabbitSink(RabbitServer):
    """Publishes records to a RabbitMQ exchange, with confirmations."""

    noun = "a rabbitmq sink"

    exchange: Annotated[Text, After(_checked_name)] | None = None
    """Name of the exchange. Default: the default exchange, which delivers to the queue that `routingKey` names."""
    routing_key: Annotated[Text, After(_checked_name)]
    """Routing key of each message; without `exchange`, the name of a queue or a stream."""
