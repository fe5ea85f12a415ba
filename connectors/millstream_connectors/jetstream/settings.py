"""The settings of the `jetstream` source and sink, as pipeline files have them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

from millstream.spec.values import After, Flag, ShapeProblem, Text
from millstream_connectors.nats.settings import NatsServer, checked_filter, checked_subject, filters_of, overlaps
from millstream_connectors.shared.starts import EARLIEST, Start


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


class JetStreamSink(NatsServer):
    """Publishes records to a subject of a JetStream stream."""

    noun = "a jetstream sink"

    subject: Annotated[Text, After(checked_subject)]
    """The subject. A stream has to include it."""
    positions: Annotated[Text, After(checked_subject)] | None = None
    """A subject under which the same stream keeps the positions of lanes, such as `orders-positions`. Records and
    position are then one atomic batch, and each record is stored exactly once. The stream needs `allow_atomic`, and
    `<positions>.>` among its subjects. Default: none, which is at least once."""
