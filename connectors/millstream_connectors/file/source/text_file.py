"""One open file: read in blocks, split into lines, parsed into records, with a mark after every step.

Above it: `file` (files that end) and `follow` (files that grow). Below it: the operating system. `fill` and the other
methods that say so block on the disk and belong in a worker thread; `take` works on what is in memory.

    disk ─ fill ─► lines in memory ─ take ─► records, mark after them
"""

from __future__ import annotations

import gzip
import os
import sys
import tempfile
import zlib
from array import array
from bisect import bisect_right
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, compress
from typing import NamedTuple

from millstream import codes
from millstream.errors import DamageError, UserError
from millstream.extract import Extraction
from millstream.frame import Frame, build_frame
from millstream.limits import KIB, MIB, RECORD_BYTES_MAX
from millstream_connectors.file.source.csv_parsing import CsvFormat, CsvParser, check_columns, read_header
from millstream_connectors.file.source.line_buffer import KEPT_BYTES_MAX, LineBuffer, LineRun
from millstream_connectors.shared.parsing import UTF_8, LineParser, ParsedLines, Parser, SealedRecords, normal_encoding
from millstream_reader.source import InvalidRecord
from millstream_udf import columns

BLOCK_BYTES = 1 * MIB
"""Bytes read from a file at a time."""
ARROW_AFTER_BYTES = 8 * MIB
"""Size in bytes from which Arrow parses a CSV file, because it saves more time than its import takes."""
HEAD_BYTES = 256
_TAIL_BYTES = 64
_ZSTD_BYTES = 1 * KIB
"""Bytes of zstd that are decompressed at a time: four of them may be 128 KiB of text."""
_RECORD_OVERHEAD = 16
"""Bytes of a record in the columns besides its value and keys."""


class FileMark(NamedTuple):
    """How far a file has been read, and the checksums that identify it. A position has it as a list."""

    offset: int = 0
    """Bytes consumed (of the decompressed text, for a compressed file)."""
    line: int = 0
    """Lines consumed."""
    head_bytes: int = 0
    head_crc: int = 0
    """CRC-32 of the first `head_bytes` bytes of the file."""
    tail_bytes: int = 0
    tail_crc: int = 0
    """CRC-32 of the `tail_bytes` bytes before `offset`."""


@dataclass(frozen=True, slots=True)
class TextFormat:
    """How the files of one source are read."""

    name: str
    """lines, jsonl or csv; parquet and avro are read by `table_file`."""
    encoding: str
    csv: CsvFormat
    extraction: Extraction

    @property
    def reads_header(self) -> bool:
        return self.name == "csv" and self.csv.has_header


@dataclass(slots=True)
class FileRecords:
    """Records of one file."""

    frame: Frame | None
    invalid: tuple[InvalidRecord, ...]


