"""The settings of the `file` source and sink, as pipeline files have them. Pure."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from millstream import codes
from millstream.spec.values import (
    After,
    Flag,
    Needed,
    NotEmpty,
    PositiveCount,
    PositiveDuration,
    Quantity,
    ShapeProblem,
    SpecModel,
    Text,
    conflicts,
    field,
    problem,
)
from millstream_connectors.shared.columns import Column, repeated, repeated_columns
from millstream_connectors.shared.objects.settings import (
    ObjectStore,
    is_url,
    place_problems,
    unused_problems,
    url_problem,
)

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
        for index, path in enumerate(self.paths):
            yield from url_problem(path, ("paths", index))
            if is_url(path) != self.objects:
                what = "one source cannot read both files and objects"
                yield ShapeProblem(
                    codes.FIELDS_CONFLICT, ("paths", index), what, "one source for files, and another for objects"
                )
        yield from unused_problems(self.store, self.paths)
        yield from conflicts(
            (
                self.csv is not None and self.format != "csv",
                ("csv",),
                f"`csv` has no effect with `format: {self.format}`",
                "`format: csv`, or no `csv`",
            ),
            (
                self.store is not None and not self.objects,
                ("store",),
                "`store` has no effect on files",
                "s3://, gs://, az://",
            ),
            (
                self.follow and self.format in _TYPED and not self.objects,
                ("follow",),
                f"a file with `format: {self.format}` does not grow",
                "`lines`, `jsonl` or `csv`, or no `follow`",
            ),
        )

    @property
    def objects(self) -> bool:
        """Whether it reads objects of a store."""
        return is_url(self.paths[0])

    def needs(self) -> Iterator[Needed]:
        if self.objects:
            yield Needed("obstore", "millstream[objects]", ("paths",))
        if self.format in _TYPED:
            yield Needed(*_TYPED[self.format], ("format",))


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
        yield from conflicts(
            (
                self.format == "csv" and not self.columns,
                (),
                "a CSV file needs columns",
                "`columns: [{name, type}]`",
            ),
            (
                self.format in ("jsonl", "lines") and self.columns,
                ("columns",),
                f"`columns` has no effect with `format: {self.format}`",
                "`format: csv`, `parquet` or `avro`, or no `columns`",
            ),
            (
                self.partition_by and not self.objects,
                ("partitionBy",),
                "`partitionBy` has no effect when `path` is a directory",
                "`path: s3://bucket/prefix`",
            ),
        )
        yield from place_problems(self.store, self.path, url="s3://bucket/prefix")
        yield from repeated(self.partition_by, "partitionBy", noun="", expected="each once")
        if self.objects and self.rolling.max_bytes > _OBJECT_BYTES_MAX:
            what = "an object is kept in memory until it is finished"
            yield ShapeProblem(codes.OUT_OF_RANGE, ("rolling", "maxBytes"), what, "at most 1GiB")

    @property
    def objects(self) -> bool:
        """Whether it writes into an object store."""
        return is_url(self.path)

    def needs(self) -> Iterator[Needed]:
        if self.objects:
            yield Needed("obstore", "millstream[objects]", ("path",))
        if self.format in _TYPED:
            yield Needed(*_TYPED[self.format], ("format",))
