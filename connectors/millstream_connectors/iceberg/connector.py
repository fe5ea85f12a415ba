"""The `iceberg` source and sink, as pipeline files name them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from millstream.spec.connectors import Guarantee, GuaranteeId, OnlineFindings, Place
from millstream.spec.problems import Finding
from millstream_connectors.iceberg.settings import IcebergSink, IcebergSource
from millstream_connectors.lake.connector import TableConnector
from millstream_connectors.shared.looking import unfit
from millstream_reader.connector import SourceConnector, SourceOpening, SourceOwner
from millstream_writer.connector import SinkOwner

if TYPE_CHECKING:
    from millstream_connectors.lake.lane_table import LaneTable
    from millstream_connectors.lake.rows import TableRows


class _Source(SourceConnector[IcebergSource]):
    model = IcebergSource
    meaning = "Rows of an Apache Iceberg table, snapshot by snapshot."
    packages: ClassVar = {
        "pyiceberg": "millstream[iceberg]",
        "sqlalchemy": "millstream[iceberg]",
        "pyarrow": "millstream[iceberg]",
    }
    promise = Guarantee(
        GuaranteeId.POSITION, "exactly once: it continues at the snapshot, file and row of its last commit"
    )
    ends = "at the newest snapshot, without `follow`"

    def bounded(self, settings: IcebergSource) -> bool | None:
        return not settings.follow

    def online_findings(self, settings: IcebergSource, place: Place) -> OnlineFindings:
        from millstream_connectors.iceberg.source.snapshots import Snapshots

        async def look() -> Sequence[Finding]:
            with closing(Snapshots(settings, place.base_dir, "validate")) as table:
                await asyncio.to_thread(table.open)
            return ()

        return look()

    def open(self, settings: IcebergSource, owner: SourceOwner) -> SourceOpening:
        from millstream_connectors.file.source.disk import open_lane
        from millstream_connectors.iceberg.source.lane import IcebergSourceLane

        return open_lane(partial(IcebergSourceLane, settings), owner)


class _Sink(TableConnector[IcebergSink]):
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

    def online_findings(self, settings: IcebergSink, place: Place) -> OnlineFindings:
        from millstream_connectors.iceberg.sink import look

        return unfit(place, asyncio.to_thread(look, settings, place.base_dir))

    def place(self, settings: IcebergSink) -> str:
        catalog = settings.catalog
        return f"{catalog.sqlite or catalog.rest} {catalog.name} {catalog.warehouse or ''} {settings.table}"

    def lane_table(self, settings: IcebergSink, rows: TableRows, owner: SinkOwner) -> LaneTable[Any]:
        from millstream_connectors.iceberg.sink import IcebergLaneTable

        return IcebergLaneTable(settings, rows, owner)


SOURCE = _Source()
SINK = _Sink()
