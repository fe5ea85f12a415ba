"""The `iceberg` source, as pipeline files name it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import ClassVar

from millstream.spec.connectors import Guarantee, GuaranteeId, OnlineFindings, Place
from millstream.spec.problems import Finding, Path
from millstream_connectors.iceberg.settings import IcebergSource, table_findings, table_notes
from millstream_reader.connector import SourceConnector, SourceOpening, SourceOwner


class _Iceberg(SourceConnector[IcebergSource]):
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

    def local_findings(self, settings: IcebergSource, place: Place) -> Iterator[Finding]:
        yield from table_findings(settings, settings.store, place.path, place.base_dir)

    def online_findings(self, settings: IcebergSource, place: Place) -> OnlineFindings:
        from millstream_connectors.iceberg.source.snapshots import Snapshots

        async def look() -> Sequence[Finding]:
            with closing(Snapshots(settings, place.base_dir, "validate")) as table:
                await asyncio.to_thread(table.open)
            return ()

        return look()

    def notes(self, settings: IcebergSource, path: Path) -> Iterator[tuple[Path, str]]:
        yield from table_notes(settings, settings.store, path)

    def open(self, settings: IcebergSource, owner: SourceOwner) -> SourceOpening:
        from millstream_connectors.file.source.disk import open_lane
        from millstream_connectors.iceberg.source.lane import IcebergSourceLane

        return open_lane(partial(IcebergSourceLane, settings), owner)


ICEBERG = _Iceberg()
