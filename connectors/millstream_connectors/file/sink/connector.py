"""The `file` sink, as pipeline files name it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Literal

from millstream import codes
from millstream.dead_letter import MEMBERS
from millstream.errors import UserError
from millstream.spec.connectors import Guarantee, GuaranteeId, Place, SinkUse
from millstream.spec.problems import Finding, Path
from millstream.spec.values import (
    Needed,
    PositiveCount,
    PositiveDuration,
    Quantity,
    ShapeProblem,
    SpecModel,
    Text,
    field,
)
from millstream_connectors.shared.columns import Column, repeated_columns
from millstream_connectors.shared.objects.settings import (
    ObjectStore,
    is_url,
    store_findings,
    store_notes,
    unused_problems,
    url_problem,
)
from millstream_writer.connector import EnvelopeForm, SinkConnector, SinkOwner, as_fallback

if TYPE_CHECKING:
    from millstream_writer.sink import SinkLane


class Rolling(SpecModel):
    """When to finish a file and begin the next one: at the limit that is reached first."""

    noun = "rolling"

    max_bytes: Quantity = 64 << 20
    """Bytes of records in a file. Default 64 MiB."""
    max_records: PositiveCount | None = None
    """Records in a file. Records of an unfinished file stay in the buffer, so this is at most the
    number at which the buffer's writers wait. Default: half of that number."""
    max_age_s: PositiveDuration = field(default=10.0, alias="maxAge")
    """Age of a file since its first record; also the longest time until a record is visible. Duration, default 10s."""


PartitionName = Literal["dt", "hour", "year", "month", "day"]
_OBJECT_BYTES_MAX = 1 << 30
"""Size limit of a file, which is in memory until it is put."""


class FileSink(SpecModel):
    """Writes finished files into a directory; a visible file is complete and final."""

    noun = "a file sink"

    path: Text
    """Directory, relative to the pipeline file; created if it does not exist. Or a prefix in an object store:
    `s3://bucket/prefix`, `gs://…`, `az://container/…`."""
    format: Literal["jsonl", "lines", "csv", "parquet", "avro"] = "jsonl"
    """`jsonl` (the record's JSON value per line), `lines` (the record's bytes per line; a value with a line break is
    refused), `csv`, `parquet` or `avro`."""
    columns: tuple[Column, ...] = ()
    """Columns taken from the record's JSON value. CSV needs them; without them, Parquet and Avro have one binary column
    `value`."""
    partition_by: tuple[PartitionName, ...] = ()
    """Directories by the event time of records, in UTC, outermost first: of `dt` (`dt=2024-01-31`), `hour` (`hour=08`),
    `year`, `month` and `day`. In an object store only."""
    store: ObjectStore | None = None
    """How to reach the object store. Default: as the environment says."""
    rolling: Rolling = Rolling()
    """When to finish a file."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Requires columns for CSV, and rejects settings that have no effect."""
        yield from repeated_columns(self.columns)
        if self.format == "csv" and not self.columns:
            yield ShapeProblem(codes.FIELDS_CONFLICT, (), "a CSV file needs columns", "`columns: [{name, type}]`")
        if self.format in ("jsonl", "lines") and self.columns:
            what = f"`columns` has no effect with `format: {self.format}`"
            expected = "`format: csv`, `parquet` or `avro`, or no `columns`"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("columns",), what, expected)
        yield from url_problem(self.path, ("path",))
        yield from unused_problems(self.store, (self.path,))
        for index, name in enumerate(self.partition_by):
            if name in self.partition_by[:index]:
                yield ShapeProblem(codes.NAME_TWICE, ("partitionBy", index), f"`{name}` appears twice", "each once")
        if self.objects:
            if self.rolling.max_bytes > _OBJECT_BYTES_MAX:
                what = "an object is kept in memory until it is finished"
                yield ShapeProblem(codes.OUT_OF_RANGE, ("rolling", "maxBytes"), what, "at most 1GiB")
            return
        for given, field_name in ((self.partition_by, "partitionBy"), (self.store, "store")):
            if given:
                what = f"`{field_name}` has no effect when `path` is a directory"
                yield ShapeProblem(codes.FIELDS_CONFLICT, (field_name,), what, "`path: s3://bucket/prefix`")

    @property
    def objects(self) -> bool:
        """Whether it writes into an object store."""
        return is_url(self.path)

    def needs(self) -> Iterator[Needed]:
        if self.objects:
            yield Needed("obstore", "millstream[objects]", ("path",))
        if self.format == "parquet":
            yield Needed("pyarrow", "millstream[arrow]", ("format",))
        if self.format == "avro":
            yield Needed("fastavro", "millstream[objects]", ("format",))


