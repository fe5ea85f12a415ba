"""The `rabbitmq` source, as pipeline files name it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Annotated, ClassVar

from millstream import codes
from millstream.limits import IDS_MAX
from millstream.rabbitmq.settings import RabbitServer
from millstream.spec.connectors import Guarantee, GuaranteeId, IdBounds, IdsCount, Place
from millstream.spec.problems import Finding, Path
from millstream.spec.rules import Strict
from millstream.spec.servers import notes_by_url
from millstream.spec.values import PositiveDuration, Text, as_duration, field
from millstream_reader.connector import SourceConnector, SourceOwner

if TYPE_CHECKING:
    from millstream_reader.source import SourceLane

_PREFETCH_MAX = 65_535
"""The protocol has two bytes for the number."""


class RabbitSource(RabbitServer):
    """Receives messages from a RabbitMQ queue, and acknowledges them once they are committed."""

    noun = "a rabbitmq source"

    queue: Text
    """Name of the queue, classic or quorum. One lane reads it, in the order of delivery."""
    prefetch: Annotated[int, Strict(ge=1, le=_PREFETCH_MAX)] = 1000
    """Maximum number of unacknowledged messages. Fewer are held if they are large, so that they take some 32 MiB."""
    id_ttl_s: Annotated[PositiveDuration, Strict(ge=1)] = field(default=24 * 3600.0, alias="idTtl")
    """How long a message id is remembered, so that a repeated message has no effect. Duration of at least 1s, default
    24h."""
    ids_max: IdsCount = field(default=IDS_MAX, alias="idsMax")
    """Maximum number of message ids that are remembered; beyond it the source waits. The broker reserves 48 bytes for
    each id; a remembered id takes 30 bytes of memory."""


class _Rabbit(SourceConnector[RabbitSource]):
    encoded = True
    model = RabbitSource
    meaning = "Messages of a RabbitMQ queue."
    packages: ClassVar[Mapping[str, str]] = {"aiormq": "millstream[rabbitmq]"}
    promise = Guarantee(
        GuaranteeId.RECORD_IDS,
        "exactly once for messages with a unique `message_id`, as long as `idTtl` remembers it; at least once without "
        "one",
    )
    strangers = True

    def bounded(self, settings: RabbitSource) -> bool | None:
        return False

    def id_bounds(self, settings: RabbitSource) -> IdBounds | None:
        return IdBounds(settings.id_ttl_s, settings.ids_max)

    def guarantee(self, settings: RabbitSource) -> Guarantee:
        sentence = (
            "exactly once for messages with a unique `message_id`, which is remembered for "
            f"{as_duration(settings.id_ttl_s)}; at least once without one"
        )
        return Guarantee(GuaranteeId.RECORD_IDS, sentence)

    def notes(self, settings: RabbitSource, path: Path) -> Iterator[tuple[Path, str]]:
        yield from notes_by_url(settings, path)

    async def online_findings(self, settings: RabbitSource, place: Place) -> Sequence[Finding]:
        from millstream_reader.sources.rabbitmq.queue import look

        found = await look(settings, place.base_dir)
        return [Finding(codes.TARGET_UNFIT, (*place.path, "queue"), what, expected) for what, expected in found]

    def open(self, settings: RabbitSource, owner: SourceOwner) -> AbstractAsyncContextManager[SourceLane]:
        from millstream_reader.sources.acknowledged import open_acknowledged
        from millstream_reader.sources.rabbitmq.queue import KIND, RabbitSubscription

        subscription = RabbitSubscription(settings, owner)
        return open_acknowledged(
            KIND,
            settings.queue,
            owner,
            subscription,
            messages_max=settings.prefetch,
        )


RABBITMQ = _Rabbit()
