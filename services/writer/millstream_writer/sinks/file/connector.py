"""The `file` sink, as pipeline files name it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from importlib.util import find_spec
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Literal

from millstream import codes
from millstream.dead_letter import MEMBERS
from millstream.spec.columns import Column, repeated_columns
from millstream.spec.connectors import Guarantee, GuaranteeId, Place, SinkUse
from millstream.spec.problems import Finding
from millstream.spec.values import PositiveCount, PositiveDuration, Quantity, ShapeProblem, SpecModel, Text, field
from millstream_writer.connector import EnvelopeForm, SinkConnector, SinkOwner

if TYPE_CHECKING:
    from millstream_writer.sink import SinkLane


class Rolling(SpecModel):
    """When a file is finished and the next one begun: at whichever limit comes first."""

    noun = "rolling"

    max_bytes: Quantity = 64 << 20
    """Bytes of records in a file. Default 64 MiB."""
    max_records: PositiveCount | None = None
    """Records in a file. Records of an unfinished file stay in the buffer, so this is at most the
    number at which the buffer's writers wait. Default: half of that number."""
    max_age_s: PositiveDuration = field(default=10.0, alias="maxAge")
    """Age of a file since its first record; also the longest time until a record can be seen.
    Duration, default 10s."""


class FileSink(SpecModel):
    """Writes finished files into a directory; a file that can be seen is whole and final."""

    noun = "a file sink"

    path: Text
    """Directory, relative to the pipeline file; made if absent."""
    format: Literal["jsonl", "lines", "csv", "parquet"] = "jsonl"
    """`jsonl` (the record's JSON value per line), `lines` (the record's bytes per line; a value with a line break is
    refused), `csv` or `parquet`."""
    columns: tuple[Column, ...] = ()
    """Columns taken from the record's JSON value. CSV needs them; Parquet without them has one
    binary column `value`."""
    rolling: Rolling = Rolling()
    """When a file is finished."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Columns where they have a meaning."""
        yield from repeated_columns(self.columns)
        if self.format == "csv" and not self.columns:
            yield ShapeProblem(codes.FIELDS_CONFLICT, (), "a CSV file needs columns", "`columns: [{name, type}]`")
        if self.format in ("jsonl", "lines") and self.columns:
            what = f"`columns` has no effect with `format: {self.format}`"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("columns",), what, "`format: csv` or `parquet`, or no `columns`")


class _File(SinkConnector[FileSink]):
    whole = True
    model = FileSink
    meaning = "To files."
    promise = Guarantee(
        GuaranteeId.TRANSACTIONAL,
        "exactly once: a file appears whole under a name that carries its position, and after a restart the finished "
        "names say how far the sink is",
    )

    def guarantee(self, settings: FileSink, *, fallback: bool) -> Guarantee:
        if fallback:
            what = (
                "at least once: after a crash, records that went to the fallback shortly before may be in its files "
                "twice"
            )
            return Guarantee(GuaranteeId.AT_LEAST_ONCE, what)
        return self.promise

    def use_problems(self, settings: FileSink, use: SinkUse) -> Iterator[ShapeProblem]:
        """A file that could never fill up would hold the buffer full forever; an envelope has its own columns."""
        if (settings.rolling.max_records or 0) > use.buffer_records:
            what = f"a file takes more records than the buffer ({use.buffer_records} records) hands out"
            yield ShapeProblem(codes.OUT_OF_RANGE, ("rolling", "maxRecords"), what, f"at most {use.buffer_records}")
        for index, column in enumerate(settings.columns if use.envelope else ()):
            if column.name not in MEMBERS:
                what = f"the envelope of a record has no `{column.name}`"
                expected = f"one of {', '.join(MEMBERS)}, or `envelope: false` for columns of the record's own value"
                yield ShapeProblem(codes.FIELDS_CONFLICT, ("columns", index, "name"), what, expected)

    def local_findings(self, settings: FileSink, place: Place) -> Iterator[Finding]:
        here = (*place.path, "path")
        directory = FilePath(os.path.normpath(place.base_dir / settings.path))
        if not place.takes(directory, here):
            yield Finding(
                codes.PLACE_TAKEN, here, f"another sink writes into {directory}", "a directory for each file sink"
            )
        nearest = directory
        while not nearest.exists() and nearest != nearest.parent:
            nearest = nearest.parent
        if not nearest.is_dir():
            yield Finding(
                codes.FILE_UNUSABLE, here, f"{nearest} is not a directory", "a directory, or a name for a new one"
            )
        elif not os.access(nearest, os.W_OK | os.X_OK):
            yield Finding(
                codes.FILE_UNUSABLE, here, f"nothing may be written in {nearest}", "a directory you may write to"
            )
        if settings.format == "parquet" and find_spec("pyarrow") is None:
            what = "Parquet needs the package pyarrow, which is not installed"
            yield Finding(codes.EXTRA_NEEDED, (*place.path, "format"), what, "`pip install 'millstream[arrow]'`")

    def envelope_form(self, settings: FileSink) -> EnvelopeForm:
        return EnvelopeForm.COLUMNS if settings.format in ("csv", "parquet") else EnvelopeForm.VALUE

    def open(self, settings: FileSink, owner: SinkOwner) -> AbstractAsyncContextManager[SinkLane]:
        from millstream_writer.sinks.envelope import ENVELOPE_COLUMNS
        from millstream_writer.sinks.file.directory import DirectoryOwner
        from millstream_writer.sinks.file.lane import open_file_sink

        if owner.envelope and settings.format == "parquet" and not settings.columns:
            settings = settings.model_copy(update={"columns": ENVELOPE_COLUMNS})
        directory_owner = DirectoryOwner(
            pipeline=owner.pipeline,
            vertex=owner.lane.vertex,
            lane=owner.name,
            epoch=owner.epoch,
            ledger_id=owner.ledger_id,
            where=owner.where,
        )
        return open_file_sink(
            settings,
            directory_owner,
            base_dir=owner.base_dir,
            start=owner.start,
            clock=owner.clock,
            trust_names=not owner.fallback,
            held_instead=owner.held_instead,
            whole=owner.whole,
        )


FILE = _File()
