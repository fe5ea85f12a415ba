"""What the sinks of tables have in common: their guarantee, and what a commit and an envelope need."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from millstream import codes
from millstream.spec.connectors import SinkUse
from millstream.spec.values import ShapeProblem
from millstream_connectors.lake.settings import TableCommits
from millstream_connectors.shared.columns import envelope_problems
from millstream_writer.connector import EnvelopeForm, SinkConnector, SinkOpening, SinkOwner

if TYPE_CHECKING:
    from millstream_connectors.lake.lane_table import LaneTable
    from millstream_connectors.lake.rows import TableRows

S = TypeVar("S", bound=TableCommits)


class TableConnector(SinkConnector[S]):
    """A sink whose commits contain the rows and the position after them."""

    whole = True
    keeps_position_in = "table"

    def use_problems(self, settings: S, use: SinkUse) -> Iterator[ShapeProblem]:
        """Rejects a commit that could never fill up, because the buffer would stay full forever, and columns that an
        envelope does not have."""
        if (settings.max_records or 0) > use.buffer_records:
            what = f"a commit needs more records than the buffer ({use.buffer_records} records) can hold"
            yield ShapeProblem(codes.OUT_OF_RANGE, ("maxRecords",), what, f"at most {use.buffer_records}")
        if use.envelope:
            yield from envelope_problems(settings.columns)

    def envelope_form(self, settings: S) -> EnvelopeForm:
        return EnvelopeForm.COLUMNS

    def open(self, settings: S, owner: SinkOwner) -> SinkOpening:
        from millstream_connectors.file.sink.lane import open_keeping_sink
        from millstream_connectors.lake.rows import TableRows
        from millstream_connectors.shared.envelope_lane import ENVELOPE_COLUMNS

        if owner.envelope and not settings.columns:
            settings = settings.model_copy(update={"columns": ENVELOPE_COLUMNS})
        rows = TableRows(settings.columns, settings.of_time)
        return open_keeping_sink(self.lane_table(settings, rows, owner), rows, settings.rolling, owner)

    @abstractmethod
    def lane_table(self, settings: S, rows: TableRows, owner: SinkOwner) -> LaneTable[Any]:
        """The table for one lane, not open yet. Raises `UserError` for missing credentials."""
