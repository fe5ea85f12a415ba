"""How pipeline files name a RabbitMQ server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from millstream import codes
from millstream.spec.addresses import address_check
from millstream.spec.references import TextOrReference
from millstream.spec.rules import After
from millstream.spec.values import ShapeProblem, Text
from millstream_connectors.shared.servers import ServerByUrl

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
