"""Bounds for Avro data: blocks of files, items of arrays without bytes, and how deep values can be.

fastavro decompresses a block as a whole, and makes as many items of an array as the data says. So a small file, or a
message of a few bytes, could take any amount of memory.

Its compiled reader has no limit of its own: a value with some thousand levels, which takes as many bytes, ends the
process. Only a schema that refers to itself allows such values, so its values are read by fastavro's reader in Python,
which ends at Python's limit. It needs ten times as long.

Above it: readers of Avro values and files. Below it: fastavro, an extra.
"""

from __future__ import annotations

import bz2
import lzma
import math
import zlib
from collections.abc import Callable, Mapping
from functools import cache
from io import BytesIO
from typing import IO, Any

import fastavro._read as reading
from fastavro import _read_py, reader, schemaless_reader

from millstream.limits import AVRO_BLOCK_BYTES_MAX, JSON_NESTED_MAX
from millstream_connectors.shared.formats.confluent import varint

TOO_DEEP = f"it is nested more than {JSON_NESTED_MAX} levels deep"
Decompress = Callable[[bytes, int], bytes]
"""Of a block, with the number of bytes that are enough."""


@cache
def bound_blocks() -> None:
    """From now on, fastavro raises `ValueError` for a block with more bytes than the limit."""
    _bound(reading.BLOCK_READERS, lambda file: file)
    # The reader in Python gives its readers of blocks a decoder of the file.
    in_python: Any = _read_py
    _bound(in_python.BLOCK_READERS, in_python.BinaryDecoder)


def _bound(readers: dict[str, Callable[[Any], Any]], made: Callable[[IO[bytes]], Any]) -> None:
    """`made`: what the client's own readers of blocks get for a file."""
    whole: dict[str, Decompress] = {
        "null": lambda data, enough: data,
        "deflate": lambda data, enough: zlib.decompressobj(-15).decompress(data, enough),
        "bzip2": lambda data, enough: bz2.BZ2Decompressor().decompress(data, enough),
        "xz": lambda data, enough: lzma.LZMADecompressor().decompress(data, enough),
        "zstandard": _from_zstandard,
    }
    readers.update((codec, _decompressing(decompress)) for codec, decompress in whole.items())
    # These begin with the length of the contents.
    readers["snappy"] = _measured(readers["snappy"], made, lambda data: _unsigned(BytesIO(data)))
    readers["lz4"] = _measured(readers["lz4"], made, lambda data: int.from_bytes(data[:4], "little"))


def _decompressing(decompress: Decompress) -> Callable[[Any], BytesIO]:
    def read(source: Any) -> BytesIO:
        contents = decompress(_block(getattr(source, "fo", source)), AVRO_BLOCK_BYTES_MAX + 1)
        _check(len(contents))
        return BytesIO(contents)

    return read


def _measured(
    read: Callable[[Any], Any], made: Callable[[IO[bytes]], Any], measure: Callable[[bytes], int]
) -> Callable[[Any], Any]:
    """The client's own reader, for a block whose contents are not too long."""

    def measured(source: Any) -> Any:
        data = _block(getattr(source, "fo", source))
        _check(measure(data))
        return read(made(BytesIO(varint(len(data)) + data)))

    return measured


def _from_zstandard(data: bytes, enough: int) -> bytes:
    import zstandard

    with zstandard.ZstdDecompressor().stream_reader(data) as reader:
        return reader.read(enough)


def _check(size: int) -> None:
    if size > AVRO_BLOCK_BYTES_MAX:
        raise ValueError(f"a block has more than {AVRO_BLOCK_BYTES_MAX} bytes when it is decompressed, the limit")


def _block(file: IO[bytes]) -> bytes:
    """The next block, as it is stored."""
    number = _unsigned(file)
    size = (number >> 1) ^ -(number & 1)
    _check(size)
    if size < 0:
        raise ValueError("a block has a negative length")
    return file.read(size)


def _unsigned(file: IO[bytes]) -> int:
    number = shift = 0
    while True:
        byte = file.read(1)
        if not byte or shift > 63:
            raise EOFError("the file ends in a block")
        number |= (byte[0] & 0x7F) << shift
        shift += 7
        if byte[0] < 0x80:
            return number


