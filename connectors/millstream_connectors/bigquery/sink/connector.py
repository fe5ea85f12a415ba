"""The `bigquery` sink, as pipeline files name it."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, ClassVar

from millstream import codes
from millstream.spec.connectors import Guarantee, GuaranteeId, Place
from millstream.spec.problems import Finding, Path
from millstream.spec.values import ShapeProblem
from millstream_connectors.bigquery.settings import BigQueryDataset, BigQueryTableName, dataset_notes
from millstream_connectors.shared.tables.settings import TableColumn, TableSink
from millstream_writer.connector import SinkConnector, SinkOwner, as_fallback

if TYPE_CHECKING:
    from millstream_writer.sink import SinkLane


class BigQuerySink(BigQueryDataset):
    """Adds records to a BigQuery table with the Storage Write API."""

    noun = "a bigquery sink"

    table: BigQueryTableName
    """Name of the table, which must exist."""
    columns: tuple[TableColumn, ...] = ()
    """The value of each column. Default: the whole record, in the columns `id`, `event_time`, `keys`, `headers` and
    `value`."""
    position_table: BigQueryTableName = "millstream_positions"
    """Table of the same dataset in which the sink stores the position of each lane. It must exist, with the columns on
    the sink's page."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Rejects duplicate columns, and types, which the table defines."""
        yield from super().relation_problems()
        names = [column.name for column in self.columns]
        for index, column in enumerate(self.columns):
            if column.name in names[:index]:
                what = f"column `{column.name}` appears twice"
                yield ShapeProblem(codes.NAME_TWICE, ("columns", index, "name"), what, "each column once")
            if column.type is not None:
                what = "`type` has no effect: the table has types"
                yield ShapeProblem(codes.FIELDS_CONFLICT, ("columns", index, "type"), what, "no `type`")

    @property
    def rows(self) -> TableSink:
        """How a record becomes a row, in the settings that sinks for tables share."""
        return TableSink(table="rows", columns=self.columns)


class _BigQuery(SinkConnector[BigQuerySink]):
    model = BigQuerySink
    meaning = "To a table of BigQuery."
    packages: ClassVar[Mapping[str, str]] = {
        "google.cloud.bigquery_storage_v1": "millstream[bigquery]",
        "fastavro": "millstream[bigquery]",
    }
    promise = Guarantee(
        GuaranteeId.TRANSACTIONAL,
        "exactly once: the number of rows in a stream, which BigQuery counts, says which of the noted positions counts",
    )

    def guarantee(self, settings: BigQuerySink, *, fallback: bool) -> Guarantee:
        if fallback:
            return as_fallback("table")
        return self.promise

    def online_findings(self, settings: BigQuerySink, place: Place) -> Coroutine[Any, Any, Sequence[Finding]]:
        from millstream_connectors.bigquery.sink.lane import look

        async def findings() -> Sequence[Finding]:
            faults = await look(settings, place.base_dir)
            return place.unfit(faults)

        return findings()

    def notes(self, settings: BigQuerySink, path: Path) -> Iterator[tuple[Path, str]]:
        yield from dataset_notes(settings, path)

    def open(self, settings: BigQuerySink, owner: SinkOwner) -> AbstractAsyncContextManager[SinkLane]:
        from millstream_connectors.bigquery.sink.lane import open_bigquery_sink

        return open_bigquery_sink(settings, owner)


BIGQUERY = _BigQuery()