class TextFile:
    """An open file. Opened by `open_text_file`."""

    def __init__(
        self,
        name: str,
        descriptor: int,
        unpacked: gzip.GzipFile | None,
        text: TextFormat,
        mark: FileMark,
        block_bytes: int,
    ) -> None:
        self.name = name
        """The name in messages."""
        self.mark = mark
        """The mark after the records that were taken."""
        self.at_end = False
        """Whether the last `fill` found nothing more."""
        self.size = 0
        """Bytes of the file on the disk, when it was looked at last."""
        self._block_bytes = block_bytes
        self._descriptor = descriptor
        self._unpacked = unpacked
        self._text = text
        self._parser: Parser | None = None
        self._read_offset = mark.offset
        self._read_bytes = 0
        self._lines = LineBuffer()
        self._lines_wanted = 0
        self._names_bytes = 1
        """Bytes of the names of columns, which every record has and the file once."""
        self._expansion = 1.0
        """Recent ratio of record bytes to file bytes."""
        self._tail = b""

    @property
    def open_line(self) -> bool:
        """Whether the text in memory ends in a line without a newline."""
        return self._lines.has_open_line

    def stat(self) -> os.stat_result:
        """Inode of the open file, whatever its name is now."""
        return os.fstat(self._descriptor)

    def begun_anew(self) -> TextFile:
        """The same open file, from its beginning. Only one of the two may be read at a time."""
        return TextFile(self.name, self._descriptor, self._unpacked, self._text, FileMark(), self._block_bytes)

    def close(self) -> None:
        if self._unpacked is not None:
            self._unpacked.close()
        os.close(self._descriptor)

    # On the disk: these methods block.

    def fault(self, *, whole: bool = True) -> str | None:
        """Why this is not the file that the mark belongs to; None if it is. `whole`: also check the text before the
        mark."""
        mark = self.mark
        self.size = size = self.stat().st_size
        if self._unpacked is None and size < self._read_offset:
            return f"it has {size} bytes, but {self._read_offset} were already read"
        if zlib.crc32(os.pread(self._descriptor, mark.head_bytes, 0)) != mark.head_crc:
            return "its first bytes have changed"
        if self._unpacked is None and whole:
            before = os.pread(self._descriptor, mark.tail_bytes, mark.offset - mark.tail_bytes)
            if zlib.crc32(before) != mark.tail_crc:
                return f"the text before byte {mark.offset} has changed"
        return None

    def begin(self) -> None:
        """Called once, before the first `fill`: goes to the mark, and reads the header before it."""
        if self.mark.offset == 0 and normal_encoding(self._text.encoding) == UTF_8:
            if self._start().startswith(BOM_UTF8):
                self.mark = self.mark._replace(offset=len(BOM_UTF8))
        elif self.mark.line > 0 and self._text.reads_header:
            self._parser = self._parser_behind_header()
        self._read_offset = self.mark.offset
        if self._unpacked is None:
            self._tail = os.pread(self._descriptor, self.mark.tail_bytes, self.mark.offset - self.mark.tail_bytes)
        else:
            with self._unpacking():
                if self._unpacked.seek(self.mark.offset) < self.mark.offset:
                    raise EOFError("the text ends earlier")
        self._note_head()

    def fill(self) -> bool:
        """Read one more block into memory; False at the end of the file."""
        block = self._read_block()
        self.at_end = not block
        if not block:
            return False
        if self._unpacked is None and self.mark.head_bytes < HEAD_BYTES:
            self._note_head()
        self._read_offset += len(block)
        self._read_bytes += len(block)
        if isinstance(self._parser, CsvParser) and (self._read_bytes > ARROW_AFTER_BYTES or "pyarrow" in sys.modules):
            self._parser.use_arrow()
        self._lines.add(block)
        return True

    def _read_block(self) -> bytes:
        if self._unpacked is None:
            return os.pread(self._descriptor, self._block_bytes, self._read_offset)
        with self._unpacking():
            return self._unpacked.read1(self._block_bytes)

    def _start(self) -> bytes:
        if self._unpacked is None:
            return self._head()
        with self._unpacking():
            return self._unpacked.peek(len(BOM_UTF8))

    @contextmanager
    def _unpacking(self) -> Iterator[None]:
        try:
            yield
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DamageError(
                codes.SOURCE_FILE_CHANGED,
                f"{self.name}: it cannot be decompressed after byte {self._read_offset} of its text: {error}. "
                "Replace it with an intact copy of the same text",
            ) from error

    def _head(self) -> bytes:
        return os.pread(self._descriptor, HEAD_BYTES, 0)

    def _note_head(self) -> None:
        head = self._head()
        self.mark = self.mark._replace(head_bytes=len(head), head_crc=zlib.crc32(head))

    def _parser_behind_header(self) -> Parser:
        """The header of a file that is read from a later place."""
        before = self.begun_anew()
        if self._unpacked is not None:
            self._unpacked.seek(0)
        before.begin()
        while (parser := before.take_header(closing=False)) is None:
            if not before.fill():
                raise DamageError(
                    codes.SOURCE_FILE_CHANGED,
                    f"{self.name}: the header is missing. Put the file back as it was, or start over with --fresh",
                )
        return parser

    # In memory.

    def take(self, records_max: int, bytes_max: int, *, now_us: int, closing: bool) -> FileRecords | None:
        """The next records in memory; None if they need another `fill`.

        `closing`: the file will not grow any more, so its last line needs no newline. Errors: `UserError` for an
        invalid header.
        """
        closing = closing and self.at_end
        if closing:
            self._lines.end()
        if self._lines.next_is_overlong:
            return self._take_overlong()
        if self._parser is None:
            self._parser = self.take_header(closing=closing)
        if self._parser is None or not self._lines:
            return None
        stop = self._lines.before_overlong
        parsed = self._parse(self._parser, stop, records_max, bytes_max, final=closing or stop < len(self._lines))
        if parsed is None:
            return None
        taken = self._seal(parsed, now_us)
        self._advance(parsed.lines)
        return taken

    def take_header(self, *, closing: bool) -> Parser | None:
        """The parser for this file, after its header; None if the header is not in memory yet."""
        text = self._text
        if text.name != "csv":
            return LineParser(encoding=text.encoding, json_lines=text.name == "jsonl", extraction=text.extraction)
        names: Sequence[str]
        if text.reads_header:
            if not self._lines:
                return None
            try:
                header = read_header(self._lines.first(len(self._lines)), text.encoding, text.csv, final=closing)
            except ValueError as error:
                raise UserError(
                    codes.SOURCE_COLUMNS, f"{self.name}:1: {error}. Correct the file, or set `header: false`"
                ) from error
            if header is None:
                return None
            names = header.names
            self._advance(header.lines)
        else:
            names = [name for name, _ in text.csv.types]
        check_columns(names, text.csv, text.extraction, f"{self.name}:1")
        self._names_bytes = max(1, sum(len(name.encode()) for name in names))
        return CsvParser(names, encoding=text.encoding, csv_format=text.csv, extraction=text.extraction)

    def _parse(self, parser: Parser, stop: int, records_max: int, bytes_max: int, *, final: bool) -> ParsedLines | None:
        """Records of the next `stop` lines, within the limits; None when more lines are needed."""
        records_max = min(records_max, max(1, bytes_max // self._names_bytes))
        count = self._fitting(stop, records_max, bytes_max)
        while True:
            part = self._lines.first(count)
            # A row with more lines than fit is read alone, whatever its size.
            parsed = parser.parse(part, 1 if self._lines_wanted > 0 else records_max, final=final and count == stop)
            if parsed.lines == 0:
                if count == stop:
                    if sum(map(len, part)) <= RECORD_BYTES_MAX:
                        self._lines_wanted = len(part)
                        return None
                    # No row is this large: its first line must be invalid.
                    self._lines_wanted = 0
                    return parser.parse(part[:1], 1, final=True)
                self._lines_wanted = count = min(2 * count, stop)
                continue
            raw_bytes = sum(map(len, part[: parsed.lines])) + parsed.lines
            size = parsed.size + _RECORD_OVERHEAD * parsed.records
            self._expansion = max(1.0, size / raw_bytes)
            if size > bytes_max and parsed.records > 1:
                count = max(1, min(count - 1, int(count * bytes_max / size)))
                continue
            self._lines_wanted = 0
            return parsed

    def _fitting(self, stop: int, records_max: int, bytes_max: int) -> int:
        """How many lines to parse at once."""
        if self._lines_wanted:
            return min(2 * self._lines_wanted, stop)
        count = min(stop, records_max)
        part = self._lines.first(count)
        if (sum(map(len, part)) + _RECORD_OVERHEAD * count) * self._expansion <= bytes_max:
            return count
        ends = [end + _RECORD_OVERHEAD * index for index, end in enumerate(accumulate(map(len, part)), start=1)]
        return max(1, bisect_right(ends, bytes_max / self._expansion))

    def _seal(self, parsed: ParsedLines, now_us: int) -> FileRecords:
        """The frame, and the invalid records with their places in the file."""
        if parsed.sealed is not None:
            return FileRecords(_frame_of(parsed.sealed, now_us), ())
        values, times, keys = parsed.values, parsed.event_times_us, parsed.keys
        invalid = [self._invalid(item.raw, item.reason, self.mark.line + item.line + 1) for item in parsed.invalid]
        if values and max(map(len, values)) > RECORD_BYTES_MAX:
            large = [len(value) > RECORD_BYTES_MAX for value in values]
            for value in compress(values, large):
                reason = f"a record after line {self.mark.line} has {len(value)} bytes; the limit is {RECORD_BYTES_MAX}"
                invalid.append(InvalidRecord(value[:KEPT_BYTES_MAX], f"{self.name}: {reason}", self.name))
            small = [not is_large for is_large in large]
            values = list(compress(values, small))
            times = list(compress(times, small)) if times is not None else None
            keys = list(compress(keys, small)) if keys is not None else None
        if not values:
            return FileRecords(None, tuple(invalid))
        event_times = array("q", times) if times is not None else array("q", [now_us]) * len(values)
        return FileRecords(build_frame(values, event_times, ingest_time_us=now_us, keys=keys), tuple(invalid))

    def _invalid(self, raw: bytes, reason: str, line: int) -> InvalidRecord:
        """`line`: its number in the file, from 1."""
        place = f"{self.name}:{line}"
        return InvalidRecord(raw[:KEPT_BYTES_MAX], f"{place}: {reason}", place)

    def _take_overlong(self) -> FileRecords:
        consumed = self._advance(1)
        reason = f"the line has {consumed.size - consumed.newlines} bytes; the limit is {RECORD_BYTES_MAX}"
        # Only its beginning was kept, so the text before the mark is not in memory.
        return FileRecords(None, (self._invalid(consumed.lines[0], reason, self.mark.line),))

    def _advance(self, count: int) -> LineRun:
        """Mark the next `count` lines as consumed."""
        consumed = self._lines.consume(count)
        if self._unpacked is None:
            end = b"\n".join(consumed.lines[-_TAIL_BYTES:]) + b"\n" * (consumed.newlines - count + 1)
            self._tail = b"" if consumed.dropped else (self._tail + end)[-_TAIL_BYTES:]
        self.mark = self.mark._replace(
            offset=self.mark.offset + consumed.size,
            line=self.mark.line + count,
            tail_bytes=len(self._tail),
            tail_crc=zlib.crc32(self._tail),
        )
        return consumed


def _frame_of(sealed: SealedRecords, now_us: int) -> Frame:
    times = sealed.event_times_us or array("q", [now_us]) * sealed.records
    return Frame(
        records=sealed.records,
        event_time_min_us=min(times),
        event_time_max_us=max(times),
        ingest_time_us=now_us,
        contents=sealed.values,
        event_times_column=columns.pack_times(times),
        keys_column=sealed.keys_column,
    )


def unpacked_zstd(path: str, name: str) -> int:
    """An unnamed file with the text of a compressed one, because zstd cannot be read from the middle."""
    try:
        import zstandard
    except ImportError as error:
        what = f"{name} is compressed with zstd, which needs the package zstandard: pip install 'millstream[objects]'"
        raise UserError(codes.EXTRA_NEEDED, what) from error
    with open(path, "rb") as packed, tempfile.TemporaryFile() as text:
        unpacker = zstandard.ZstdDecompressor().decompressobj()
        try:
            while block := packed.read(_ZSTD_BYTES):
                while block:
                    text.write(unpacker.decompress(block))
                    block = unpacker.unused_data if unpacker.eof else b""
                    if unpacker.eof and (block or packed.peek(1)):
                        unpacker = zstandard.ZstdDecompressor().decompressobj()
            if not unpacker.eof:
                raise zstandard.ZstdError("it is truncated")
        except zstandard.ZstdError as error:
            raise DamageError(
                codes.SOURCE_FILE_CHANGED, f"{name}: it cannot be decompressed: {error}. Replace it with an intact copy"
            ) from error
        text.flush()
        return os.dup(text.fileno())


def open_text_file(
    path: str, name: str, text: TextFormat, mark: FileMark, *, block_bytes: int = BLOCK_BYTES
) -> TextFile:
    """Blocks. Open a file at `mark`; Call `begin` next. Errors: `OSError`."""
    descriptor = unpacked_zstd(path, name) if path.endswith(".zst") else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    if not path.endswith(".gz"):
        return TextFile(name, descriptor, None, text, mark, block_bytes)
    try:
        return TextFile(name, descriptor, gzip.GzipFile(path, "rb"), text, mark, block_bytes)
    except OSError:
        os.close(descriptor)
        raise
