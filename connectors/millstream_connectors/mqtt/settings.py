"""The settings of the `mqtt` source and sink, as pipeline files have them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from millstream import codes
from millstream.spec.addresses import address_check
from millstream.spec.connectors import RemembersIds
from millstream.spec.values import After, ShapeProblem, Strict, Text, field, problem
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


SHARED = "$share/"


_TEXT_BYTES_MAX = 65_535


def _checked_filter(written: str) -> str:
    share, _, rest = written.removeprefix(SHARED).partition("/") if written.startswith(SHARED) else ("-", "", written)
    levels = rest.split("/")
    valid = bool(rest) and bool(share) and not any(sign in share for sign in "+#")
    valid = valid and "#" not in "".join(levels[:-1]) and "\0" not in written
    valid = valid and all(level in ("+", "#") or not ("+" in level or "#" in level) for level in levels)
    if not valid or len(written.encode()) > _TEXT_BYTES_MAX:
        expected = "a topic, with `+` for one level and a final `#` for all levels below; or `$share/group/filter`"
        raise problem(codes.VALUE_MALFORMED, f"{written[:80]!r} is not a topic filter", expected)
    return written


class MqttSource(RemembersIds, MqttBroker):
    """Receives messages of topics from an MQTT broker, and acknowledges them once they are committed."""

    noun = "an mqtt source"

    topic: Annotated[Text, After(_checked_filter)]
    """Topic, or a filter with `+` and `#` (`sensors/+/temperature`), or a shared subscription
    (`$share/group/filter`)."""
    session: Text
    """Name of the session, which is the client id. The broker keeps messages for it while the pipeline is stopped. Only
    this source may use it."""
    id_property: Text = field(default="Millstream-Id", alias="idProperty")
    """User property that contains the id of a message."""
    prefetch: Annotated[int, Strict(ge=1, le=65_535)] = 100
    """Maximum number of unacknowledged messages (MQTT's receive maximum)."""


def _checked_topic(written: str) -> str:
    if any(character in written for character in "+#\0") or len(written.encode()) > 65_535:
        raise problem(codes.VALUE_MALFORMED, f"{written[:80]!r} is not a topic", "a topic without `+` and `#`")
    return written


class MqttSink(MqttBroker):
    """Publishes records to a topic of an MQTT broker, with QoS 1."""

    noun = "an mqtt sink"

    topic: Annotated[Text, After(_checked_topic)]
    """The topic."""
