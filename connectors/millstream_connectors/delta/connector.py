"""The `delta` source and sink, as pipeline files name them."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from millstream.spec.connectors import Guarantee, GuaranteeId, OnlineFindings, Place
from millstream_connectors.delta.settings import DeltaSink, DeltaSource
from millstream_connectors.lake.connector import TableConnector
from millstream_connectors.shared.looking import no_findings, unfit
from millstream_reader.connector import SourceConnector, SourceOpening, SourceOwner
from millstream_writer.connector import SinkOwner

if TYPE_CHECKING:
    from millstream_connectors.lake.lane_table import LaneTable
    from millstream_connectors.lake.rows import TableRows


class _Source(SourceConnector[DeltaSource]):
    model = DeltaSource
    meaning = "Rows of a Delta Lake table, version by version."
    packages: ClassVar = {"deltalake": "millstream[delta]", "pyarrow": "millstream[delta]"}
    promise = Guarantee(
        GuaranteeId.POSITION, "exactly once: it continues at the version, file and row of its last commit"
    )
    ends = "at the newest version, without `follow`"

    def bounded(self, settings: DeltaSource) -> bool | None:
        return not settings.follow

    def online_findings(self, settings: DeltaSource, place: Place) -> OnlineFindings:
        from millstream_connectors.delta.source.log import TableLog

        return no_findings(asyncio.to_thread(TableLog(settings, place.base_dir, "validate").open))

    def open(self, settings: DeltaSource, owner: SourceOwner) -> SourceOpening:
        from millstream_connectors.delta.source.lane import DeltaSourceLane
        from millstream_connectors.file.source.disk import open_lane

        return open_lane(partial(DeltaSourceLane, settings), owner)


class _Sink(TableConnector[DeltaSink]):
    model = DeltaSink
    meaning = "To a Delta Lake table."
    packages: ClassVar = {"deltalake": "millstream[delta]", "pyarrow": "millstream[delta]"}
    promise = Guarantee(
        GuaranteeId.TRANSACTIONAL,
        "exactly once: each commit of the table holds the records and, as application transactions, the position "
        "after them and the owner's epoch",
    )

    def online_findings(self, settings: DeltaSink, place: Place) -> OnlineFindings:
        from millstream_connectors.delta.sink import look

        return unfit(place, asyncio.to_thread(look, settings, place.base_dir))

    def place(self, settings: DeltaSink) -> str:
        return settings.path

    def lane_table(self, settings: DeltaSink, rows: TableRows, owner: SinkOwner) -> LaneTable[Any]:
        from millstream_connectors.delta.sink import DeltaLaneTable

        return DeltaLaneTable(settings, rows, owner)


SOURCE = _Source()
SINK = _Sink()
