"""One open file of typed rows, Parquet or Avro: read in blocks, each row a JSON object, with a mark after every step.

Above it: `lane` and `objects`, which open files of any format here, and use this one as they use a `TextFile`. Below
it: pyarrow and fastavro, which are extras.
Arrow converts a column to JSON as a whole, if its type has one form in JSON; the mark counts rows.
"""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import islice
from typing import IO, Any

from millstream import codes
from millstream.errors import DamageError
from millstream.extract import Extraction
from millstream.limits import BLOCK_BYTES_MAX, FRAME_RECORDS_MAX
from millstream_connectors.file.source.row_buffer import RowBuffer
from millstream_connectors.file.source.text_file import FileMark, FileRecords, TextFile, TextFormat, open_text_file
from millstream_connectors.file.source.value_as_json import as_json
from millstream_connectors.shared.extracting_lane import extract

HEAD_BYTES = 256
_TAIL_BYTES = 64
"""Bytes at the end of the file to check: in Parquet, they contain the sizes of all parts."""
UNREADABLE = (ValueError, EOFError, LookupError, TypeError, NotImplementedError, struct.error, zlib.error)
"""What the libraries, including Arrow, raise for bytes that are not in their format."""
_READ_BYTES = 1024 * 1024
_FETCH_BYTES = 8 * _READ_BYTES
"""Bytes of a request for a part of a remote file."""


