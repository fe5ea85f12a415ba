"""The `delta` sink, as pipeline files name it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, ClassVar, Literal

from millstream import codes
from millstream.dead_letter import MEMBERS
from millstream.objects.settings import ObjectStore, is_url, store_findings, store_notes, url_problem
from millstream.spec.columns import Column, repeated_columns
from millstream.spec.connectors import Guarantee, GuaranteeId, Place, SinkUse
from millstream.spec.problems import Finding, Path
from millstream.spec.values import PositiveCount, PositiveDuration, Quantity, ShapeProblem, SpecModel, Text, field
from millstream_writer.connector import EnvelopeForm, SinkConnector, SinkOwner

if TYPE_CHECKING:
    from millstream_writer.sink import SinkLane

EVENT_TIME_PARTS = ("dt", "hour", "year", "month", "day")
"""Columns that are made of the event time where `partitionBy` names them and `columns` does not."""
_COMMIT_BYTES_MAX = 1 << 30
"""Records are in memory until they are committed."""


class DeltaSink(SpecModel):
    """Appends records to a Delta Lake table, each commit with the lane's position."""

    noun = "a delta sink"

    path: Text
    """Directory of the table, relative to the pipeline file, or its place in an object store: `s3://bucket/table`,
    `gs://…`, `az://container/…`. The table is created if it does not exist."""
    columns: tuple[Column, ...] = ()
    """Columns taken from the record's JSON value. Default: one binary column `value`."""
    partition_by: tuple[Text, ...] = ()
    """Partition columns of the table, outermost first: names of `columns`; or `dt` (`2024-01-31`), `hour` (`08`),
    `year`, `month` and `day`, which the sink derives from the record's event time, in UTC, as text."""
    schema_mode: Literal["strict", "merge"] = "strict"
    """What happens if the table lacks one of the columns: `strict` refuses it, `merge` adds the column to the table."""
    commit_every_s: PositiveDuration = field(default=30.0, alias="commitEvery")
    """How long records are collected for one commit; also the longest time until a record is visible. A commit comes
    earlier if `maxRecords` or `maxBytes` is reached. Duration, default 30s."""
    max_records: PositiveCount | None = None
    """Records in a commit. They stay in the buffer until then, so this is at most the number at which the buffer's
    writers wait. Default: half of that number."""
    max_bytes: Quantity = 128 << 20
    """Bytes of records in a commit, in memory. Default 128 MiB."""
    store: ObjectStore | None = None
    """How to reach the object store. Default: as the environment says."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Names once, and a table that has more than partition columns."""
        yield from repeated_columns(self.columns)
        yield from url_problem(self.path, ("path",))
        names = [column.name for column in self.columns]
        for index, name in enumerate(self.partition_by):
            if name in self.partition_by[:index]:
                yield ShapeProblem(codes.NAME_TWICE, ("partitionBy", index), f"`{name}` appears twice", "each once")
            elif name not in names and name not in EVENT_TIME_PARTS:
                expected = f"one of `columns`, or of {', '.join(EVENT_TIME_PARTS)}"
                yield ShapeProblem(
                    codes.FIELDS_CONFLICT, ("partitionBy", index), f"there is no column `{name}`", expected
                )
        if names and set(names) <= set(self.partition_by):
            what = "a table needs a column by which it is not partitioned"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("partitionBy",), what, "another column in `columns`")
        if self.max_bytes > _COMMIT_BYTES_MAX:
            what = "the records of a commit are kept in memory"
            yield ShapeProblem(codes.OUT_OF_RANGE, ("maxBytes",), what, "at most 1GiB")
        if self.store is not None and not is_url(self.path):
            what = "`store` has no effect when `path` is a directory"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("store",), what, "`path: s3://bucket/table`")


class _Delta(SinkConnector[DeltaSink]):
    whole = True
    model = DeltaSink
    meaning = "To a Delta Lake table."
    packages: ClassVar[Mapping[str, str]] = {"deltalake": "millstream[delta]", "pyarrow": "millstream[delta]"}
    promise = Guarantee(
        GuaranteeId.TRANSACTIONAL,
        "exactly once: each commit of the table holds the records and, as application transactions, the position "
        "after them and the owner's epoch",
    )

    def guarantee(self, settings: DeltaSink, *, fallback: bool) -> Guarantee:
        if fallback:
            what = (
                "at least once: after a crash, records that went to the fallback shortly before may be in its "
                "table twice"
            )
            return Guarantee(GuaranteeId.AT_LEAST_ONCE, what)
        return self.promise

    def use_problems(self, settings: DeltaSink, use: SinkUse) -> Iterator[ShapeProblem]:
        """A commit that could never fill up would hold the buffer full forever; an envelope has its own columns."""
        if (settings.max_records or 0) > use.buffer_records:
            what = f"a commit needs more records than the buffer ({use.buffer_records} records) can hold"
            yield ShapeProblem(codes.OUT_OF_RANGE, ("maxRecords",), what, f"at most {use.buffer_records}")
        for index, column in enumerate(settings.columns if use.envelope else ()):
            if column.name not in MEMBERS:
                what = f"the envelope of a record has no `{column.name}`"
                expected = f"one of {', '.join(MEMBERS)}, or `envelope: false` for columns of the record's own value"
                yield ShapeProblem(codes.FIELDS_CONFLICT, ("columns", index, "name"), what, expected)

    def local_findings(self, settings: DeltaSink, place: Place) -> Iterator[Finding]:
        if is_url(settings.path):
            yield from store_findings(settings.store or ObjectStore(), (*place.path, "store"), place.base_dir)

    async def online_findings(self, settings: DeltaSink, place: Place) -> Sequence[Finding]:
        from millstream_writer.sinks.delta.table import look

        faults = await asyncio.to_thread(look, settings, place.base_dir)
        return [Finding(codes.TARGET_UNFIT, (*place.path, *fault.loc), fault.what, fault.expected) for fault in faults]

    def notes(self, settings: DeltaSink, path: Path) -> Iterator[tuple[Path, str]]:
        if settings.store is not None:
            yield from store_notes(settings.store, (*path, "store"))

    def envelope_form(self, settings: DeltaSink) -> EnvelopeForm:
        return EnvelopeForm.COLUMNS

    def open(self, settings: DeltaSink, owner: SinkOwner) -> AbstractAsyncContextManager[SinkLane]:
        from millstream_writer.sinks.delta.lane import open_delta_sink
        from millstream_writer.sinks.envelope import ENVELOPE_COLUMNS

        if owner.envelope and not settings.columns:
            settings = settings.model_copy(update={"columns": ENVELOPE_COLUMNS})
        return open_delta_sink(settings, owner)


DELTA = _Delta()
