"""The `rabbitmq` source, as pipeline files name it."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from millstream import codes
from millstream.limits import IDS_MAX
from millstream.spec.connectors import Guarantee, GuaranteeId, IdBounds, IdsCount, Place
from millstream.spec.problems import Finding, Path
from millstream.spec.rules import Strict
from millstream.spec.values import Flag, PositiveDuration, ShapeProblem, Text, as_duration, field
from millstream_connectors.rabbitmq.settings import RabbitServer
from millstream_connectors.shared.servers import notes_by_url
from millstream_connectors.shared.starts import EARLIEST, LATEST, Start
from millstream_reader.connector import SourceConnector, SourceOwner

if TYPE_CHECKING:
    from millstream_reader.source import SourceLane

_PREFETCH_MAX = 65_535
"""The protocol has two bytes for the number."""


class RabbitSource(RabbitServer):
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
    id_ttl_s: Annotated[PositiveDuration, Strict(ge=1)] = field(default=24 * 3600.0, alias="idTtl")
    """How long a message id is remembered, so that a repeated message has no effect. Duration of at least 1s, default
    24h."""
    ids_max: IdsCount = field(default=IDS_MAX, alias="idsMax")
    """Maximum number of message ids that are remembered; beyond it the source waits. The broker reserves 48 bytes for
    each id; a remembered id takes 30 bytes of memory."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Rejects a `start` that is not a place in a stream, or that has no effect."""
        yield from super().relation_problems()
        if self.start == LATEST:
            # Until the first message is read, each restart would begin at another place.
            yield ShapeProblem(codes.VALUE_MALFORMED, ("start",), "`latest` is not a place in a stream", "a time")
        elif self.start != EARLIEST and not self.stream:
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("start",), "`start` has no effect without `stream`", "both")


class _Rabbit(SourceConnector[RabbitSource]):
    encoded = True
    model = RabbitSource
    meaning = "Messages of a RabbitMQ queue."
    packages: ClassVar[Mapping[str, str]] = {"aiormq": "millstream[rabbitmq]"}
    promise = Guarantee(
        GuaranteeId.RECORD_IDS,
        "exactly once for messages of a stream, and for messages with a unique `message_id`, as long as `idTtl` "
        "remembers it; at least once without one",
    )
    strangers = True

    def bounded(self, settings: RabbitSource) -> bool | None:
        return False

    def id_bounds(self, settings: RabbitSource) -> IdBounds | None:
        return None if settings.stream else IdBounds(settings.id_ttl_s, settings.ids_max)

    def guarantee(self, settings: RabbitSource) -> Guarantee:
        if settings.stream:
            what = "exactly once: it continues after the message in its last commit"
            return Guarantee(GuaranteeId.POSITION, what)
        sentence = (
            "exactly once for messages with a unique `message_id`, which is remembered for "
            f"{as_duration(settings.id_ttl_s)}; at least once without one"
        )
        return Guarantee(GuaranteeId.RECORD_IDS, sentence)

    def notes(self, settings: RabbitSource, path: Path) -> Iterator[tuple[Path, str]]:
        yield from notes_by_url(settings, path)

    def online_findings(self, settings: RabbitSource, place: Place) -> Coroutine[Any, Any, Sequence[Finding]]:
        from millstream_connectors.rabbitmq.source.queue import look

        async def findings() -> Sequence[Finding]:
            found = await look(settings, place.base_dir)
            return [Finding(codes.TARGET_UNFIT, (*place.path, "queue"), what, expected) for what, expected in found]

        return findings()

    def open(self, settings: RabbitSource, owner: SourceOwner) -> AbstractAsyncContextManager[SourceLane]:
        if settings.stream:
            from millstream_connectors.rabbitmq.source.stream import open_stream

            return open_stream(settings, owner)
        from millstream_connectors.rabbitmq.source.queue import KIND, RabbitSubscription
        from millstream_connectors.shared.acknowledged import open_acknowledged

        subscription = RabbitSubscription(settings, owner)
        return open_acknowledged(
            KIND,
            settings.queue,
            owner,
            subscription,
            messages_max=settings.prefetch,
        )


RABBITMQ = _Rabbit()
