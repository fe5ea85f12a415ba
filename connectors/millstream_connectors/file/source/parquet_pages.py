"""What the pages of a Parquet file take in memory, found before Arrow reads them.

A page of a few bytes may stand for any number of values: levels are run lengths, a dictionary has a text once, and
compression does the rest. Arrow reads whole pages, and whole rows, however many values a list has. So the heads of
pages are read first, and the levels of long lists are counted without making them. The footer is not enough, because
Arrow believes the heads.

Above it: the reader of Parquet. Below it: pyarrow, an extra.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millstream.limits import BATCH_BYTES_MAX, FRAME_RECORDS_MAX, PARQUET_PAGE_BYTES_MAX, ROW_VALUES_MAX

_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
_PLAIN = 0
_IN_DICTIONARY = (2, 8)
_HEAD_BYTES = 64 * 1024
"""Bytes read for a head. Its statistics may have long texts, then more are read."""
_HEAD_BYTES_MAX = 16 * 1024 * 1024
_ENTRY_BYTES = 16
"""What Arrow keeps for each entry of a dictionary in addition to its bytes."""
_CELL_BYTES = 9
"""A number, with its place among the nulls."""
_CONVERTED = 8
"""How much more a value within another takes: it becomes an object of Python, and text several times."""
_DEPTH_MAX = 8
"""Of structs in a head; they have three."""
_FEW_VALUES = FRAME_RECORDS_MAX
_LEVELS_AT_ONCE = 8 * 4096


@dataclass(frozen=True, slots=True)
class _Page:
    """The head of a page, and where its contents are."""

    kind: int
    start: int
    stored: int
    size: int
    """Bytes when it is decompressed, as the head says."""
    values: int
    encoding: int
    levels: tuple[int, int] | None = None
    """Bytes of repetition and definition levels before the contents, which are not compressed (version 2)."""
    is_compressed: bool = True


@dataclass(frozen=True, slots=True)
class _Expansion:
    """What a row of a column may take."""

    values: int
    bytes: int


def texts_of(file: Any) -> list[str]:
    """Columns of texts and bytes that Arrow can leave in their dictionary. `file`: an open file of Arrow."""
    groups = list(map(file.metadata.row_group, range(file.metadata.num_row_groups)))
    columns = enumerate(map(file.schema.column, range(len(file.schema))))
    return [
        column.path
        for at, column in columns
        if column.physical_type == "BYTE_ARRAY"
        and column.path == column.name
        and not any(encoding.startswith("DELTA") for group in groups for encoding in group.column(at).encodings)
    ]


def place_of(group: Any) -> tuple[int, int]:
    """Where the pages of a group of rows begin and end, by the footer."""
    chunks = list(map(group.column, range(group.num_columns)))
    begins = [_begin(chunk) for chunk in chunks]
    ends = [begin + chunk.total_compressed_size for begin, chunk in zip(begins, chunks, strict=True)]
    return min(begins, default=0), max(ends, default=0)


def rows_at_once(stream: Any, file: Any, index: int, in_dictionary: Collection[str]) -> int:
    """Rows of a group of rows that Arrow may read at once. `file`: an open file of Arrow; `in_dictionary`: what
    `texts_of` returned.

    Raises `ValueError` if one page, or one row, takes more than the limit, or if a head cannot be read.
    """
    group = file.metadata.row_group(index)
    columns = map(file.schema.column, range(len(file.schema)))
    found = [
        _expansion(stream, group.column(at), column, in_dictionary=column.path in in_dictionary)
        for at, column in enumerate(columns)
    ]
    values = sum(one.values for one in found)
    size = sum(one.bytes for one in found)
    return max(1, min(FRAME_RECORDS_MAX, 2 * ROW_VALUES_MAX // max(1, values), BATCH_BYTES_MAX // max(1, size)))


def decoded_bytes(stream: Any, enough: int) -> int:
    """The bytes of all values of a file when each has its own; stops counting at `enough`. Raises `ValueError` as
    `rows_at_once`."""
    # It takes time, and is done in a thread.
    import pyarrow.parquet as pq

    stream.seek(0)
    file = pq.ParquetFile(stream)
    size = 0
    for index in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(index)
        for at, column in enumerate(map(file.schema.column, range(len(file.schema)))):
            chunk = group.column(at)
            size += _decoded(stream, chunk, column, list(_pages(stream, chunk, column)))
            if size > enough:
                return size
        size += _repeated(stream, file, index, enough - size)
    return size


def _decoded(stream: Any, chunk: Any, column: Any, pages: list[_Page]) -> int:
    """The same of a column, without what `_repeated` counts."""
    longest = 0
    if column.physical_type == "BYTE_ARRAY":
        dictionaries = (page for page in pages if page.kind == _DICTIONARY)
        longest = max((_longest_of(_contents(stream, page, chunk)) for page in dictionaries), default=0)
    in_dictionary = sum(page.values for page in pages if page.kind != _DICTIONARY and page.encoding in _IN_DICTIONARY)
    values = sum(page.values for page in pages if page.kind != _DICTIONARY)
    return sum(page.size for page in pages) + in_dictionary * longest + values * _CELL_BYTES


def _repeated(stream: Any, file: Any, index: int, enough: int) -> int:
    """The bytes of texts of a group of rows that may repeat the beginning of the one before them."""
    group = file.metadata.row_group(index)
    chunks = map(group.column, range(group.num_columns))
    columns = [chunk.path_in_schema for chunk in chunks if "DELTA_BYTE_ARRAY" in chunk.encodings]
    size = 0
    if columns:
        rows = rows_at_once(stream, file, index, ())
        for batch in file.iter_batches(batch_size=rows, row_groups=[index], columns=columns, use_threads=False):
            size += batch.nbytes
            if size > enough:
                break
    return size


def _expansion(stream: Any, chunk: Any, column: Any, *, in_dictionary: bool) -> _Expansion:
    """`chunk`: of the footer. `column`: of the schema."""
    is_text, is_flat = column.physical_type == "BYTE_ARRAY", column.path == column.name
    width = column.length if column.physical_type == "FIXED_LEN_BYTE_ARRAY" else _CELL_BYTES
    pages = list(_pages(stream, chunk, column))
    if is_text:
        width += _longest_text(stream, chunk, column, pages, in_dictionary=in_dictionary)
    values = 1
    if column.max_repetition_level:
        values = sum(page.values for page in pages if page.kind != _DICTIONARY)
        if values > _FEW_VALUES:
            values = max(1, longest_row(stream, chunk, column, pages))
        if values > ROW_VALUES_MAX or values * width > PARQUET_PAGE_BYTES_MAX:
            what = f"a row has {values} values in {column.path}, of up to {width} bytes"
            raise ValueError(f"{what}, which is more than the limit ({ROW_VALUES_MAX}, {PARQUET_PAGE_BYTES_MAX} bytes)")
    return _Expansion(values, values * width * (1 if is_flat else _CONVERTED))


def _longest_text(stream: Any, chunk: Any, column: Any, pages: list[_Page], *, in_dictionary: bool) -> int:
    """Bytes of the longest text that a batch has more than once, or that makes it large; 0 if all pages together are
    small. `in_dictionary`: texts stay in their dictionary."""
    is_large = sum(page.size for page in pages) > BATCH_BYTES_MAX
    longest = 0
    for page in pages:
        if page.kind == _DICTIONARY:
            if not in_dictionary:
                longest = max(longest, _longest_of(_contents(stream, page, chunk)))
        elif page.encoding == _PLAIN:
            if is_large and page.size > longest:
                longest = max(longest, _longest_of(_values(stream, page, chunk, column)))
        elif page.encoding not in _IN_DICTIONARY:
            # A text may repeat the beginning of the one before it, but is not longer than the page.
            longest = max(longest, page.size)
    return longest


def _begin(chunk: Any) -> int:
    begin: int = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset is not None:
        begin = min(begin, chunk.dictionary_page_offset)
    return begin


def _pages(stream: Any, chunk: Any, column: Any) -> Iterator[_Page]:
    """Raises `ValueError` for one that takes more than the limit."""
    at = _begin(chunk)
    end = at + chunk.total_compressed_size
    while at < end:
        page = _head(stream, at)
        taken = page.size + (page.values * _ENTRY_BYTES if page.kind == _DICTIONARY else 0)
        if taken > PARQUET_PAGE_BYTES_MAX:
            what = f"a page of the column {column.path} takes {taken} bytes"
            raise ValueError(f"{what}, more than {PARQUET_PAGE_BYTES_MAX}, the limit. Write smaller pages")
        yield page
        at = page.start + page.stored


def _head(stream: Any, at: int) -> _Page:
    size = _HEAD_BYTES
    while True:
        stream.seek(at)
        data = stream.read(size)
        try:
            fields, used = _struct(data, 0)
            break
        except IndexError:
            if len(data) < size or size >= _HEAD_BYTES_MAX:
                raise ValueError("the head of a page cannot be read") from None
            size *= 16
    kind, length, stored = (fields.get(number) for number in (1, 2, 3))
    if not (isinstance(kind, int) and isinstance(length, int) and isinstance(stored, int)) or min(length, stored) < 0:
        raise ValueError("the head of a page has no kind and sizes")
    inner = fields.get({_DATA: 5, _DICTIONARY: 7, _DATA_V2: 8}.get(kind, 0)) or {}
    values = inner.get(1, 0)
    levels = (inner.get(6, 0), inner.get(5, 0)) if kind == _DATA_V2 else None
    encoding = inner.get(4 if kind == _DATA_V2 else 2, _PLAIN)
    return _Page(kind, at + used, stored, length, values, encoding, levels, inner.get(7, True) is not False)


def _struct(data: bytes, at: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """Fields of a struct in Thrift's compact protocol by their numbers, and its end. Raises `IndexError` if it is not
    whole."""
    if depth > _DEPTH_MAX:
        raise ValueError("the head of a page is nested too deep")
    fields: dict[int, Any] = {}
    number = 0
    while head := data[at]:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _zigzag(data, at)
        fields[number], at = _value(data, at, head & 15, depth)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (1, 2):
        return kind == 1, at
    if kind in (4, 5, 6):
        return _zigzag(data, at)
    if kind == 8:
        size, at = _unsigned(data, at)
        if at + size > len(data):
            raise IndexError
        return None, at + size
    if kind == 12:
        return _struct(data, at, depth + 1)
    if kind in (3, 7):
        size = 1 if kind == 3 else 8
        return None, at + size
    raise ValueError(f"the head of a page has a field of the unexpected type {kind}")


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    number, at = _unsigned(data, at)
    return (number >> 1) ^ -(number & 1), at


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at
        if shift > 63:
            raise ValueError("the head of a page has a number that is too long")


def _contents(stream: Any, page: _Page, chunk: Any) -> bytes:
    """A page, decompressed."""
    stream.seek(page.start)
    return _unpacked(stream.read(page.stored), page.size, chunk.compression)


def _unpacked(stored: bytes, size: int, compression: str) -> bytes:
    if compression == "UNCOMPRESSED":
        return stored
    codec: Any = "lz4_raw" if compression == "LZ4" else compression.lower()
    found: bytes = pa.decompress(stored, decompressed_size=size, codec=codec, asbytes=True)
    return found


def _values(stream: Any, page: _Page, chunk: Any, column: Any) -> memoryview:
    """The values of a page, without levels."""
    if page.levels is not None:
        repetition, definition = page.levels
        stream.seek(page.start + repetition + definition)
        stored = stream.read(page.stored - repetition - definition)
        if not page.is_compressed:
            return memoryview(stored)
        return memoryview(_unpacked(stored, page.size - repetition - definition, chunk.compression))
    contents = memoryview(_contents(stream, page, chunk))
    for level in (column.max_repetition_level, column.max_definition_level):
        if level:
            contents = contents[4 + int.from_bytes(contents[:4], "little") :]
    return contents


def _longest_of(texts: bytes | memoryview) -> int:
    """Bytes of the longest of texts, each of which follows its length."""
    at = longest = 0
    while at + 4 <= len(texts):
        size = int.from_bytes(texts[at : at + 4], "little")
        if size > longest:
            longest = size
        at += 4 + size
    return min(longest, len(texts))


def longest_row(stream: Any, chunk: Any, column: Any, pages: list[_Page]) -> int:
    """Values of the longest row of a column of lists. A level of zero begins a row."""
    longest = current = 0
    width = column.max_repetition_level.bit_length()
    for page in pages:
        if page.kind == _DICTIONARY:
            continue
        for level, count, packed in _runs(_levels(stream, page, chunk), width, page.values):
            if packed:
                first, *others = _rows(packed, width, count)
                current += first
                if others:
                    longest = max(longest, current, max(others) + 1)
                    current = others[-1] + 1
            elif level:
                current += count
            else:
                longest, current = max(longest, current), 1
    return max(longest, current)


def _levels(stream: Any, page: _Page, chunk: Any) -> bytes:
    """The repetition levels."""
    if page.levels is not None:
        stream.seek(page.start)
        found: bytes = stream.read(page.levels[0])
        return found
    contents = _contents(stream, page, chunk)
    return contents[4 : 4 + int.from_bytes(contents[:4], "little")]


def _runs(levels: bytes, width: int, values: int) -> Iterator[tuple[int, int, bytes]]:
    """Runs of levels: their level and number, or their packed bits and number."""
    at = 0
    level_bytes = (width + 7) // 8
    while values > 0 and at < len(levels):
        head, at = _unsigned(levels, at)
        if head & 1:
            end = at + (head >> 1) * width
            # Eight levels take as many bytes as a level has bits.
            step = _LEVELS_AT_ONCE // 8 * width
            for start in range(at, min(end, len(levels)), step):
                packed = levels[start : min(end, start + step)]
                count = min(values, len(packed) * 8 // width)
                yield 0, count, packed
                values -= count
            at = end
        else:
            count = min(values, head >> 1)
            yield int.from_bytes(levels[at : at + level_bytes], "little"), count, b""
            values -= count
            at += level_bytes


def _rows(packed: bytes, width: int, count: int) -> list[int]:
    """How many levels other than zero follow the beginning, and each zero."""
    bits = f"{int.from_bytes(packed, 'little'):0{8 * len(packed)}b}"[::-1][: count * width]
    if width > 1:
        zero = "0" * width
        bits = "".join("0" if bits[at : at + width] == zero else "1" for at in range(0, len(bits), width))
    return list(map(len, bits.split("0")))
