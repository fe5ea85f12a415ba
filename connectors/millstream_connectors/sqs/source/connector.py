"""The `sqs` source, as pipeline files name it."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from millstream import codes
from millstream.limits import IDS_MAX
from millstream.spec.connectors import Guarantee, GuaranteeId, IdBounds, IdsCount, Place
from millstream.spec.problems import Finding, Path
from millstream.spec.rules import Strict
from millstream.spec.values import PositiveDuration, as_duration, field
from millstream_connectors.sqs.settings import SqsQueue, queue_notes
from millstream_reader.connector import SourceConnector, SourceOwner

if TYPE_CHECKING:
    from millstream_reader.source import SourceLane

_HOURS_12 = 12 * 3600


class SqsSource(SqsQueue):
    """Receives messages from an Amazon SQS queue, and deletes them once they are committed."""

    noun = "an sqs source"

    visibility_timeout_s: Annotated[PositiveDuration, Strict(ge=3, le=_HOURS_12)] = field(
        default=60.0, alias="visibilityTimeout"
    )
    """How long the queue hides a delivered message. It is extended as long as the source holds the message; after a
    crash the message is delivered again when the time is over. Duration of 3s to 12h, in whole seconds, default 60s."""
    prefetch: Annotated[int, Strict(ge=10, le=20_000)] = 1000
    """Approximate maximum number of messages that are held without being deleted."""
    id_ttl_s: Annotated[PositiveDuration, Strict(ge=1)] = field(default=24 * 3600.0, alias="idTtl")
    """How long the id of a message is remembered, so that a repeated message has no effect. Duration of at least 1s,
    default 24h."""
    ids_max: IdsCount = field(default=IDS_MAX, alias="idsMax")
    """Maximum number of ids that are remembered; beyond it the source waits. The broker reserves 48 bytes for each id;
    a remembered id takes 30 bytes of memory."""


class _Sqs(SourceConnector[SqsSource]):
    model = SqsSource
    meaning = "Messages of an Amazon SQS queue."
    packages: ClassVar[Mapping[str, str]] = {"aiobotocore": "millstream[sqs]"}
    promise = Guarantee(GuaranteeId.RECORD_IDS, "exactly once, as long as `idTtl` remembers the id of a message")
    strangers = True

    def bounded(self, settings: SqsSource) -> bool | None:
        return False

    def id_bounds(self, settings: SqsSource) -> IdBounds | None:
        return IdBounds(settings.id_ttl_s, settings.ids_max)

    def guarantee(self, settings: SqsSource) -> Guarantee:
        sentence = f"exactly once: the id of each message is remembered for {as_duration(settings.id_ttl_s)}"
        return Guarantee(GuaranteeId.RECORD_IDS, sentence)

    def notes(self, settings: SqsSource, path: Path) -> Iterator[tuple[Path, str]]:
        yield from queue_notes(settings, path)

    def online_findings(self, settings: SqsSource, place: Place) -> Coroutine[Any, Any, Sequence[Finding]]:
        from millstream_connectors.sqs.look import look

        async def findings() -> Sequence[Finding]:
            found = await look(settings, place.base_dir)
            return [Finding(codes.TARGET_UNFIT, (*place.path, "queueUrl"), what, expected) for what, expected in found]

        return findings()

    def open(self, settings: SqsSource, owner: SourceOwner) -> AbstractAsyncContextManager[SourceLane]:
        from millstream_connectors.shared.acknowledged import open_acknowledged
        from millstream_connectors.sqs.source.queue import KIND, subscription

        return open_acknowledged(
            KIND,
            settings.queue_url,
            owner,
            subscription(settings, owner),
            messages_max=settings.prefetch,
        )


SQS = _Sqs()
