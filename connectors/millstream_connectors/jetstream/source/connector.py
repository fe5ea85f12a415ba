"""The `jetstream` source, as pipeline files name it."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Annotated, Any

from millstream import codes
from millstream.spec.connectors import Guarantee, GuaranteeId, Place
from millstream.spec.problems import Finding, Path
from millstream.spec.rules import After
from millstream.spec.values import Flag, ShapeProblem, Text
from millstream_connectors.nats.settings import NatsServer, checked_filter, filters_of, overlaps, server_notes
from millstream_connectors.shared.starts import EARLIEST, Start
from millstream_reader.connector import SourceConnector, SourceOwner

if TYPE_CHECKING:
    from millstream_reader.source import SourceLane


class JetStreamSource(NatsServer):
    """Reads a JetStream stream in order."""

    noun = "a jetstream source"

    stream: Text
    """Name of the stream."""
    subject: Annotated[Text, After(checked_filter)] | None = None
    """Only messages of this subject, or of the subjects that match a pattern such as `orders.*`. Several are separated
    by commas, and each is read by one lane. Default: all messages, read by one lane."""
    start: Start = EARLIEST
    """Where the first run starts: `earliest`, `latest`, or at the first message since a time (RFC 3339, with an
    offset). Later runs continue after the message of the last commit."""
    stop_at_end: Flag = False
    """End at the message that is the last one when the first run starts."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Rejects patterns that would give a message to two lanes."""
        yield from super().relation_problems()
        yield from overlaps(self.subjects, ("subject",))

    @property
    def subjects(self) -> Sequence[str]:
        """Patterns of the subjects to read; empty for all."""
        return () if self.subject is None else filters_of(self.subject)


class _JetStream(SourceConnector[JetStreamSource]):
    model = JetStreamSource
    meaning = "Messages of a stream of NATS JetStream."
    promise = Guarantee(GuaranteeId.POSITION, "exactly once: it continues after the message in its last commit")
    ends = "never, without `stopAtEnd`"
    strangers = True
    encoded = True

    def bounded(self, settings: JetStreamSource) -> bool | None:
        return settings.stop_at_end

    def notes(self, settings: JetStreamSource, path: Path) -> Iterator[tuple[Path, str]]:
        yield from server_notes(settings, path)

    def online_findings(self, settings: JetStreamSource, place: Place) -> Coroutine[Any, Any, Sequence[Finding]]:
        from millstream_connectors.jetstream.source.lane import look

        async def findings() -> Sequence[Finding]:
            found = await look(settings, place.base_dir)
            return [Finding(codes.TARGET_UNFIT, (*place.path, "stream"), what, expected) for what, expected in found]

        return findings()

    def open(self, settings: JetStreamSource, owner: SourceOwner) -> AbstractAsyncContextManager[SourceLane]:
        from millstream_connectors.jetstream.source.lane import open_jetstream_source

        return open_jetstream_source(settings, owner)


JETSTREAM = _JetStream()
