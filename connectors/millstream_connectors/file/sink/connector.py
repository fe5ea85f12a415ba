"""The `file` sink, as pipeline files name it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path as FilePath

from millstream import codes
from millstream.errors import UserError
from millstream.spec.connectors import Guarantee, GuaranteeId, OnlineFindings, Place, SinkUse
from millstream.spec.problems import Finding, Path
from millstream.spec.values import (
    ShapeProblem,
)
from millstream_connectors.file.settings import FileSink
from millstream_connectors.shared.columns import envelope_problems
from millstream_connectors.shared.looking import no_findings
from millstream_connectors.shared.objects.settings import (
    store_findings,
    store_notes,
)
from millstream_writer.connector import EnvelopeForm, SinkConnector, SinkOpening, SinkOwner, as_fallback


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
        if use.envelope:
            yield from envelope_problems(settings.columns)

    def local_findings(self, settings: FileSink, place: Place) -> Iterator[Finding]:
        here = (*place.path, "path")
        if settings.objects:
            if not place.takes(settings.path.rstrip("/"), here):
                what = f"another sink writes into {settings.path}"
                yield Finding(codes.PLACE_TAKEN, here, what, "a separate prefix for each file sink")
            yield from store_findings(settings.store, (*place.path, "store"), place.base_dir)
            return
        directory = FilePath(os.path.normpath(place.base_dir / settings.path))
        if not place.takes(directory, here):
            yield Finding(
                codes.PLACE_TAKEN,
                here,
                f"another sink writes into {directory}",
                "a separate directory for each file sink",
            )
        nearest = next((path for path in (directory, *directory.parents) if path.exists()), directory)
        if not nearest.is_dir():
            yield Finding(
                codes.FILE_UNUSABLE, here, f"{nearest} is not a directory", "a directory, or a name for a new one"
            )
        elif not os.access(nearest, os.W_OK | os.X_OK):
            yield Finding(codes.FILE_UNUSABLE, here, f"{nearest} is not writable", "a directory that you may write to")

    def online_findings(self, settings: FileSink, place: Place) -> OnlineFindings:
        if not settings.objects:
            return super().online_findings(settings, place)
        from millstream_connectors.file.sink.bucket import try_prefix

        return no_findings(asyncio.to_thread(try_prefix, settings, place.base_dir))

    def notes(self, settings: FileSink, path: Path) -> Iterator[tuple[Path, str]]:
        yield from store_notes(settings.store, (*path, "store"))

    def place(self, settings: FileSink) -> str | None:
        return None if settings.objects else os.path.normpath(settings.path)

    def envelope_form(self, settings: FileSink) -> EnvelopeForm:
        return EnvelopeForm.COLUMNS if settings.format in ("csv", "parquet", "avro") else EnvelopeForm.VALUE

    def open(self, settings: FileSink, owner: SinkOwner) -> SinkOpening:
        from millstream_connectors.file.sink.lane import format_of, open_file_sink, open_keeping_sink
        from millstream_connectors.shared.envelope_lane import ENVELOPE_COLUMNS

        if owner.envelope and settings.format in ("parquet", "avro") and not settings.columns:
            settings = settings.model_copy(update={"columns": ENVELOPE_COLUMNS})
        file_format = format_of(settings)
        if not settings.objects:
            return open_file_sink(settings, file_format, owner)
        if owner.whole:
            what = f"{owner.where}: a file sink in an object store cannot be the end of a chain"
            raise UserError(codes.CONNECTOR_SETTINGS, f"{what}: remove `chain` from the edge to it")
        from millstream_connectors.file.sink.bucket import LaneBucket
        from millstream_connectors.file.sink.names import partitions

        partition_of = partitions(settings.partition_by) if settings.partition_by else None
        return open_keeping_sink(
            LaneBucket(settings, owner), file_format, settings.rolling, owner, partition_of=partition_of
        )


FILE = _File()
