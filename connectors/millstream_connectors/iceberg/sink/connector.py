"""The `iceberg` sink, as pipeline files name it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from millstream.spec.connectors import Guarantee, GuaranteeId, OnlineFindings, Place
from millstream.spec.problems import Finding, Path
from millstream_connectors.iceberg.settings import IcebergSink, table_findings, table_notes
from millstream_connectors.lake.connector import TableConnector
from millstream_connectors.shared.looking import unfit
from millstream_writer.connector import SinkOwner

if TYPE_CHECKING:
    from millstream_connectors.lake.lane_table import LaneTable
    from millstream_connectors.lake.rows import TableRows


class _Iceberg(TableConnector[IcebergSink]):
    model = IcebergSink
    meaning = "To an Apache Iceberg table."
    packages: ClassVar = {
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

    def online_findings(self, settings: IcebergSink, place: Place) -> OnlineFindings:
        from millstream_connectors.iceberg.sink.table import look

        return unfit(place, asyncio.to_thread(look, settings, place.base_dir))

    def notes(self, settings: IcebergSink, path: Path) -> Iterator[tuple[Path, str]]:
        yield from table_notes(settings, settings.store, path)

    def place(self, settings: IcebergSink) -> str:
        catalog = settings.catalog
        return f"{catalog.sqlite or catalog.rest} {catalog.name} {catalog.warehouse or ''} {settings.table}"

    def lane_table(self, settings: IcebergSink, rows: TableRows, owner: SinkOwner) -> LaneTable[Any]:
        from millstream_connectors.iceberg.sink.table import IcebergLaneTable

        return IcebergLaneTable(settings, rows, owner)


ICEBERG = _Iceberg()
