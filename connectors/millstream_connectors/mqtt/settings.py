"""How pipeline files name an MQTT broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from millstream import codes
from millstream.spec.addresses import address_check
from millstream.spec.rules import After
from millstream.spec.values import ShapeProblem, Text
from millstream_connectors.shared.servers import ServerByUrl

_PORTS = {"mqtt": 1883, "mqtts": 8883}

_checked_url = address_check(
    "the address of an MQTT broker",
    _PORTS,
    "mqtt://host:port, or mqtts:// with TLS; set `user` and `password` separately",
    path=("", "/").__contains__,
)


class MqttBroker(ServerByUrl):
    """A broker that speaks MQTT 5, and the user that connects to it."""

    noun = "an mqtt connection"
    ports: ClassVar = _PORTS

    url: Annotated[Text, After(_checked_url)]
    """The broker, `mqtt://host:port`, or `mqtts://host:port` with TLS."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Rejects a password without a user, too."""
        yield from super().relation_problems()
        if self.password is not None and self.user is None:
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("password",), "`password` has no user", "`user` with it")