def check_items(schema: Any, named: Mapping[str, Any] | None = None) -> None:
    """Raises `ValueError` for a schema with an array whose items take no bytes: its length would be any number.

    `schema`: as fastavro has parsed it, `named`: types of other schemas by their names.
    """
    _takes_bytes(schema, dict(named or {}), set())


def _takes_bytes(schema: Any, named: dict[str, Any], entered: set[str]) -> bool:
    """Whether each value of the type takes at least one byte."""
    if isinstance(schema, str):
        if schema == "null":
            return False
        if schema in named and schema not in entered:
            return _takes_bytes(named[schema], named, entered)
        return True
    if isinstance(schema, list):
        # The number of the branch takes one.
        for branch in schema:
            _takes_bytes(branch, named, entered)
        return True
    kind, name = schema.get("type"), schema.get("name")
    if isinstance(name, str):
        named[name] = schema
        entered = entered | {name}
    if kind == "array":
        if not _takes_bytes(schema["items"], named, entered):
            raise ValueError("it has an array with items that take no bytes, whose number nothing limits")
        return True
    if kind == "map":
        _takes_bytes(schema["values"], named, entered)
        return True
    if kind in ("record", "error"):
        # All of them, for the arrays in them.
        return sum(_takes_bytes(field["type"], named, entered) for field in schema["fields"]) > 0
    if kind == "fixed":
        return bool(schema["size"])
    return True if kind == "enum" else _takes_bytes(kind, named, entered)


def values_reader(schema: Any) -> Callable[[Any, Any, Any], Any]:
    """The function that reads one value of a parsed schema: from a stream, with the writer's and the reader's schema.
    Raises `ValueError` for a schema without values."""
    found: Callable[[Any, Any, Any], Any]
    found = schemaless_reader if _levels(schema) <= JSON_NESTED_MAX else _read_py.schemaless_reader
    return found


def file_reader(stream: Any) -> Any:
    """The rows of an Avro file. Raises `ValueError`, also while they are read, and what fastavro raises."""
    rows: Any = reader(stream)
    if _levels(rows.writer_schema) > JSON_NESTED_MAX:
        stream.seek(0)
        rows = _read_py.reader(stream)
    return rows


def _levels(schema: Any) -> float:
    """The most levels that a value of a parsed schema has; infinite if it may have any number. Raises `ValueError` for
    a record that always contains itself."""
    named = dict(schema.get("__named_schemas") or {}) if isinstance(schema, dict) else {}
    try:
        return _Walk(named).levels(schema, frozenset())
    except RecursionError:
        return math.inf


class _Walk:
    """A walk through a schema."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = dict(named)
        self._known: dict[str, float] = {}
        self._open: set[str] = set()

    def levels(self, schema: Any, certain: frozenset[str]) -> float:
        """`certain`: records around this one whose values always contain a value of it."""
        if isinstance(schema, list):
            return max((self.levels(branch, frozenset()) for branch in schema), default=0)
        if isinstance(schema, str):
            return self._levels_of_name(schema, certain)
        kind = schema["type"]
        if kind in ("array", "map"):
            return 1 + self.levels(schema["items" if kind == "array" else "values"], frozenset())
        if kind in ("record", "error"):
            name = schema["name"]
            self._named.setdefault(name, schema)
            return self._levels_of_name(name, certain)
        return 0 if isinstance(kind, str) and kind not in self._named else self.levels(kind, certain)

    def _levels_of_name(self, name: str, certain: frozenset[str]) -> float:
        if name not in self._named:
            return 0
        if name in certain:
            raise ValueError(f"the record {name} always contains itself")
        if name in self._open:
            return math.inf
        if name not in self._known:
            schema = self._named[name]
            if schema["type"] not in ("record", "error"):
                return 0
            self._open.add(name)
            around = certain | {name}
            self._known[name] = 1 + max((self.levels(field["type"], around) for field in schema["fields"]), default=0)
            self._open.discard(name)
        return self._known[name]
