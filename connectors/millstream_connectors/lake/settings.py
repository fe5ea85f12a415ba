"""Settings of table sinks: rows and commits. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from millstream import codes
from millstream.spec.values import PositiveCount, PositiveDuration, Quantity, ShapeProblem, SpecModel, Text, field
from millstream_connectors.file.settings import Rolling
from millstream_connectors.shared.columns import Column, repeated_columns
from millstream_connectors.shared.objects.settings import ObjectStore

EVENT_TIME_PARTS = ("dt", "hour", "year", "month", "day")
"""Columns that are derived from the event time if `partitionBy` names them and `columns` does not."""
_COMMIT_BYTES_MAX = 1 << 30
"""Limit of `maxBytes`: records are in memory until they are committed."""


class TableCommits(SpecModel):
    """The rows of a table, and when they are committed."""

    noun = "a sink of tables"

    columns: tuple[Column, ...] = ()
    """Columns taken from the record's JSON value. Default: one binary column `value`."""
    partition_by: tuple[Text, ...] = ()
    """Partition columns of the table, outermost first: names of `columns`; or `dt` (`2024-01-31`), `hour` (`08`),
    `year`, `month` and `day`, which the sink derives from the record's event time, in UTC, as text."""
    schema_mode: Literal["strict", "merge"] = "strict"
    """What happens if the table lacks one of the columns: `strict` refuses it, `merge` adds the column to the table."""
    commit_every_s: PositiveDuration = field(default=30.0, alias="commitEvery")
    """How long records are collected for one commit; also the longest time until a record is visible. A commit happens
    earlier if `maxRecords` or `maxBytes` is reached. Duration, default 30s."""
    max_records: PositiveCount | None = None
    """Maximum number of records in a commit. They stay in the buffer until then, so this is at most the number at which
    the buffer's writers wait. Default: half of that number."""
    max_bytes: Quantity = 128 << 20
    """Maximum number of bytes of records in a commit, in memory. Default 128 MiB."""
    store: ObjectStore | None = None
    """How to reach the object store. Default: as the environment says."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Rejects repeated names, and a table that has only partition columns."""
        yield from repeated_columns(self.columns)
        names = [column.name for column in self.columns]
        for index, name in enumerate(self.partition_by):
            if name in self.partition_by[:index]:
                yield ShapeProblem(codes.NAME_TWICE, ("partitionBy", index), f"`{name}` appears twice", "each once")
            elif name not in names and name not in EVENT_TIME_PARTS:
                yield from self._partition_problems(index, name)
        if names and set(names) <= set(self.partition_by):
            what = "a table needs a column that is not a partition column"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("partitionBy",), what, "another column in `columns`")
        if self.max_bytes > _COMMIT_BYTES_MAX:
            yield ShapeProblem(
                codes.OUT_OF_RANGE, ("maxBytes",), "the records of a commit are kept in memory", "at most 1GiB"
            )

    def _partition_problems(self, index: int, name: str) -> Iterator[ShapeProblem]:
        """The problem of a partition that is neither a column nor derived from the event time."""
        expected = f"one of `columns`, or of {', '.join(EVENT_TIME_PARTS)}"
        yield ShapeProblem(codes.FIELDS_CONFLICT, ("partitionBy", index), f"there is no column `{name}`", expected)

    @property
    def of_time(self) -> Sequence[str]:
        """Columns that are derived from the event time."""
        named = {column.name for column in self.columns}
        return [name for name in self.partition_by if name not in named and name in EVENT_TIME_PARTS]

    @property
    def rolling(self) -> Rolling:
        """When a commit is made."""
        limits = {"max_bytes": self.max_bytes, "max_records": self.max_records, "max_age_s": self.commit_every_s}
        return Rolling().model_copy(update=limits)

    def place_of(self, name: str) -> tuple[str | int, ...]:
        """The place of a column in the pipeline file."""
        for index, column in enumerate(self.columns):
            if column.name == name:
                return ("columns", index, "type")
        return ("columns",) if name not in self.partition_by else ("partitionBy",)
