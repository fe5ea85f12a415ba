"""The `delta` sink, as pipeline files name it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, ClassVar

from millstream.spec.connectors import Guarantee, GuaranteeId, Place
from millstream.spec.problems import Finding, Path
from millstream_connectors.delta.azurite import azurite_note
from millstream_connectors.delta.settings import DeltaSink
from millstream_connectors.lake.connector import TableConnector
from millstream_connectors.shared.objects.settings import (
    ObjectStore,
    is_url,
    store_findings,
    store_notes,
)
from millstream_writer.connector import SinkOwner

if TYPE_CHECKING:
    from millstream_writer.sink import SinkLane


class _Delta(TableConnector[DeltaSink]):
    model = DeltaSink
    meaning = "To a Delta Lake table."
    packages: ClassVar[Mapping[str, str]] = {"deltalake": "millstream[delta]", "pyarrow": "millstream[delta]"}
    promise = Guarantee(
        GuaranteeId.TRANSACTIONAL,
        "exactly once: each commit of the table holds the records and, as application transactions, the position "
        "after them and the owner's epoch",
    )

    def local_findings(self, settings: DeltaSink, place: Place) -> Iterator[Finding]:
        if is_url(settings.path):
            yield from store_findings(settings.store or ObjectStore(), (*place.path, "store"), place.base_dir)

    def online_findings(self, settings: DeltaSink, place: Place) -> Coroutine[Any, Any, Sequence[Finding]]:
        from millstream_connectors.delta.sink.table import look

        async def findings() -> Sequence[Finding]:
            faults = await asyncio.to_thread(look, settings, place.base_dir)
            return place.unfit(faults)

        return findings()

    def notes(self, settings: DeltaSink, path: Path) -> Iterator[tuple[Path, str]]:
        if settings.store is not None:
            yield from store_notes(settings.store, (*path, "store"))
            note = azurite_note(settings.path, settings.store)
            if note is not None:
                yield (*path, "store", "endpoint"), note

    def place(self, settings: DeltaSink) -> str:
        return settings.path

    def open(self, settings: DeltaSink, owner: SinkOwner) -> AbstractAsyncContextManager[SinkLane]:
        from millstream_connectors.delta.sink.table import DeltaLaneTable
        from millstream_connectors.lake.opening import open_table_sink
        from millstream_connectors.lake.rows import TableRows

        settings = self.with_envelope(settings, owner)
        rows = TableRows(settings.columns, settings.of_time)
        return open_table_sink(settings, rows, DeltaLaneTable(settings, rows, owner), owner)


DELTA = _Delta()