class _File(SinkConnector[FileSink]):
    whole = True
    model = FileSink
    meaning = "To files, or to objects of a store."
    promise = Guarantee(
        GuaranteeId.TRANSACTIONAL,
        "exactly once: a file appears whole under a name that carries its position, and after a restart the "
        "finished names say how far the sink is",
    )

    def guarantee(self, settings: FileSink, *, fallback: bool) -> Guarantee:
        if fallback:
            return as_fallback("files")
        if settings.objects:
            what = (
                "exactly once: an object is put once, under a name that carries its position, after a claim that says "
                "which records it has"
            )
            return Guarantee(GuaranteeId.TRANSACTIONAL, what)
        return self.promise

    def use_problems(self, settings: FileSink, use: SinkUse) -> Iterator[ShapeProblem]:
        """Rejects a file that could never fill up, because the buffer would stay full forever, and columns that an
        envelope does not have."""
        if (settings.rolling.max_records or 0) > use.buffer_records:
            what = f"a file needs more records than the buffer ({use.buffer_records} records) can hold"
            yield ShapeProblem(codes.OUT_OF_RANGE, ("rolling", "maxRecords"), what, f"at most {use.buffer_records}")
        for index, column in enumerate(settings.columns if use.envelope else ()):
            if column.name not in MEMBERS:
                what = f"the envelope of a record has no `{column.name}`"
                expected = f"one of {', '.join(MEMBERS)}, or `envelope: false` for columns of the record's own value"
                yield ShapeProblem(codes.FIELDS_CONFLICT, ("columns", index, "name"), what, expected)

    def local_findings(self, settings: FileSink, place: Place) -> Iterator[Finding]:
        here = (*place.path, "path")
        if settings.objects:
            if not place.takes(settings.path.rstrip("/"), here):
                what = f"another sink writes into {settings.path}"
                yield Finding(codes.PLACE_TAKEN, here, what, "a separate prefix for each file sink")
            yield from store_findings(settings.store or ObjectStore(), (*place.path, "store"), place.base_dir)
            return
        directory = FilePath(os.path.normpath(place.base_dir / settings.path))
        if not place.takes(directory, here):
            yield Finding(
                codes.PLACE_TAKEN,
                here,
                f"another sink writes into {directory}",
                "a separate directory for each file sink",
            )
        nearest = directory
        while not nearest.exists() and nearest != nearest.parent:
            nearest = nearest.parent
        if not nearest.is_dir():
            yield Finding(
                codes.FILE_UNUSABLE, here, f"{nearest} is not a directory", "a directory, or a name for a new one"
            )
        elif not os.access(nearest, os.W_OK | os.X_OK):
            yield Finding(codes.FILE_UNUSABLE, here, f"{nearest} is not writable", "a directory that you may write to")

    def online_findings(self, settings: FileSink, place: Place) -> Coroutine[Any, Any, Sequence[Finding]]:
        if not settings.objects:
            return super().online_findings(settings, place)
        from millstream_connectors.file.sink.bucket import try_prefix

        async def look() -> Sequence[Finding]:
            await asyncio.to_thread(try_prefix, settings.path, settings.store or ObjectStore(), place.base_dir)
            return ()

        return look()

    def notes(self, settings: FileSink, path: Path) -> Iterator[tuple[Path, str]]:
        if settings.store is not None:
            yield from store_notes(settings.store, (*path, "store"))

    def place(self, settings: FileSink) -> str | None:
        return None if settings.objects else os.path.normpath(settings.path)

    def envelope_form(self, settings: FileSink) -> EnvelopeForm:
        return EnvelopeForm.COLUMNS if settings.format in ("csv", "parquet", "avro") else EnvelopeForm.VALUE

    def open(self, settings: FileSink, owner: SinkOwner) -> AbstractAsyncContextManager[SinkLane]:
        from millstream_connectors.file.sink.directory import DirectoryOwner
        from millstream_connectors.file.sink.lane import open_file_sink
        from millstream_connectors.shared.envelope_lane import ENVELOPE_COLUMNS

        if owner.envelope and settings.format in ("parquet", "avro") and not settings.columns:
            settings = settings.model_copy(update={"columns": ENVELOPE_COLUMNS})
        if settings.objects and owner.whole:
            what = f"{owner.where}: a file sink in an object store cannot be the end of a chain"
            raise UserError(codes.CONNECTOR_SETTINGS, f"{what}: remove `chain` from the edge to it")
        if settings.objects:
            from millstream_connectors.file.sink.objects import open_object_sink

            return open_object_sink(settings, owner)
        directory_owner = DirectoryOwner(
            pipeline=owner.pipeline,
            vertex=owner.lane.vertex,
            lane=owner.name,
            epoch=owner.epoch,
            ledger_id=owner.ledger_id,
            where=owner.where,
            known_at=owner.mark if owner.must_be_known else None,
        )
        return open_file_sink(
            settings,
            directory_owner,
            base_dir=owner.base_dir,
            start=owner.start,
            clock=owner.clock,
            trust_names=not owner.fallback,
            held_instead=owner.held_instead,
            claimed=owner.note_target,
            whole=owner.whole,
        )


FILE = _File()
