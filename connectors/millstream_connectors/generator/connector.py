"""The `generator` source, as pipeline files name it."""

from __future__ import annotations

from millstream.spec.connectors import Guarantee, GuaranteeId
from millstream_connectors.generator.settings import GeneratorSource
from millstream_reader.connector import SourceConnector, SourceOpening, SourceOwner


class _Source(SourceConnector[GeneratorSource]):
    model = GeneratorSource
    meaning = "Generated records."
    promise = Guarantee(GuaranteeId.POSITION, "exactly once: from a position it generates the same records again")
    ends = "with `records`"
    has_headers = False

    def bounded(self, settings: GeneratorSource) -> bool | None:
        return settings.records is not None

    def may_give_keys(self, settings: GeneratorSource) -> bool:
        return settings.key_count > 0

    def open(self, settings: GeneratorSource, owner: SourceOwner) -> SourceOpening:
        from millstream_connectors.generator.source import open_generator

        return open_generator(settings, owner)


SOURCE = _Source()
