"""The `pulsar` source, as pipeline files name it."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from millstream import codes
from millstream.spec.connectors import Guarantee, GuaranteeId, Place
from millstream.spec.problems import Finding, Path
from millstream.spec.rules import After, Strict
from millstream.spec.values import Flag, Text
from millstream_connectors.pulsar.settings import PulsarCluster, cluster_notes, full_name, topic_check
from millstream_connectors.shared.starts import EARLIEST, Start
from millstream_reader.connector import SourceConnector, SourceOwner

if TYPE_CHECKING:
    from millstream_reader.source import SourceLane


def _checked_topics(written: str) -> str:
    for name in written.split(","):
        topic_check(name.strip())
    return written


class PulsarSource(PulsarCluster):
    """Reads Pulsar topics by message id; each of their partitions is read by one lane, in order."""

    noun = "a pulsar source"

    topic: Annotated[Text, After(_checked_topics)]
    """The topic, or several separated by commas: a name in `public/default`, or `persistent://tenant/namespace/name`."""
    subscription_name: Text
    """A subscription that follows the last commit, so that Pulsar keeps the messages after it. The source never reads
    its position. It is created when it is needed."""
    start: Start = EARLIEST
    """Where the first run starts: `earliest`, `latest`, or at the first message published since a time (RFC 3339, with
    an offset). Later runs continue after the message of the last commit."""
    stop_at_end: Flag = False
    """End at the message that is the last one when the first run starts."""
    receiver_queue_size: Annotated[int, Strict(ge=1, le=100_000)] = 500
    """Maximum number of messages of a partition that are received and not read yet."""

    @property
    def topics(self) -> Sequence[str]:
        """Their full names, without duplicates."""
        return tuple(dict.fromkeys(full_name(name.strip()) for name in self.topic.split(",")))


class _Pulsar(SourceConnector[PulsarSource]):
    encoded = True
    model = PulsarSource
    meaning = "Messages of topics of Pulsar."
    packages: ClassVar[Mapping[str, str]] = {"pulsar": "millstream[pulsar]"}
    promise = Guarantee(GuaranteeId.POSITION, "exactly once: it continues after the message in its last commit")
    ends = "never, without `stopAtEnd`"
    strangers = True

    def bounded(self, settings: PulsarSource) -> bool | None:
        return settings.stop_at_end

    def notes(self, settings: PulsarSource, path: Path) -> Iterator[tuple[Path, str]]:
        yield from cluster_notes(settings, path)

    def online_findings(self, settings: PulsarSource, place: Place) -> Coroutine[Any, Any, Sequence[Finding]]:
        from millstream_connectors.pulsar.looking import Looking, look

        async def findings() -> Sequence[Finding]:
            found = await look(settings, settings.topics, place.base_dir, Looking())
            return [Finding(codes.TARGET_UNFIT, (*place.path, "topic"), what, expected) for what, expected in found]

        return findings()

    def open(self, settings: PulsarSource, owner: SourceOwner) -> AbstractAsyncContextManager[SourceLane]:
        from millstream_connectors.pulsar.source.lane import open_pulsar_source

        return open_pulsar_source(settings, owner)


PULSAR = _Pulsar()
