"""Bounds for the metadata of Iceberg tables, which are in memory as a whole.

pyiceberg decompresses a file of metadata, or a block of a manifest, whatever becomes of it: a kilobyte may stand for
gigabytes. Above it: `catalogs` and `files`. Below it: pyiceberg.
"""

from __future__ import annotations

import bz2
import gzip
import zlib
from io import BytesIO
from typing import Any

from pyiceberg.avro.codecs import KNOWN_CODECS
from pyiceberg.avro.codecs.bzip2 import BZip2Codec
from pyiceberg.avro.codecs.deflate import DeflateCodec
from pyiceberg.avro.codecs.snappy_codec import SnappyCodec
from pyiceberg.avro.codecs.zstandard_codec import ZStandardCodec
from pyiceberg.serializers import GzipCompressor

from millstream.limits import TABLE_METADATA_BYTES_MAX


def bound_metadata() -> None:
    """From now on, pyiceberg raises `ValueError` for metadata that has more bytes than the limit."""
    compressor: Any = GzipCompressor
    compressor.stream_decompressor = _decompressed
    KNOWN_CODECS.update({"deflate": _Deflate, "bzip2": _Bzip2, "snappy": _Snappy, "zstandard": _Zstandard})


def check_metadata(size: int, what: str) -> None:
    """Raises `ValueError` for too many bytes."""
    if size > TABLE_METADATA_BYTES_MAX:
        raise ValueError(f"{what} has more than {TABLE_METADATA_BYTES_MAX} bytes, the limit")


def _decompressed(_: object, stored: Any) -> Any:
    with stored, gzip.open(stored) as file:
        contents = file.read(TABLE_METADATA_BYTES_MAX + 1)
    check_metadata(len(contents), "metadata of the table, decompressed,")
    return BytesIO(contents)


def _block(contents: bytes) -> bytes:
    check_metadata(len(contents), "a block of a manifest, decompressed,")
    return contents


class _Deflate(DeflateCodec):
    @staticmethod
    def decompress(data: bytes) -> bytes:
        return _block(zlib.decompressobj(-15).decompress(data, TABLE_METADATA_BYTES_MAX + 1))


class _Bzip2(BZip2Codec):
    @staticmethod
    def decompress(data: bytes) -> bytes:
        return _block(bz2.BZ2Decompressor().decompress(data, TABLE_METADATA_BYTES_MAX + 1))


class _Snappy(SnappyCodec):
    @staticmethod
    def decompress(data: bytes) -> bytes:
        check_metadata(_length(data), "a block of a manifest, decompressed,")
        return SnappyCodec.decompress(data)


class _Zstandard(ZStandardCodec):
    @staticmethod
    def decompress(data: bytes) -> bytes:
        from zstandard import ZstdDecompressor

        with ZstdDecompressor().stream_reader(BytesIO(data)) as reader:
            return _block(reader.read(TABLE_METADATA_BYTES_MAX + 1))


def _length(data: bytes) -> int:
    """The number of bytes at which a block of Snappy begins."""
    number = 0
    for index, byte in enumerate(data[:5]):
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            break
    return number
