"""The `iceberg` sink, as pipeline files name it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, ClassVar

from millstream import codes
from millstream.spec.connectors import Guarantee, GuaranteeId, Place
from millstream.spec.problems import Finding, Path
from millstream.spec.values import ShapeProblem, Text
from millstream_connectors.iceberg.settings import IcebergTable, table_findings, table_notes, table_problems
from millstream_connectors.shared.lake.settings import EVENT_TIME_PARTS, TableCommits, TableConnector
from millstream_writer.connector import SinkOwner

if TYPE_CHECKING:
    from millstream_writer.sink import SinkLane

_OF_COLUMN = re.compile(r"(year|month|day|hour)\((.+)\)")


class IcebergSink(TableCommits, IcebergTable):
    """Appends records to an Apache Iceberg table, each commit with the lane's position."""

    noun = "an iceberg sink"

    partition_by: tuple[Text, ...] = ()
    """Partitions of a table that the sink creates: names of `columns`, `day(at)` (or `year`, `month`, `hour`) of a
    column of the type `timestamp`, or `dt`, `hour`, `year`, `month` and `day`, which the sink derives from the record's
    event time, in UTC, as text. An existing table must have the same partitions. Default: none, or those of the
    existing table."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Also checks the catalog and the partitions."""
        yield from super().relation_problems()
        yield from table_problems(self, self.store)
        if self.catalog.rest is None and self.catalog.warehouse is None:
            what = "new tables need a warehouse"
            yield ShapeProblem(
                codes.FIELD_MISSING, ("catalog", "warehouse"), what, "a directory, or s3://bucket/prefix"
            )

    def _partition_problems(self, index: int, name: str) -> Iterator[ShapeProblem]:
        of_column = _OF_COLUMN.fullmatch(name)
        times = [column.name for column in self.columns if column.type == "timestamp"]
        if of_column is None:
            expected = f"one of `columns`, day(…) of a `timestamp`, or one of {', '.join(EVENT_TIME_PARTS)}"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("partitionBy", index), f"there is no column `{name}`", expected)
        elif of_column[2] not in times:
            what = f"`{of_column[2]}` is not a column of the type `timestamp`"
            expected = f"one of {', '.join(times)}" if times else "such a column in `columns`"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("partitionBy", index), what, expected)

    @property
    def partitions(self) -> Sequence[tuple[str, str]]:
        """The column and the transform of each partition."""
        found = [(name, _OF_COLUMN.fullmatch(name)) for name in self.partition_by]
        named = {column.name for column in self.columns}
        return [
            (name, "identity") if of_column is None or name in named else (of_column[2], of_column[1])
            for name, of_column in found
        ]


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
        from millstream_connectors.shared.lake.opening import open_table_sink
        from millstream_connectors.shared.lake.rows import TableRows

        settings = self.with_envelope(settings, owner)
        rows = TableRows(settings.columns, settings.of_time)
        return open_table_sink(settings, rows, IcebergLaneTable(settings, rows, owner), owner)


ICEBERG = _Iceberg()
