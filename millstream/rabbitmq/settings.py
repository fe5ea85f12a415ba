"""How pipeline files name a RabbitMQ server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated
from urllib.parse import urlsplit

from millstream import codes
from millstream.spec.addresses import address_check
from millstream.spec.problems import Path
from millstream.spec.references import TextOrReference
from millstream.spec.rules import After
from millstream.spec.tls import ServerTls, stays_on_this_machine
from millstream.spec.values import PositiveDuration, ShapeProblem, SpecModel, Text, field

_SCHEMES = {"amqp": 5672, "amqps": 5671}


_checked_url = address_check(
    "the address of a RabbitMQ server",
    _SCHEMES,
    "amqp://host:port, or amqps:// with TLS; `virtualHost`, `user` and `password` beside it",
    path=("", "/").__contains__,
)


class RabbitServer(SpecModel):
    """A server, and who connects to it."""

    noun = "a rabbitmq connection"

    url: Annotated[Text, After(_checked_url)]
    """The server, `amqp://host:port`, or `amqps://host:port` with TLS."""
    virtual_host: Text = "/"
    """Virtual host of the server."""
    user: Text | None = None
    """Name of the user that connects. Default: `guest`, which servers take from their own machine only."""
    password: TextOrReference | None = None
    """Its password, as `{env: NAME}` or `{file: PATH}`. Default: `guest`."""
    tls: ServerTls | None = None
    """Which certificates count, where `url` is `amqps://`. Default: those of the authorities of the system."""
    timeout_s: PositiveDuration = field(default=10.0, alias="timeout")
    """How long an answer is waited for; then the connection is given up, and it is tried again. Duration, default
    10s."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Certificates where they are looked at; a user with a password."""
        if self.tls is not None and not self.encrypted:
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("tls",), "`tls` has no effect with amqp://", "amqps://")
        if (self.user is None) != (self.password is None):
            what = "`user` and `password` belong together"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("user",), what, "both of them, or neither")

    @property
    def encrypted(self) -> bool:
        """Whether the connection is."""
        return urlsplit(self.url).scheme == "amqps"

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        parts = urlsplit(self.url)
        return parts.port or _SCHEMES[parts.scheme]


def server_notes(settings: RabbitServer, path: Path) -> Iterator[tuple[Path, str]]:
    """What to know about the way to a server."""
    if isinstance(settings.password, str):
        yield (*path, "password"), "`password` stands in the file; `{env: NAME}` or `{file: PATH}` keeps it out"
    if settings.password is not None and not settings.encrypted and not stays_on_this_machine(settings.host.lower()):
        yield (*path, "url"), "the password and the records go to the server in the clear; amqps:// encrypts them"
