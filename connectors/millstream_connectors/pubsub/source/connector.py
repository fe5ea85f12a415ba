"""The `pubsub` source, as pipeline files name it."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from millstream import codes
from millstream.errors import UserError
from millstream.limits import IDS_MAX
from millstream.spec.connectors import Guarantee, GuaranteeId, IdBounds, IdsCount, Place
from millstream.spec.problems import Finding, Path
from millstream.spec.rules import Strict
from millstream.spec.values import PositiveDuration, Text, as_duration, field
from millstream_connectors.pubsub.settings import PubsubProject, ResourceName, project_notes
from millstream_reader.connector import SourceConnector, SourceOwner

if TYPE_CHECKING:
    from millstream_reader.source import SourceLane


class PubsubSource(PubsubProject):
    """Takes messages from a subscription of Google Cloud Pub/Sub, and acknowledges them once they are committed."""

    noun = "a pubsub source"

    subscription: ResourceName
    """Name of a pull subscription in the project."""
    ack_deadline_s: Annotated[PositiveDuration, Strict(ge=3, le=600)] = field(default=60.0, alias="ackDeadline")
    """How long the service waits for the acknowledgement of a message before it delivers it again. The source
    extends this time while it holds the message. Duration of 3s to 10m, in whole seconds, default 60s."""
    prefetch: Annotated[int, Strict(ge=10, le=20_000)] = 1000
    """Approximate maximum number of messages that are held without an acknowledgement."""
    id_attribute: Text | None = None
    """Attribute with a unique id that the publisher gave the message, such as `Millstream-Id`. A message that was
    published twice then counts once. Default: the id that the service gave the message; it is also used if a message
    lacks the attribute."""
    id_ttl_s: Annotated[PositiveDuration, Strict(ge=1)] = field(default=24 * 3600.0, alias="idTtl")
    """How long the id of a message is remembered, so that a repeated message has no effect. Duration of at least 1s,
    default 24h."""
    ids_max: IdsCount = field(default=IDS_MAX, alias="idsMax")
    """Maximum number of ids that are remembered; beyond it the source waits. The broker reserves 48 bytes for each id;
    a remembered id takes 30 bytes of memory."""

    @property
    def path(self) -> str:
        """The subscription's full name, with its project."""
        return f"projects/{self.project}/subscriptions/{self.subscription}"


class _Pubsub(SourceConnector[PubsubSource]):
    encoded = True
    model = PubsubSource
    meaning = "Messages of a subscription of Google Cloud Pub/Sub."
    packages: ClassVar[Mapping[str, str]] = {"google.pubsub_v1": "millstream[pubsub]"}
    promise = Guarantee(GuaranteeId.RECORD_IDS, "exactly once, as long as `idTtl` remembers the id of a message")
    strangers = True

    def bounded(self, settings: PubsubSource) -> bool | None:
        return False

    def id_bounds(self, settings: PubsubSource) -> IdBounds | None:
        return IdBounds(settings.id_ttl_s, settings.ids_max)

    def guarantee(self, settings: PubsubSource) -> Guarantee:
        sentence = f"exactly once: the id of each message is remembered for {as_duration(settings.id_ttl_s)}"
        return Guarantee(GuaranteeId.RECORD_IDS, sentence)

    def notes(self, settings: PubsubSource, path: Path) -> Iterator[tuple[Path, str]]:
        yield from project_notes(settings, path)

    def online_findings(self, settings: PubsubSource, place: Place) -> Coroutine[Any, Any, Sequence[Finding]]:
        from millstream_connectors.pubsub.source.subscription import look

        async def findings() -> Sequence[Finding]:
            try:
                await look(settings, place.base_dir)
            except UserError as error:
                if error.code is not codes.TARGET_UNFIT:
                    raise
                what = f"there is no subscription {settings.path}"
                return [
                    Finding(codes.TARGET_UNFIT, (*place.path, "subscription"), what, "an existing pull subscription")
                ]
            return []

        return findings()

    def open(self, settings: PubsubSource, owner: SourceOwner) -> AbstractAsyncContextManager[SourceLane]:
        from millstream_connectors.pubsub.source.subscription import KIND, subscription
        from millstream_connectors.shared.acknowledged import open_acknowledged

        return open_acknowledged(
            KIND,
            settings.path,
            owner,
            subscription(settings, owner),
            messages_max=settings.prefetch,
        )


PUBSUB = _Pubsub()
