"""The `iceberg` sink, as pipeline files name it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, ClassVar

from millstream.spec.connectors import Guarantee, GuaranteeId, Place
from millstream.spec.problems import Finding, Path
from millstream_connectors.iceberg.settings import IcebergSink, table_findings, table_notes
from millstream_connectors.lake.connector import TableConnector
from millstream_writer.connector import SinkOwner

if TYPE_CHECKING:
    from millstream_writer.sink import SinkLane


class _Iceberg(TableConnector[IcebergSink]):
    model = IcebergSink
    meaning = "To an Apache Iceberg table."
    packages: ClassVar[Mapping[str, str]] = {
        "pyiceberg": "millstream[iceberg]",
        "pyiceberg_core": "millstream[iceberg]",
        "sqlalchemy": "millstream[iceberg]",
        "pyarrow": "millstream[iceberg]",
    }
    promise = Guarantee(
        GuaranteeId.TRANSACTIONAL,
        "exactly once: each commit of the table holds the records and, as a property of the table, the position after "
        "them and the owner's epoch",
    )

    def local_findings(self, settings: IcebergSink, place: Place) -> Iterator[Finding]:
        yield from table_findings(settings, settings.store, place.path, place.base_dir)

    def online_findings(self, settings: IcebergSink, place: Place) -> Coroutine[Any, Any, Sequence[Finding]]:
        from millstream_connectors.iceberg.sink.table import look

        async def findings() -> Sequence[Finding]:
            faults = await asyncio.to_thread(look, settings, place.base_dir)
            return place.unfit(faults)

        return findings()

    def notes(self, settings: IcebergSink, path: Path) -> Iterator[tuple[Path, str]]:
        yield from table_notes(settings, settings.store, path)

    def place(self, settings: IcebergSink) -> str:
        catalog = settings.catalog
        return f"{catalog.sqlite or catalog.rest} {catalog.name} {catalog.warehouse or ''} {settings.table}"

    def open(self, settings: IcebergSink, owner: SinkOwner) -> AbstractAsyncContextManager[SinkLane]:
        from millstream_connectors.iceberg.sink.table import IcebergLaneTable
        from millstream_connectors.lake.opening import open_table_sink
        from millstream_connectors.lake.rows import TableRows

        settings = self.with_envelope(settings, owner)
        rows = TableRows(settings.columns, settings.of_time)
        return open_table_sink(settings, rows, IcebergLaneTable(settings, rows, owner), owner)


ICEBERG = _Iceberg()
