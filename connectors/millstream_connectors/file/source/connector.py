"""The `file` source, as pipeline files name it."""

from __future__ import annotations

import asyncio
import glob
import os
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module

from millstream import codes
from millstream.spec.connectors import Guarantee, GuaranteeId, OnlineFindings, Place
from millstream.spec.problems import Finding, Path
from millstream_connectors.file.settings import CsvOptions, FileSource
from millstream_connectors.shared.objects.settings import (
    ObjectStore,
    store_findings,
    store_notes,
)
from millstream_reader.connector import SourceConnector, SourceOpening, SourceOwner


class _File(SourceConnector[FileSource]):
    model = FileSource
    meaning = "Records read from files, or from objects of a store."
    promise = Guarantee(GuaranteeId.POSITION, "exactly once: it continues in the file where its last commit ended")
    ends = "at the end of the last file, without `follow`"
    has_headers = False
    extracts = True

    def bounded(self, settings: FileSource) -> bool | None:
        return not settings.follow

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
            yield from store_findings(settings.store, (*place.path, "store"), place.base_dir)
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

    def notes(self, settings: FileSource, path: Path) -> Iterator[tuple[Path, str]]:
        yield from store_notes(settings.store, (*path, "store"))

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


FILE = _File()
