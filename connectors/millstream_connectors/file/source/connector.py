"""The `file` source, as pipeline files name it."""

from __future__ import annotations

import asyncio
import codecs
import glob
import os
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal

from millstream import codes
from millstream.spec.connectors import Guarantee, GuaranteeId, Place
from millstream.spec.problems import Finding, Path
from millstream.spec.rules import After, NotEmpty
from millstream.spec.values import Flag, Needed, PositiveDuration, ShapeProblem, SpecModel, Text, field, problem
from millstream_connectors.shared.columns import Column, repeated_columns
from millstream_connectors.shared.objects.settings import (
    ObjectStore,
    is_url,
    store_findings,
    store_notes,
    unused_problems,
    url_problem,
)
from millstream_reader.connector import SourceConnector, SourceOwner

if TYPE_CHECKING:
    from millstream_reader.source import SourceLane


FileFormat = Literal["lines", "jsonl", "csv", "parquet", "avro"]
_TYPED: Mapping[str, tuple[str, str]] = {
    "parquet": ("pyarrow", "millstream[arrow]"),
    "avro": ("fastavro", "millstream[objects]"),
}
"""Formats that have types, with the module that reads each."""


def _checked_encoding(written: str) -> str:
    try:
        name = codecs.lookup(written).name
        newline_bytes = 1 if name == "utf-8-sig" else len("\n".encode(name))
    except (LookupError, UnicodeError):
        raise problem(codes.VALUE_MALFORMED, f"{written!r} is not a text encoding", "a name such as utf-8") from None
    if newline_bytes != 1:
        what = f"a newline is {newline_bytes} bytes in {written!r}, so files cannot be split into lines"
        raise problem(codes.VALUE_MALFORMED, what, "a name such as utf-8; convert the files first")
    return written


def _checked_delimiter(written: str) -> str:
    if len(written) != 1 or written in '\r\n"':
        raise problem(
            codes.VALUE_MALFORMED, f"{written!r} cannot separate columns", "one character, such as ',' or a tab"
        )
    return written


class CsvOptions(SpecModel):
    """How to read CSV text. A row becomes a JSON object with a member for each column; an empty field of a column that
    is not a string becomes null."""

    noun = "csv"

    header: Flag = True
    """Whether the first line of each file names the columns."""
    delimiter: Annotated[str, After(_checked_delimiter)] = ","
    """The character between two fields."""
    columns: tuple[Column, ...] = ()
    """Types of columns; with `header: false` also their names and order. Columns that are not
    listed are strings."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Requires names from the header or from `columns`."""
        yield from repeated_columns(self.columns)
        if not self.header and not self.columns:
            yield ShapeProblem(codes.FIELDS_CONFLICT, (), "the columns have no names", "`columns`, or `header: true`")


