"""The `kafka` source, as pipeline files name it."""

from __future__ import annotations

import re
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from millstream import codes
from millstream.spec.connectors import Guarantee, GuaranteeId, Place
from millstream.spec.problems import Finding, Path
from millstream.spec.rules import After
from millstream.spec.values import Flag, Text, problem
from millstream_connectors.kafka.settings import PATTERN, KafkaCluster, clear_password
from millstream_connectors.shared.starts import EARLIEST, Start
from millstream_reader.connector import SourceConnector, SourceOwner

if TYPE_CHECKING:
    from millstream_reader.source import SourceLane


def _checked_topics(written: str) -> str:
    for name in written.split(","):
        try:
            re.compile(name.strip() if name.strip().startswith(PATTERN) else "")
        except re.error as error:
            what = f"{name.strip()!r} is not a regular expression: {error}"
            raise problem(codes.VALUE_MALFORMED, what, "a name, or an expression such as `^orders-`") from None
    return written


class KafkaSource(KafkaCluster):
    """Reads Kafka topics; each of their partitions is read by one lane, in order."""

    noun = "a kafka source"

    topic: Annotated[Text, After(_checked_topics)]
    """The topic, or several separated by commas. A name that begins with `^` is a regular expression, matched from the
    first character of a topic: `^orders-`. Matching topics that are created later are found within half a minute."""
    start: Start = EARLIEST
    """Where the first run starts: `earliest`, `latest`, or at the first record since a time (RFC 3339, with an offset).
    Later runs continue where the last commit ended. Partitions that are added later are read from their beginning."""
    stop_at_end: Flag = False
    """End at the record that is the last one when the first run starts."""
    consumer_group: Text | None = None
    """A group for which positions are committed, for tools that show lags. The source never reads them. Default:
    none."""

    @property
    def topics(self) -> Sequence[str]:
        """Rejects duplicates."""
        return tuple(dict.fromkeys(name.strip() for name in self.topic.split(",") if name.strip()))


class _Kafka(SourceConnector[KafkaSource]):
    model = KafkaSource
    meaning = "Records of topics of Kafka."
    promise = Guarantee(GuaranteeId.POSITION, "exactly once: it continues at the offsets in its last commit")
    ends = "never, without `stopAtEnd`"
    packages: ClassVar[Mapping[str, str]] = {"confluent_kafka": "millstream[kafka]"}
    strangers = True
    keys_are_bytes = True
    encoded = keys_encoded = True

    def bounded(self, settings: KafkaSource) -> bool | None:
        return settings.stop_at_end

    def notes(self, settings: KafkaSource, path: Path) -> Iterator[tuple[Path, str]]:
        yield from clear_password(settings, path)

    def online_findings(self, settings: KafkaSource, place: Place) -> Coroutine[Any, Any, Sequence[Finding]]:
        from millstream_connectors.kafka.client import look_for_topics

        async def look() -> Sequence[Finding]:
            await look_for_topics(settings, settings.topics, place.base_dir, "the kafka source")
            return ()

        return look()

    def open(self, settings: KafkaSource, owner: SourceOwner) -> AbstractAsyncContextManager[SourceLane]:
        from millstream_connectors.kafka.source.lane import open_kafka

        return open_kafka(settings, owner)


KAFKA = _Kafka()
