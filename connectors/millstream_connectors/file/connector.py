"""The `file` source and sink, as pipeline files name them."""

from __future__ import annotations

import asyncio
import glob
import os
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path as FilePath

from millstream import codes
from millstream.errors import UserError
from millstream.spec.connectors import Guarantee, GuaranteeId, OnlineFindings, Place, SinkUse
from millstream.spec.problems import Finding
from millstream.spec.values import ShapeProblem
from millstream_connectors.file.settings import CsvOptions, FileSink, FileSource
from millstream_connectors.shared.columns import envelope_problems
from millstream_connectors.shared.looking import no_findings
from millstream_connectors.shared.objects.settings import ObjectStore
from millstream_reader.connector import SourceConnector, SourceOpening, SourceOwner
from millstream_writer.connector import EnvelopeForm, SinkConnector, SinkOpening, SinkOwner


class _Source(SourceConnector[FileSource]):
    model = FileSource
    meaning = "Records read from files, or from objects of a store."
    promise = Guarantee(GuaranteeId.POSITION, "exactly once: it continues in the file where its last commit ended")
    ends = "at the end of the last file, without `follow`"
    has_headers = False
    extracts = True

    def bounded(self, settings: FileSource) -> bool | None:
        return not settings.follow

    def may_give_keys(self, settings: FileSource) -> bool:
        return False

    def guarantee(self, settings: FileSource) -> Guarantee:
        sentence = self.promise.sentence
        if settings.objects:
            sentence = (
                "exactly once: it continues in the object where its last commit ended, and stops if an object that "
                "it has read was replaced"
            )
        elif settings.follow:
            sentence += ", unless a file is truncated or deleted before it was read, which is logged"
        return Guarantee(GuaranteeId.POSITION, sentence)

    def local_findings(self, settings: FileSource, place: Place) -> Iterator[Finding]:
        if settings.objects:
            return
        for index, pattern in enumerate(settings.paths):
            here = (*place.path, "paths", index)
            # The name of the directory is not a pattern, whatever characters it has.
            names = glob.glob(pattern, root_dir=place.base_dir, recursive=True)
            matches = [os.path.join(place.base_dir, name) for name in names]
            files = [match for match in matches if os.path.isfile(match)]
            if not files and not settings.follow:
                only = "directories" if all(map(os.path.isdir, matches)) else "directories and devices"
                what = f"{pattern!r} matches only {only}" if matches else f"{pattern!r} matches no file"
                yield Finding(
                    codes.SOURCE_FILES_MISSING,
                    here,
                    what,
                    f"a file, relative to {place.base_dir}, or `follow: true` to wait for it",
                )
            for file in files:
                if not os.access(file, os.R_OK):
                    yield Finding(codes.FILE_UNUSABLE, here, f"{file} cannot be read", "a file that this user may read")

    def online_findings(self, settings: FileSource, place: Place) -> OnlineFindings:
        if not settings.objects:
            return super().online_findings(settings, place)
        from millstream_connectors.file.source.buckets import Buckets

        async def look() -> Sequence[Finding]:
            buckets = Buckets(settings.paths, settings.store or ObjectStore(), place.base_dir, "validate")
            if await asyncio.to_thread(buckets.list) or settings.follow:
                return ()
            what, expected = "no object matches `paths`", "existing objects, or `follow: true` to wait for them"
            return (Finding(codes.SOURCE_FILES_MISSING, (*place.path, "paths"), what, expected),)

        return look()

    def open(self, settings: FileSource, owner: SourceOwner) -> SourceOpening:
        from millstream_connectors.file.source.csv_parsing import CsvFormat
        from millstream_connectors.file.source.disk import FilePatterns, open_lane
        from millstream_connectors.file.source.follow import FollowLane
        from millstream_connectors.file.source.lane import FileSourceLane
        from millstream_connectors.file.source.text_file import TextFormat

        options = settings.csv or CsvOptions()
        types = tuple((column.name, column.type) for column in options.columns)
        rows = CsvFormat(options.delimiter, options.header, types)
        text = TextFormat(settings.format, settings.encoding, rows, owner.extraction)
        if settings.format == "jsonl":
            # The parser of JSON, which the lane would import at its first records.
            import_module("msgspec.json")
        if settings.objects:
            from millstream_connectors.file.source.buckets import Buckets
            from millstream_connectors.file.source.objects import ObjectSourceLane

            buckets = Buckets(settings.paths, settings.store or ObjectStore(), owner.base_dir, f"lane {owner.lane}")
            poll_every_s = settings.poll_every_s if settings.follow else None
            return open_lane(partial(ObjectSourceLane, buckets, text, poll_every_s), owner)
        patterns = FilePatterns(settings.paths, owner.base_dir)
        return open_lane(partial(FollowLane if settings.follow else FileSourceLane, patterns, text), owner)


class _Sink(SinkConnector[FileSink]):
    whole = True
    keeps_position_in = "files"
    model = FileSink
    meaning = "To files, or to objects of a store."
    promise = Guarantee(
        GuaranteeId.TRANSACTIONAL,
        "exactly once: a file appears whole under a name that carries its position, and after a restart the "
        "finished names say how far the sink is",
    )

    def guarantee(self, settings: FileSink, *, fallback: bool) -> Guarantee:
        if fallback or not settings.objects:
            return super().guarantee(settings, fallback=fallback)
        return Guarantee(
            GuaranteeId.TRANSACTIONAL,
            "exactly once: an object is put once, under a name that carries its position, after a claim that says "
            "which records it has",
        )

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


SOURCE = _Source()
SINK = _Sink()
