"""How pipeline files name an MQTT broker."""

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

_SCHEMES = {"mqtt": 1883, "mqtts": 8883}


_checked_url = address_check(
    "the address of an MQTT broker",
    _SCHEMES,
    "mqtt://host:port, or mqtts:// with TLS; `user` and `password` beside it",
    path=("", "/").__contains__,
)


class MqttBroker(SpecModel):
    """A broker that speaks MQTT 5, and who connects to it."""

    noun = "an mqtt connection"

    url: Annotated[Text, After(_checked_url)]
    """The broker, `mqtt://host:port`, or `mqtts://host:port` with TLS."""
    user: Text | None = None
    """Name of the user that connects. Default: none."""
    password: TextOrReference | None = None
    """Its password, as `{env: NAME}` or `{file: PATH}`. Default: none."""
    tls: ServerTls | None = None
    """Which certificates count, where `url` is `mqtts://`. Default: those of the authorities of the system."""
    timeout_s: PositiveDuration = field(default=10.0, alias="timeout")
    """How long an answer is waited for; then the connection is given up, and it is tried again. Duration, default
    10s."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Certificates where they are looked at; a password with a user."""
        if self.tls is not None and not self.encrypted:
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("tls",), "`tls` has no effect with mqtt://", "mqtts://")
        if self.password is not None and self.user is None:
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("password",), "`password` has no user", "`user` with it")

    @property
    def encrypted(self) -> bool:
        """Whether the connection is."""
        return urlsplit(self.url).scheme == "mqtts"

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        parts = urlsplit(self.url)
        return parts.port or _SCHEMES[parts.scheme]


def broker_notes(settings: MqttBroker, path: Path) -> Iterator[tuple[Path, str]]:
    """What to know about the way to a broker."""
    if isinstance(settings.password, str):
        yield (*path, "password"), "`password` stands in the file; `{env: NAME}` or `{file: PATH}` keeps it out"
    if settings.password is not None and not settings.encrypted and not stays_on_this_machine(settings.host.lower()):
        yield (*path, "url"), "the password and the records go to the broker in the clear; mqtts:// encrypts them"
