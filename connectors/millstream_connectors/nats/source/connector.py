"""The `nats` source, as pipeline files name it."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Annotated, Any

from millstream.spec.connectors import Guarantee, GuaranteeId, Place
from millstream.spec.problems import Finding, Path
from millstream.spec.rules import After
from millstream.spec.values import ShapeProblem, Text
from millstream_connectors.nats.settings import NatsServer, checked_filter, filters_of, overlaps, server_notes
from millstream_reader.connector import SourceConnector, SourceOwner

if TYPE_CHECKING:
    from millstream_reader.source import SourceLane


class NatsSource(NatsServer):
    """Receives messages of NATS subjects. NATS does not store them."""

    noun = "a nats source"

    subject: Annotated[Text, After(checked_filter)]
    """The subject, or a pattern such as `orders.*`. Several are separated by commas; without `queue`, one lane receives
    each."""
    queue: Text | None = None
    """Name of a queue group: the server gives each message to one of its members, and every lane is a member. Default:
    none; each lane has its own subjects."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Rejects patterns that would deliver a message twice."""
        yield from super().relation_problems()
        yield from overlaps(self.subjects, ("subject",))

    @property
    def subjects(self) -> Sequence[str]:
        """Patterns of the subjects."""
        return filters_of(self.subject)


class _Nats(SourceConnector[NatsSource]):
    model = NatsSource
    meaning = "Messages of NATS subjects, without JetStream."
    promise = Guarantee(
        GuaranteeId.AT_MOST_ONCE,
        "at most once: NATS does not store messages, so those sent while there is no connection are lost, and those "
        "that a killed process had not committed. `jetstream` is exactly once",
    )
    strangers = True
    encoded = True

    def bounded(self, settings: NatsSource) -> bool | None:
        return False

    def notes(self, settings: NatsSource, path: Path) -> Iterator[tuple[Path, str]]:
        yield from server_notes(settings, path)

    def online_findings(self, settings: NatsSource, place: Place) -> Coroutine[Any, Any, Sequence[Finding]]:
        from millstream_connectors.nats.source.stream import look

        async def findings() -> Sequence[Finding]:
            await look(settings, place.base_dir)
            return ()

        return findings()

    def open(self, settings: NatsSource, owner: SourceOwner) -> AbstractAsyncContextManager[SourceLane]:
        from millstream_connectors.nats.source.stream import open_nats_source

        return open_nats_source(settings, owner)


NATS = _Nats()
