"""The `mqtt` source, as pipeline files name it."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from millstream import codes
from millstream.limits import IDS_MAX
from millstream.spec.connectors import Guarantee, GuaranteeId, IdBounds, IdsCount, Place
from millstream.spec.problems import Finding, Path
from millstream.spec.rules import After, Strict
from millstream.spec.values import PositiveDuration, Text, as_duration, field, problem
from millstream_connectors.mqtt.settings import MqttBroker
from millstream_connectors.shared.servers import notes_by_url
from millstream_reader.connector import SourceConnector, SourceOwner

if TYPE_CHECKING:
    from millstream_reader.source import SourceLane

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


class MqttSource(MqttBroker):
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
    id_ttl_s: Annotated[PositiveDuration, Strict(ge=1)] = field(default=24 * 3600.0, alias="idTtl")
    """How long the id of a message is remembered, so that a repeated message has no effect. Duration of at least 1s,
    default 24h."""
    ids_max: IdsCount = field(default=IDS_MAX, alias="idsMax")
    """Maximum number of ids that are remembered; beyond it the source waits. The pipeline's broker reserves 48 bytes
    for each id; a remembered id takes 30 bytes of memory."""


class _Mqtt(SourceConnector[MqttSource]):
    model = MqttSource
    meaning = "Messages of MQTT topics."
    packages: ClassVar[Mapping[str, str]] = {"paho": "millstream[mqtt]"}
    promise = Guarantee(
        GuaranteeId.RECORD_IDS,
        "exactly once for messages of QoS 1 with the user property `idProperty`, as long as `idTtl` remembers it; at "
        "least once without it; at most once for messages of QoS 0",
    )
    strangers = True

    def bounded(self, settings: MqttSource) -> bool | None:
        return False

    def id_bounds(self, settings: MqttSource) -> IdBounds | None:
        return IdBounds(settings.id_ttl_s, settings.ids_max)

    def guarantee(self, settings: MqttSource) -> Guarantee:
        sentence = (
            f"exactly once for messages of QoS 1 with the user property `{settings.id_property}`, which is remembered "
            f"for {as_duration(settings.id_ttl_s)}; at least once without it; at most once for messages of QoS 0"
        )
        return Guarantee(GuaranteeId.RECORD_IDS, sentence)

    def notes(self, settings: MqttSource, path: Path) -> Iterator[tuple[Path, str]]:
        yield from notes_by_url(settings, path)

    def online_findings(self, settings: MqttSource, place: Place) -> Coroutine[Any, Any, Sequence[Finding]]:
        from millstream_connectors.mqtt.source.topic import look

        async def findings() -> Sequence[Finding]:
            found = await look(settings, place.base_dir)
            return [Finding(codes.TARGET_UNFIT, (*place.path, "topic"), what, expected) for what, expected in found]

        return findings()

    def open(self, settings: MqttSource, owner: SourceOwner) -> AbstractAsyncContextManager[SourceLane]:
        from millstream_connectors.mqtt.source.topic import KIND, MqttSubscription
        from millstream_connectors.shared.acknowledged import open_acknowledged

        subscription = MqttSubscription(settings, owner)
        return open_acknowledged(KIND, settings.topic, owner, subscription, messages_max=settings.prefetch)


MQTT = _Mqtt()