class TableFile:
    """An open file. Opened by `open_any_file`. See `TextFile`."""

    def __init__(self, name: str, stream: IO[bytes], kind: str, extraction: Extraction, mark: FileMark) -> None:
        self.name = name
        self.mark = mark
        self.at_end = False
        self._stream = stream
        self._kind = kind
        self._extraction = extraction
        self._blocks: Iterator[list[bytes]] = iter(())
        self._rows = RowBuffer()

    # On the disk: these methods block.

    def fault(self) -> str | None:
        """Why this is not the file that the mark belongs to; None if it is."""
        return "its contents have changed" if self.mark.head_bytes and self._identified() != self.mark else None

    def begin(self) -> None:
        """Called once, before the first `fill`: goes to the mark."""
        self.mark = self._identified()
        rows = parquet_rows if self._kind == "parquet" else _avro_rows
        self._stream.seek(0)
        self._blocks = rows(self._stream, self.mark.line)

    def fill(self) -> bool:
        """Read one more block into memory; False at the end of the file."""
        try:
            block = next(self._blocks, None)
        except UNREADABLE as error:
            what = str(error).partition("\n")[0]
            raise DamageError(
                codes.SOURCE_FILE_CHANGED,
                f"{self.name}: it cannot be read as {self._kind} after row {self.mark.line}: {what}. Replace it "
                "with an intact copy",
            ) from error
        self.at_end = block is None
        if block is None:
            return False
        self._rows.add(block)
        return True

    def close(self) -> None:
        self._stream.close()

    def _identified(self) -> FileMark:
        """The mark, with the checksums of the open file."""
        descriptor = self._stream.fileno()
        size = os.fstat(descriptor).st_size
        head = os.pread(descriptor, HEAD_BYTES, 0)
        tail = os.pread(descriptor, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        return FileMark(*self.mark[:2], len(head), zlib.crc32(head), len(tail), zlib.crc32(tail))

    # In memory.

    def take(self, records_max: int, bytes_max: int, *, now_us: int, closing: bool) -> FileRecords | None:
        """The next records in memory; None if they need another `fill`."""
        if not self._rows:
            return None
        frame, invalid, rows = self._rows.take(
            records_max, bytes_max, now_us=now_us, source=self.name, before=self.mark.line
        )
        if frame is not None and self._extraction.reads_anything:
            frame, found, _ = extract(frame, self._extraction)
            invalid += tuple(replace(item, reason=f"{self.name}: {item.reason}", place=self.name) for item in found)
        self.mark = self.mark._replace(line=self.mark.line + rows)
        return FileRecords(frame, invalid)


SourceFile = TextFile | TableFile


def open_any_file(path: str, name: str, text: TextFormat, mark: FileMark) -> SourceFile:
    """Blocks. Open a file in its format at `mark`; call `begin` next. Errors: `OSError`."""
    if text.name in ("parquet", "avro"):
        return TableFile(name, open(path, "rb"), text.name, text.extraction, mark)
    return open_text_file(path, name, text, mark)


def parquet_rows(
    stream: Any, skipped: int, members: Callable[[Any], Any] | None = None, *, is_remote: bool = False
) -> Iterator[list[bytes]]:
    """Each row as a JSON object, in blocks. `stream`: a file object for Arrow; `members` selects the columns of the
    objects from a batch; `is_remote`: each read of the stream is a request to a store. Raises `UNREADABLE` for a file
    that is damaged or takes too much memory, and `OSError` if it cannot be read."""
    try:
        yield from _parquet_rows(stream, skipped, members, is_remote=is_remote)
    except OSError as error:
        # Arrow has the same error for damaged contents.
        if _is_damaged(stream):
            raise ValueError(str(error)) from error
        raise


@contextmanager
def copy_of(stream: Any) -> Iterator[IO[bytes]]:
    """A copy of a file on this machine. Raises `OSError`."""
    stream.seek(0)
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(stream, copy, _FETCH_BYTES)
        copy.seek(0)
        yield copy


def _is_damaged(stream: Any) -> bool:
    """Whether a copy of a Parquet file cannot be read either. The copy is on this machine, so it does not matter if the
    place of the file was away for a moment. Raises `OSError` if it cannot be copied."""
    with copy_of(stream) as copy:
        try:
            for _ in _parquet_rows(copy, 0, None, is_remote=False):
                pass
        except (*UNREADABLE, OSError):
            return True
    return False


def unreadable_file(where: str, named: str, error: BaseException, form: str = "Parquet") -> DamageError:
    """The error for a damaged file of a table. `error`: one of `UNREADABLE`."""
    return DamageError(
        codes.SOURCE_FILE_CHANGED,
        f"{where}: {named} cannot be read as {form}: {str(error).partition(chr(10))[0]}. Restore it, or start over "
        "with --fresh when the table no longer has it",
    )


def _parquet_rows(
    stream: Any, skipped: int, members: Callable[[Any], Any] | None, *, is_remote: bool
) -> Iterator[list[bytes]]:
    import pyarrow.parquet as pq

    from millstream_connectors.file.source.parquet_pages import place_of, rows_at_once, texts_of
    from millstream_connectors.file.source.rows_as_json import bounded, json_rows

    # Column chunks are read in parts, and texts stay in their dictionary: a kilobyte may stand for gigabytes.
    whole = pq.ParquetFile(stream)
    texts, metadata = texts_of(whole), whole.metadata
    with ExitStack() as files:
        source: Any = files.enter_context(tempfile.TemporaryFile()) if is_remote else stream
        if is_remote:
            source.truncate(stream.size())
        source.seek(0)
        file = pq.ParquetFile(source, metadata=metadata, buffer_size=_READ_BYTES, read_dictionary=texts)
        begun = False
        for index in range(metadata.num_row_groups):
            group = metadata.row_group(index)
            if not begun and group.num_rows <= skipped:
                skipped -= group.num_rows
                continue
            begun = True
            if is_remote:
                _fetch(stream, source, *place_of(group))
            rows = rows_at_once(source, file, index, texts)
            for batch in file.iter_batches(batch_size=rows, row_groups=[index], use_threads=False):
                passed_over = min(skipped, batch.num_rows)
                skipped -= passed_over
                if passed_over < batch.num_rows:
                    rest = batch.slice(passed_over)
                    for part in bounded(rest if members is None else members(rest)):
                        yield json_rows(part)


def _fetch(stream: Any, copy: IO[bytes], begin: int, end: int) -> None:
    """Copy a part of a file of a store to the same place of a local file, which has nothing else then. Each page has to
    be looked at before it is read, and two requests for each would take longer than the file."""
    size = stream.size()
    copy.truncate(0)
    copy.truncate(size)
    begin, end = max(0, min(begin, size)), min(end, size)
    stream.seek(begin)
    copy.seek(begin)
    while begin < end and (some := stream.read(min(end - begin, _FETCH_BYTES))):
        begin += copy.write(some)
    copy.flush()


def _avro_rows(stream: IO[bytes], skipped: int) -> Iterator[list[bytes]]:
    from millstream_connectors.shared.formats.avro_bounds import TOO_DEEP, bound_blocks, check_items, file_reader

    bound_blocks()
    block: list[bytes] = []
    size = 0
    try:
        rows = file_reader(stream)
        check_items(rows.writer_schema)
        for row in islice(rows, skipped, None):
            block.append(as_json(row))
            size += len(block[-1])
            if len(block) == FRAME_RECORDS_MAX or size >= BLOCK_BYTES_MAX:
                yield block
                block, size = [], 0
    except RecursionError:
        raise ValueError(f"a row cannot be read: {TOO_DEEP}") from None
    if block:
        yield block