class FileSource(SpecModel):
    """Reads files; each file is read by one lane, in order."""

    noun = "a file source"

    paths: Annotated[tuple[Text, ...], NotEmpty()]
    """Files or glob patterns (`data/*.csv`, `**` for any depth), relative to the pipeline file; or objects of a store:
    `s3://bucket/prefix/*.jsonl`, `gs://…`, `az://container/…`. A prefix that ends in `/` means everything below it.
    Objects are skipped if a part of their name begins with `_` or `.`."""
    format: FileFormat = "lines"
    """`lines` (a record per line, without its line end), `jsonl` (a JSON value per line), `csv`, `parquet` or `avro` (a
    JSON object per row). Files whose names end in `.gz` or `.zst` are decompressed; with `follow` they are skipped,
    except for objects."""
    csv: CsvOptions | None = None
    """How to read CSV; only with `format: csv`."""
    follow: Flag = False
    """Keep reading as files grow, are rotated or appear, or as objects appear; the source then has no end."""
    poll_every_s: PositiveDuration = field(default=10.0, alias="pollEvery")
    """How often it looks for new objects, with `follow`. Duration, default 10s."""
    store: ObjectStore | None = None
    """How to reach the object store. Default: as the environment says."""
    encoding: Annotated[str, After(_checked_encoding)] = "utf-8"
    """Encoding of the files. A newline must be one byte in it. Record values are UTF-8."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Rejects settings that have no effect on the format or the place."""
        if self.csv is not None and self.format != "csv":
            what = f"`csv` has no effect with `format: {self.format}`"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("csv",), what, "`format: csv`, or no `csv`")
        for index, path in enumerate(self.paths):
            yield from url_problem(path, ("paths", index))
            if is_url(path) != self.objects:
                what = "one source cannot read both files and objects"
                yield ShapeProblem(
                    codes.FIELDS_CONFLICT, ("paths", index), what, "one source for files, and another for objects"
                )
        yield from unused_problems(self.store, self.paths)
        if self.store is not None and not self.objects:
            yield ShapeProblem(
                codes.FIELDS_CONFLICT, ("store",), "`store` has no effect on files", "s3://, gs://, az://"
            )
        if self.follow and self.format in _TYPED and not self.objects:
            what = f"a file with `format: {self.format}` does not grow"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("follow",), what, "`lines`, `jsonl` or `csv`, or no `follow`")

    @property
    def objects(self) -> bool:
        """Whether it reads objects of a store."""
        return is_url(self.paths[0])

    def needs(self) -> Iterator[Needed]:
        if self.objects:
            yield Needed("obstore", "millstream[objects]", ("paths",))
        if self.format in _TYPED:
            yield Needed(*_TYPED[self.format], ("format",))


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
        if settings.objects:
            sentence = (
                "exactly once: it continues in the object where its last commit ended, and stops if an object that "
                "it has read was replaced"
            )
            return Guarantee(GuaranteeId.POSITION, sentence)
        if not settings.follow:
            return self.promise
        sentence = f"{self.promise.sentence}, unless a file is truncated or deleted before it was read, which is logged"
        return Guarantee(GuaranteeId.POSITION, sentence)

    def local_findings(self, settings: FileSource, place: Place) -> Iterator[Finding]:
        if settings.objects:
            yield from store_findings(settings.store or ObjectStore(), (*place.path, "store"), place.base_dir)
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

    def online_findings(self, settings: FileSource, place: Place) -> Coroutine[Any, Any, Sequence[Finding]]:
        if not settings.objects:
            return super().online_findings(settings, place)
        from millstream_connectors.file.source.buckets import Buckets

        async def look() -> Sequence[Finding]:
            buckets = Buckets(settings.paths, settings.store or ObjectStore(), place.base_dir, "validate")
            listed = await asyncio.to_thread(buckets.list)
            if listed or settings.follow:
                return ()
            what, expected = "no object matches `paths`", "existing objects, or `follow: true` to wait for them"
            return (Finding(codes.SOURCE_FILES_MISSING, (*place.path, "paths"), what, expected),)

        return look()

    def notes(self, settings: FileSource, path: Path) -> Iterator[tuple[Path, str]]:
        if settings.store is not None:
            yield from store_notes(settings.store, (*path, "store"))

    def open(self, settings: FileSource, owner: SourceOwner) -> AbstractAsyncContextManager[SourceLane]:
        from millstream_connectors.file.source.csv_parsing import CsvFormat
        from millstream_connectors.file.source.disk import FilePatterns
        from millstream_connectors.file.source.follow import open_followed
        from millstream_connectors.file.source.lane import open_files
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
            from millstream_connectors.file.source.objects import open_objects

            store = settings.store or ObjectStore()
            buckets = Buckets(settings.paths, store, owner.base_dir, f"lane {owner.lane}")
            return open_objects(buckets, text, owner, settings.poll_every_s if settings.follow else None)
        opener = open_followed if settings.follow else open_files
        patterns = FilePatterns(settings.paths, owner.base_dir)
        return opener(patterns, text, owner.lane, owner.partitions, owner.position, clock=owner.clock)


FILE = _File()
